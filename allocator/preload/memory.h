// Memory: a pointer that the program was given, as nofrag knows it.
//
// Owns: nothing. Layer: preload. Units: bytes as the program asked for them. Threads: any; what is found may
// be freed by another thread at any time, as with the driver. A device's allocator can go with its context, so
// looking a pointer up holds the gate (devices.h). Failure: a pointer that is not ours says so.
// Cost: own_block takes the gate and the device's lock.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "driver/real/driver_api.h"

namespace nofrag::preload {

struct OwnBlock {
  bool ours = false;   // in our addresses
  bool live = false;   // in a block
  bool async = false;  // given by cuMemAllocAsync, or to another door than the preload
  int device = -1;
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
  CUstream stream = nullptr;
};

[[nodiscard]] OwnBlock own_block(CUdeviceptr pointer);
// The same for who holds the gate already.
[[nodiscard]] OwnBlock own_block_at_gate(CUdeviceptr pointer);
// False also for what was freed while something was captured, and is kept aside.
[[nodiscard]] bool is_live_block(const OwnBlock& block);

// Would the driver let this thread free memory now, while something is captured?
[[nodiscard]] CUresult may_free_now();
// The device's blocks are about to go, and their addresses to others: none of them is kept aside any more.
// pre: the gate is held alone.
void forget_aside(int device);

[[nodiscard]] inline void* to_address(CUdeviceptr pointer) {
  return VirtAddr(std::uint64_t{pointer}).pointer();
}
[[nodiscard]] inline CUdeviceptr to_pointer(const void* address) {
  return VirtAddr(address).value();
}
[[nodiscard]] inline CUstream to_stream_handle(std::uint64_t raw) {
  return static_cast<CUstream>(VirtAddr(raw).pointer());
}

// The default streams that have handles: the legacy one (its other name is null), and the calling thread's own,
// which is what null means to programs built for per-thread default streams.
[[nodiscard]] inline CUstream legacy_stream() {
  return to_stream_handle(1);
}
[[nodiscard]] inline CUstream per_thread_stream() {
  return to_stream_handle(2);
}
[[nodiscard]] inline CUstream per_thread(CUstream stream) {
  return stream == nullptr ? per_thread_stream() : stream;
}

// The device's default memory pool, or nullptr.
[[nodiscard]] CUmemoryPool default_pool_of(int device);
// Bytes of cuMemAllocAsync that are ours: `difference` more.
void note_async(int device, std::int64_t difference);

}  // namespace nofrag::preload
