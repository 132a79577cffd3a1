#include "diagnose/forecast.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "diagnose/trends.h"

namespace nofrag {
namespace {

// Standard deviations of Kendall's tau under chance that a rise must exceed. Every look is a new chance,
// and a job is looked at thousands of times.
constexpr double kLeastScore = 4.5;
constexpr double kLeastRise = 0.02;      // of capacity, over the points
constexpr double kLeastOverScatter = 4;  // the rise, in scatters
constexpr double kStraight = 2.5;  // how far the latest points may lie from the line, in scatters
constexpr std::size_t kMostPoints = 64;

struct Level {
  double time_us = 0;
  double high = 0;
  double low = 0;
};

std::vector<Level> levels_of(const Track& track, std::uint64_t base) {
  std::vector<Level> levels;
  const Stretch* from = std::find_if(
      track.begin(), track.end(), [&](const Stretch& s) { return s.max_live >= base; });
  for (const Stretch* s = from; s != track.end(); ++s) {
    levels.push_back({static_cast<double>(s->end_us),
                      static_cast<double>(s->max_live),
                      static_cast<double>(s->min_live)});
  }
  return levels;
}

std::vector<Level> levels_of(const Timeline& timeline) {
  if (timeline.cycles().size() > kLeastPoints) {
    std::vector<Level> levels = levels_of(timeline.cycles(), 0);
    levels.erase(levels.begin());  // holds the load
    return levels;
  }
  const std::uint64_t base = timeline.live_at_first_churn();
  std::vector<Level> levels = levels_of(timeline.ticks(), base);
  if (levels.size() < kLeastPoints) {
    levels = levels_of(timeline.windows(), base);
  }
  return levels;
}

// Neighbours together, so that pairs stay few and single blocks do not matter.
std::vector<Level> thinned(std::vector<Level> levels) {
  while (levels.size() > kMostPoints) {
    std::vector<Level> half;
    for (std::size_t i = levels.size() % 2; i + 1 < levels.size(); i += 2) {
      half.push_back({levels[i + 1].time_us,
                      std::max(levels[i].high, levels[i + 1].high),
                      std::min(levels[i].low, levels[i + 1].low)});
    }
    levels = std::move(half);
  }
  return levels;
}

double score(double tau, std::size_t n) {
  const auto count = static_cast<double>(n);
  return tau / std::sqrt(2 * (2 * count + 5) / (9 * count * (count - 1)));
}

struct Trend {
  bool found = false;
  Line line;
  double score = 0;
  double latest = 0;  // how far the latest points lie above the line
};

Trend trend_of(const std::vector<Level>& levels,
               std::size_t first,
               double origin,
               double capacity) {
  std::vector<Point> highs;
  std::vector<Point> lows;
  for (std::size_t i = first; i < levels.size(); ++i) {
    highs.push_back({levels[i].time_us - origin, levels[i].high});
    lows.push_back({levels[i].time_us - origin, levels[i].low});
  }
  Trend trend;
  trend.line = theil_sen(highs);
  const Line low = theil_sen(lows);
  trend.score = score(trend.line.consistency, highs.size());
  const double rise = trend.line.slope * (highs.back().x - highs.front().x);
  std::vector<double> rests;
  for (std::size_t i = highs.size() * 3 / 4; i < highs.size(); ++i) {
    rests.push_back(highs[i].y - trend.line.at(highs[i].x));
  }
  trend.latest = median(std::move(rests));
  const double scatter = std::max(trend.line.scatter, kLeastRise * rise);
  trend.found = trend.line.slope > 0 && trend.score >= kLeastScore && low.slope > 0 &&
                rise >= kLeastRise * capacity && rise >= kLeastOverScatter * trend.line.scatter &&
                std::abs(trend.latest) <= kStraight * scatter;
  return trend;
}

}  // namespace

Headroom headroom_of(const Timeline& timeline, Bytes capacity, std::uint64_t now_us) {
  Headroom headroom;
  const std::vector<Level> levels = thinned(levels_of(timeline));
  double highest = static_cast<double>(timeline.live());
  for (std::size_t i = levels.size() * 3 / 4; i < levels.size(); ++i) {
    highest = std::max(highest, levels[i].high);
  }
  const auto most = static_cast<double>(capacity.count());
  headroom.bytes = Bytes(static_cast<std::uint64_t>(std::max(0.0, most - highest)));
  const auto now = static_cast<double>(now_us);
  for (std::size_t points = levels.size(); points >= kLeastPoints; points /= 2) {
    const Trend trend = trend_of(levels, levels.size() - points, now, most);
    if (!trend.found) {
      continue;
    }
    // What scatters upward arrives first.
    const double level = trend.line.intercept + 2 * trend.line.scatter;
    constexpr double kMicroseconds = 1e6;
    headroom.forecast = true;
    headroom.seconds = std::max(0.0, (most - level) / trend.line.slope) / kMicroseconds;
    headroom.bytes_per_second = trend.line.slope * kMicroseconds;
    constexpr double kCertain = 12;
    const double clear = std::min(1.0, (trend.score - kLeastScore) / (kCertain - kLeastScore));
    headroom.confidence = 0.5 + 0.5 * clear;
    break;
  }
  return headroom;
}

}  // namespace nofrag
