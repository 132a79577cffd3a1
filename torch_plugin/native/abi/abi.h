// abi: what differs between PyTorch's minor releases, chosen at compile time. Everything else in
// torch_plugin/native is written against the names that this header gives.
//
// Each range of releases has one small file: VersionedAllocator, the subclass of PyTorch's CUDAAllocator with
// the virtual functions that are not the same everywhere; make_entry, config_info, rounding_divisions,
// initial_fraction. docs/pytorch.md lists the ranges.
// Owns: nothing. Threads, failure: those of the functions.
// Invariants: NOFRAG_TORCH_MINOR is the minor release whose headers are included (CMake reads it from them).
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#ifndef NOFRAG_TORCH_MINOR
#error "compile with -DNOFRAG_TORCH_MINOR=N for PyTorch 2.N"
#endif

#if NOFRAG_TORCH_MINOR >= 12
#include "torch_plugin/native/abi/torch_2_12.h"
#elif NOFRAG_TORCH_MINOR == 11
#include "torch_plugin/native/abi/torch_2_11.h"
#elif NOFRAG_TORCH_MINOR >= 9
#include "torch_plugin/native/abi/torch_2_9.h"
#elif NOFRAG_TORCH_MINOR == 8
#include "torch_plugin/native/abi/torch_2_8.h"
#elif NOFRAG_TORCH_MINOR >= 6
#include "torch_plugin/native/abi/torch_2_6.h"
#else
#error "PyTorch before 2.6 is not supported by the native allocator (the C hooks work there)"
#endif
