#include "diagnose/trends.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace nofrag {

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) {
    return *middle;
  }
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

Line theil_sen(const std::vector<Point>& points) {
  Line line;
  std::vector<double> slopes;
  slopes.reserve(points.size() * points.size() / 2);
  double rises = 0;
  double falls = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    for (std::size_t j = i + 1; j < points.size(); ++j) {
      const double dx = points[j].x - points[i].x;
      const double dy = points[j].y - points[i].y;
      if (dx > 0) {
        slopes.push_back(dy / dx);
        rises += dy > 0 ? 1 : 0;
        falls += dy < 0 ? 1 : 0;
      }
    }
  }
  if (!slopes.empty()) {
    line.consistency = (rises - falls) / static_cast<double>(slopes.size());
  }
  line.slope = median(std::move(slopes));
  std::vector<double> rests;
  rests.reserve(points.size());
  for (const Point& p : points) {
    rests.push_back(p.y - line.slope * p.x);
  }
  line.intercept = median(rests);
  for (double& rest : rests) {
    rest = std::abs(rest - line.intercept);
  }
  line.scatter = median(std::move(rests));
  return line;
}

}  // namespace nofrag
