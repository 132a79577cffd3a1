// StreamName: which stream a handle means. The handle of the per-thread default stream means another stream in
// every thread; all others mean the same to everybody.
//
// Owns: nothing. Units: none. Invariants: equal names are one stream; two names may be one too (0 and the legacy
// handle), which costs a mark more and nothing else.
// Threads: values; name_of() answers for the calling thread. Failure: none.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>

#include "torch_plugin/native/abi/types.h"

namespace nofrag::native {

inline bool is_per_thread(cudaStream_t stream) {
  return reinterpret_cast<std::uintptr_t>(stream) == 2;  // CU_STREAM_PER_THREAD
}

// A number that no other thread of the process ever has: what the system calls threads it uses again.
inline std::uint64_t number_of_thread() {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

struct StreamName {
  cudaStream_t handle = nullptr;
  std::uint64_t thread = 0;  // of a per-thread default stream: whose

  // Can the calling thread queue work on it?
  [[nodiscard]] bool within_reach() const { return thread == 0 || thread == number_of_thread(); }
  friend auto operator<=>(const StreamName&, const StreamName&) = default;
};

// As the calling thread means it.
inline StreamName name_of(cudaStream_t stream) {
  return {stream, is_per_thread(stream) ? number_of_thread() : 0};
}

}  // namespace nofrag::native
