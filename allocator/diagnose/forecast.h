// Headroom: how much memory is left, and when it ends if use goes on as it does.
//
// Layer: diagnose. The level is the highest live memory of each unit of work (a training step, a request,
// a stretch of time); the trend is a Theil-Sen line through it, over the longest recent past that fits
// one. Silent where there is none: fewer than kLeastPoints units, a rise that Kendall's test does not
// tell from chance, or one that is small beside the scatter. Units: bytes, seconds. Threads: pure function.
// Failure: forecast is false. Cost: O(n^2) for n <= Track::kMost.
// Test: tests/diagnose/forecast_test.cc holds how early, how exact and how seldom wrong it is.
#pragma once

#include <cstdint>

#include "base/timeline.h"
#include "base/units.h"

namespace nofrag {

struct Headroom {
  Bytes bytes;            // capacity less the highest live memory of late
  bool forecast = false;  // the following hold
  double seconds = 0;     // until the capacity is reached
  double bytes_per_second = 0;
  double confidence = 0;  // 0.5 to 1: how clearly it rises, and how straight
};

inline constexpr std::size_t kLeastPoints = 12;

// `capacity`: the most that live memory can be. `now_us`: by the timeline's clock.
[[nodiscard]] Headroom headroom_of(const Timeline& timeline, Bytes capacity, std::uint64_t now_us);

}  // namespace nofrag
