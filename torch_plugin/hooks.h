// The C hooks of PyTorch's CUDAPluggableAllocator (torch >= 2.1), door 3 of docs/design.md.
//
// Owns: nothing; each hook is a thin shell around the C interface. Layer: torch_plugin.
// Streams are cudaStream_t as void*: nothing here includes CUDA. Threads: any. Failure: an
// allocation that fails throws PyTorch's exception (torch_error.h); everything else that fails is
// reported once or, where PyTorch calls with foreign pointers as a matter of course, ignored.
// Two parameters are C++ objects by value because PyTorch declares them so: std::pair of two words
// travels in registers, std::function by reference; neither depends on the string ABI.
// How they are installed: torch_plugin/nofrag_torch/hooks.py. Decision: docs/pytorch.md
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include <nofrag/nofrag.h>

using NofragTorchPoolId = std::pair<unsigned long long, unsigned long long>;

extern "C" {

// Throws if it fails; null for size 0.
NOFRAG_API void* nofrag_torch_alloc(std::size_t size, int device, void* stream);
// `stream` is the allocation stream; it and the size are not needed.
NOFRAG_API void nofrag_torch_free(void* block, std::size_t size, int device, void* stream) noexcept;

// Before the first use: `conf` is what PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF) says. What nofrag
// honours of it holds from the start, weaker than NOFRAG_CONF; what the user should know of the rest is
// written to buffer, a line each (buffer rule: nofrag_stats_text). native: 1 = for the native library,
// 0 = for these hooks. NOFRAG_NOT_SUPPORTED if it asks for another allocator (nofrag must not be installed),
// NOFRAG_ALREADY_INITIALIZED after the first use. The table of keys is in docs/pytorch.md.
NOFRAG_API nofrag_status nofrag_torch_configure(
    const char* conf, int native, char* buffer, std::size_t capacity, std::size_t* needed) noexcept;

NOFRAG_API void nofrag_torch_init(int device_count) noexcept;
// torch.cuda.empty_cache(): every device gives its idle memory back.
NOFRAG_API void nofrag_torch_reset() noexcept;
NOFRAG_API void nofrag_torch_memory_fraction(double fraction, int device) noexcept;
// The block that holds `address`, and its size; `address` itself if it is none of ours.
NOFRAG_API void* nofrag_torch_base_alloc(void* address, std::size_t* size) noexcept;
NOFRAG_API void nofrag_torch_record_stream(void* address, void* stream) noexcept;

// Throws if it fails.
NOFRAG_API void nofrag_torch_begin_allocate_to_pool(int device,
                                                    NofragTorchPoolId pool,
                                                    std::function<bool(void*)> filter);
NOFRAG_API void nofrag_torch_end_allocate_to_pool(int device, NofragTorchPoolId pool) noexcept;
NOFRAG_API void nofrag_torch_release_pool(int device, NofragTorchPoolId pool) noexcept;

}  // extern "C"
