// TraceClock: the one clock that all threads of a recording stamp their events with.
//
// The processor's time stamp counter where the kernel itself keeps time by it (then it is the same on all
// cores and never stands still), else CLOCK_MONOTONIC. Read behind all loads before it, so that a thread that
// got a block from another reads a later time than the one that gave it up.
// Layer: trace. Units: ticks, which a reader turns into nanoseconds by pairs of both clocks.
// Threads: any. Failure: none. Cost: now() about 10 ns by the counter, 20 to 40 by the system's clock.
#pragma once

#include <cstdint>
#include <ctime>
#include <string_view>

namespace nofrag {

inline std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

class TraceClock {
 public:
  // Looks which clock there is, unless the system's is wanted.
  explicit TraceClock(bool monotonic = false);

  // Never 0.
  [[nodiscard]] std::uint64_t now() const {
#if defined(__x86_64__)
    if (counter_) {
      unsigned int processor = 0;
      return __builtin_ia32_rdtscp(&processor);
    }
#endif
    return monotonic_ns();
  }
  [[nodiscard]] std::string_view name() const {
    return counter_ ? "tsc" : "monotonic";
  }

 private:
  bool counter_ = false;
};

}  // namespace nofrag
