// Trends: robust lines through noisy series.
//
// Layer: diagnose; arithmetic only. theil_sen is the median of the slopes of all pairs: up to 29 % of
// the points may be anything. consistency is the share of pairs that rise less the share that fall
// (Kendall's tau: 1 = every later value is larger, 0 = no trend). Threads: pure functions.
// Failure: fewer than two points give a flat line. Cost: O(n^2) for n <= Track::kMost.
#pragma once

#include <vector>

namespace nofrag {

struct Point {
  double x = 0;
  double y = 0;
};

struct Line {
  double slope = 0;
  double intercept = 0;    // y at x = 0
  double consistency = 0;  // -1 to 1
  double scatter = 0;      // median distance of the points from the line
  [[nodiscard]] double at(double x) const { return intercept + slope * x; }
};

[[nodiscard]] Line theil_sen(const std::vector<Point>& points);
[[nodiscard]] double median(std::vector<double> values);

}  // namespace nofrag
