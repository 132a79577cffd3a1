#include "driver/simulated/cost_table.h"

#include <algorithm>

namespace nofrag {

double CallCost::microseconds(Bytes size) const {
  if (points.empty()) {
    return 0;
  }
  if (size <= points.front().bytes || points.size() == 1) {
    return points.front().microseconds;
  }
  auto right = std::lower_bound(
      points.begin(), points.end(), size, [](const CostPoint& p, Bytes s) { return p.bytes < s; });
  if (right == points.end()) {
    --right;
  }
  const auto left = right - 1;
  const auto distance = static_cast<double>((size - left->bytes).count());
  const auto span = static_cast<double>((right->bytes - left->bytes).count());
  return left->microseconds + (right->microseconds - left->microseconds) * (distance / span);
}

double CallCost::further_mapping(Bytes size) const {
  return std::max(0.0, microseconds(size) - call_overhead_us);
}

}  // namespace nofrag
