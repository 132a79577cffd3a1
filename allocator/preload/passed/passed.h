// Passed: what is remembered of device memory that the program takes from the driver past nofrag, so that it is counted
// (runtime/observe/passed_on.h) for as long as it exists.
//
// Owns: four bounded tables (created handles, memory that outlived its handle's value, mappings, blocks and arrays), for
// good. Layer: preload.
// Physical memory of cuMemCreate lives until its last handle is released and its last mapping gone, and is counted so:
// CUDA says that much, and not that a released handle's value stays away for as long as the memory is mapped.
// Behind a free the driver may give the same handle or address to another thread before we have noted the free: every
// entry has a number, and only the entry that was there before the call is taken out.
// Threads: any, one lock of its own, never held over a driver call. Failure: a full table, or a size that cannot be
// known, is counted as uncounted; the program's call is never touched.
// Cost: a lock and a look into a table beside a driver call; a free of the driver's asks one load while there is none.
#pragma once

#include <cstdint>

#include "driver/real/driver_api.h"
#include "stats/passed_on.h"

namespace nofrag::preload {

// Is what the program takes now to be counted? Not nofrag's own, nor where nofrag does not act.
[[nodiscard]] bool counts_passed();

// ---- blocks and arrays: memory of the current context

// `key`: its address, or an array's handle; size 0: not known.
void note_block(std::uint64_t key, std::uint64_t size, PassedOnKind kind);
// What an allocation that was passed on gave, if it gave anything; the result goes through. Where the driver alone
// serves, nofrag accounts for nothing, and these count nothing.
CUresult note_allocated(CUresult result, const CUdeviceptr* pointer, std::uint64_t size);
// From a pool of the driver's, on a stream. What is asked for in a capture is the graph's, and none yet.
CUresult note_pool_block(CUresult result,
                         const CUdeviceptr* pointer,
                         std::uint64_t size,
                         CUstream stream);
// The entry's number; 0: there is none.
[[nodiscard]] std::uint64_t block_number(std::uint64_t key);
void drop_block(std::uint64_t key, std::uint64_t number);
// A context ended, and its blocks with it.
void forget_blocks(CUcontext context);
// The same of a primary one; but blocks of pools are the device's, and stay until they are freed.
void forget_primary_blocks(int device);

// Calls a driver's free; what it frees is counted no more.
template <typename Call>
CUresult freeing(std::uint64_t key, Call call) {
  const std::uint64_t number = block_number(key);
  const CUresult result = call();
  if (number != 0 && result == CUDA_SUCCESS) {
    drop_block(key, number);
  }
  return result;
}

// ---- physical memory of cuMemCreate, by its handle

void note_created(std::uint64_t handle, std::uint64_t size, int device);
[[nodiscard]] std::uint64_t created_number(std::uint64_t handle);
// One more holder, if the call gave one. Handles that are not known (nofrag's, imported ones) stay so.
CUresult note_retained(CUresult result, const unsigned long long* handle);
void note_released(std::uint64_t handle, std::uint64_t number);
void note_mapped(std::uint64_t address, std::uint64_t size, std::uint64_t handle);
void note_unmapped(std::uint64_t address, std::uint64_t size);

}  // namespace nofrag::preload
