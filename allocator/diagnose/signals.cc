#include "diagnose/signals.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

namespace nofrag {
namespace {

// Fewer units of work than these have no trend.
constexpr std::size_t kLeastUnits = 6;
// New blocks explain a rise if each is at most this many times the largest request.
constexpr double kLargestShare = 1.2;
// What is made anew was allocated at least so many times as much as stayed.
constexpr double kRemadeTurnover = 3;
// Cycles are the units of the work if they cover one in so many parts of it.
constexpr std::uint64_t kCovered = 4;
// Next to every later low is higher.
constexpr double kStrict = 0.95;
// What the later half of a trend must have of its slope.
constexpr double kLaterShare = 0.4;
// A load whose frees begin before this many allocations copies on the way.
constexpr std::uint64_t kAtOnce = 32;
// A pause this many times the usual time between windows splits the growth; but not one that a busy machine or a
// disk may have made.
constexpr std::uint64_t kPause = 20;
constexpr std::uint64_t kLeastPauseUs = 20'000;
// A load goes on in the sizes it had; a step brings its own.
constexpr double kNewSizes = 0.5;
// What was live at that pause, against live at the end, to have been a load.
constexpr double kLeastBase = 0.1;
// A small model on a large card is less than that. It was a load all the same if it had so many blocks, and what came
// then is on another scale (the mean request, against the largest of before) and is given up again in part.
constexpr std::uint64_t kLeastBlocks = 8;
constexpr std::uint64_t kOtherScale = 16;
constexpr double kGivenUp = 0.02;
// Of the rise of the lows: so near the lowest is back at the trough, if it had been so much higher before.
constexpr double kAtTrough = 0.2;

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Complete cycles where there are enough, else stretches of work of equal length. What came before the
// first frees is the load, and no unit of work.
std::vector<Stretch> units_of(const Timeline& timeline) {
  std::vector<Stretch> units;
  const std::uint64_t base = timeline.live_at_first_churn();
  const auto after_load = [&](const Stretch& s) { return s.max_live >= base; };
  const Track& cycles = timeline.cycles();
  // A few at the end, after one that was nearly all, are parts of something larger.
  const auto are_all = [&] {
    const std::uint64_t work = cycles[cycles.size() - 1].allocations - cycles[0].allocations;
    return cycles.merges() > 0 || work * kCovered >= timeline.allocations_since_churn();
  };
  if (cycles.size() > kLeastUnits && are_all()) {
    // The first holds the load.
    units.assign(cycles.begin() + 1, cycles.end());
    return units;
  }
  const Stretch* from =
      std::find_if(timeline.windows().begin(), timeline.windows().end(), after_load);
  units.assign(from, timeline.windows().end());
  // Windows short of a unit of work see single blocks come and go: eight to twenty-four stretches do not.
  constexpr std::size_t kMostUnits = 24;
  while (units.size() > kMostUnits) {
    std::vector<Stretch> pairs;
    for (std::size_t i = 0; i + 1 < units.size(); i += 2) {
      pairs.push_back(merged(units[i], units[i + 1]));
    }
    if (units.size() % 2 == 1) {
      pairs.push_back(units.back());
    }
    units = std::move(pairs);
  }
  return units;
}

// The first third of the work may still be the load, caches that fill, a first step that is unlike the others. By work,
// not by number: of a long job what is recent has most of the units, and shows next to nothing of a slow growth.
void leave_first_third(std::vector<Stretch>* units) {
  if (units->empty()) {
    return;
  }
  const std::uint64_t begin = units->front().allocations;
  const std::uint64_t third = begin + (units->back().allocations - begin) / 3;
  // A few steps must not become too few to tell anything of.
  const std::size_t enough = units->size() > kLeastUnits ? units->size() - kLeastUnits : 0;
  const std::size_t by_number = std::min(units->size() / 3, enough);
  std::size_t first = 0;
  while (first < by_number && (*units)[first].allocations < third) {
    ++first;
  }
  units->erase(units->begin(), units->begin() + static_cast<std::ptrdiff_t>(first));
}

// Of a long job all but the last few hundred units are one. What the lows rose by since the first, as far as the trend
// of the last ones explains it.
double rise_since_first(const Timeline& timeline, const Line& floors, const Stretch& last) {
  const std::uint64_t begin = timeline.allocations_at_first_churn();
  if (timeline.cycles().size() <= kLeastUnits || last.allocations <= begin) {
    return 0;
  }
  const std::uint64_t first = timeline.cycles()[0].min_live;
  const double rise = last.min_live > first ? static_cast<double>(last.min_live - first) : 0;
  return std::min(rise, floors.slope * static_cast<double>(last.allocations - begin));
}

// By the most blocks that may be new: at a low some blocks of a step may live, or none. And what is made anew is
// allocated many times over.
bool same_blocks_are_larger(const Signals& s, const std::vector<Stretch>& units) {
  const auto [fewest, most] =
      std::minmax_element(units.begin(), units.end(), [](const Stretch& a, const Stretch& b) {
        return a.low_blocks < b.low_blocks;
      });
  const auto new_blocks = static_cast<double>(most->low_blocks - fewest->low_blocks);
  return s.turnover >= kRemadeTurnover &&
         s.rise > new_blocks * kLargestShare * static_cast<double>(s.requests_largest);
}

bool on_another_scale_after_the_pause(const Timeline& timeline) {
  const Track& windows = timeline.windows();
  const Stretch* paused =
      std::max_element(windows.begin(), windows.end(), [](const Stretch& a, const Stretch& b) {
        return a.end_us - a.start_us < b.end_us - b.start_us;
      });
  if (paused == windows.begin() || paused == windows.end()) {
    return false;
  }
  const Stretch& before = *(paused - 1);
  const std::uint64_t after = timeline.allocations() - before.allocations;
  std::uint64_t largest = 0;
  for (const Stretch* window = windows.begin(); window != paused; ++window) {
    largest = std::max(largest, window->largest_request);
  }
  return before.allocations >= kLeastBlocks && after > 0 &&
         (timeline.allocated_bytes() - before.allocated_bytes) / after >= kOtherScale * largest;
}

// Does a pause part the growth in a load and what came then?
bool load_ends_at_a_pause(const Timeline& timeline, double freed_share) {
  const std::uint64_t usual = std::max<std::uint64_t>(timeline.usual_pause_us(), 1);
  const bool long_enough = timeline.longest_pause_us() >= std::max(kPause * usual, kLeastPauseUs);
  const bool load = share(timeline.live_at_longest_pause(), timeline.live()) >= kLeastBase ||
                    (freed_share >= kGivenUp && on_another_scale_after_the_pause(timeline));
  return long_enough && timeline.new_share_after_pause() >= kNewSizes && load;
}

// The last time that live memory was back at the trough. Growth that goes on is near its trough only as it begins.
std::optional<Stretch> last_return(const Timeline& timeline,
                                   std::vector<Stretch> units,
                                   double rise) {
  if (units.empty() || rise <= 0) {
    return std::nullopt;
  }
  // The unit under way may have fallen further than the last complete one.
  const std::uint64_t complete = units.back().allocations;
  std::copy_if(timeline.windows().begin(),
               timeline.windows().end(),
               std::back_inserter(units),
               [&](const Stretch& window) { return window.allocations > complete; });
  const auto lowest =
      std::min_element(units.begin(), units.end(), [](const Stretch& a, const Stretch& b) {
        return a.min_live < b.min_live;
      });
  std::optional<Stretch> found;
  std::uint64_t highest = 0;
  for (const Stretch& unit : units) {
    const auto over = static_cast<double>(unit.min_live - lowest->min_live);
    const auto fell = static_cast<double>(highest) - static_cast<double>(unit.min_live);
    if (over <= kAtTrough * rise && fell >= kAtTrough * rise) {
      found = unit;
    }
    highest = std::max(highest, unit.min_live);
  }
  return found;
}

// Cycles that are a small part of the work are not what it consists of, and prove no repetition.
void look_at_cycles(const Timeline& timeline,
                    std::uint64_t begin,
                    const std::vector<std::uint64_t>& pauses,
                    Since* since) {
  std::vector<std::uint64_t> ends;
  std::vector<double> sizes;
  for (const Stretch& cycle : timeline.cycles()) {
    if (cycle.allocations > begin) {
      sizes.push_back(
          static_cast<double>(cycle.allocations - (ends.empty() ? begin : ends.back())));
      ends.push_back(cycle.allocations);
    }
  }
  if (ends.empty() ||
      (timeline.cycles().merges() == 0 && (ends.back() - ends.front()) * kCovered < since->work)) {
    return;
  }
  since->cycles = since->returned ? ends.size() : timeline.cycle_count();
  since->cycle_allocations = static_cast<std::uint64_t>(median(std::move(sizes)));
  for (std::size_t i = (ends.size() + 1) / 2; i < ends.size(); ++i) {
    const auto pause = std::upper_bound(pauses.begin(), pauses.end(), ends[i - 1]);
    since->later_paused += pause != pauses.end() && *pause <= ends[i] ? 1U : 0U;
    ++since->later_cycles;
  }
}

Since since_of(const Timeline& timeline,
               const Signals& s,
               const std::vector<Stretch>& units,
               const std::vector<std::uint64_t>& pauses) {
  Since since;
  since.work = s.work;
  since.turnover = s.turnover;
  std::uint64_t begin = timeline.allocations_at_first_churn();
  if (const std::optional<Stretch> trough = last_return(timeline, units, s.rise)) {
    since.returned = true;
    begin = trough->allocations;
    since.work = timeline.allocations() - begin;
    since.turnover = share(
        timeline.allocated_bytes() - trough->allocated_bytes,
        timeline.live() > trough->min_live ? timeline.live() - trough->min_live : timeline.live());
  }
  look_at_cycles(timeline, begin, pauses, &since);
  return since;
}

void look_at_trends(const Timeline& timeline, const std::vector<Stretch>& units, Signals* found) {
  Signals& s = *found;
  std::vector<Point> floors;
  std::vector<Point> tops;
  std::vector<Point> requests;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const auto x = static_cast<double>(units[i].allocations);
    floors.push_back({x, static_cast<double>(units[i].min_live)});
    tops.push_back({x, static_cast<double>(units[i].max_live)});
    s.requests_largest = std::max(s.requests_largest, units[i].largest_request);
    requests.push_back({x, static_cast<double>(units[i].largest_request)});
  }
  s.floors = theil_sen(floors);
  const std::vector<Point> later(floors.begin() + static_cast<std::ptrdiff_t>(floors.size() / 2),
                                 floors.end());
  s.goes_on = theil_sen(later).slope >= kLaterShare * s.floors.slope;
  s.tops = theil_sen(tops);
  s.requests = theil_sen(requests);
  // Lines overshoot what they lie through: no more than what was live at the highest of the lows.
  s.rise = std::min(s.floors.slope * (floors.back().x - floors.front().x),
                    std::max_element(floors.begin(), floors.end(), [](Point a, Point b) {
                      return a.y < b.y;
                    })->y);
  s.requests_rise = s.requests.slope * (requests.back().x - requests.front().x);
  s.base = units.front().min_live;
  s.same_blocks = same_blocks_are_larger(s, units);
  s.rise_units = s.units;
  const double since_first = rise_since_first(timeline, s.floors, units.back());
  if (s.floors.consistency >= kStrict && since_first > s.rise) {
    s.rise = since_first;
    s.rise_units = s.cycles;
  }
}

}  // namespace

Signals signals_of(const Timeline& timeline, const std::vector<std::uint64_t>& pauses) {
  Signals s;
  s.history = timeline.allocations() >= 2;
  s.cycles = timeline.cycle_count();
  s.freed_share = share(timeline.freed_bytes(), timeline.allocated_bytes());
  s.base_share = timeline.live_at_first_churn() == 0
                     ? 1.0
                     : share(timeline.live_at_first_churn(), timeline.live());
  const std::uint64_t base = timeline.live_at_first_churn();
  s.turnover = share(timeline.allocated_since_churn(),
                     timeline.live() > base ? timeline.live() - base : timeline.live());
  s.work = timeline.allocations_since_churn();
  constexpr std::uint64_t kFew = 10;
  s.few_frees = timeline.frees() * kFew < timeline.allocations();
  s.at_once = timeline.allocations_at_first_churn() < kAtOnce;
  s.stepped = load_ends_at_a_pause(timeline, s.freed_share);
  for (const Stretch& window : timeline.windows()) {
    s.largest_before = std::max(s.largest_before, window.largest_request);
  }
  for (const Stretch& cycle : timeline.cycles()) {
    s.highest_before = std::max(s.highest_before, cycle.max_live);
  }
  const std::vector<Stretch> all = units_of(timeline);
  std::vector<Stretch> units = all;
  leave_first_third(&units);
  s.units = units.size();
  if (units.size() >= kLeastUnits) {
    look_at_trends(timeline, units, &s);
  }
  s.since = since_of(timeline, s, all, pauses);
  return s;
}

}  // namespace nofrag
