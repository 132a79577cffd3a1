#include "cli/explain/hindsight.h"

#include <algorithm>
#include <vector>

namespace nofrag {
namespace {

// What comes again came so often, and has at most so many events, for the search's sake.
constexpr std::size_t kLeastRepeats = 3;
constexpr std::size_t kLongest = 2048;
// It is looked for among the last events, which hold some of the longest.
constexpr std::size_t kSearched = 4 * kLongest;
// Frees that begin before so many allocations are those of a load.
constexpr std::uint64_t kAtOnce = 32;
// Before the longest pause, the same so often, or more times than a load has layers, is no load.
constexpr std::uint64_t kRepeated = 7;
constexpr std::uint64_t kMostLayers = 96;
constexpr std::uint64_t kLeastTemporaries = 4;
constexpr std::uint64_t kLeastWaitUs = 500;
constexpr std::uint64_t kWaitOverUsual = 10;
constexpr double kClearlyLarger = 1.1;
// Of a rise, so much is nearly all.
constexpr double kNearlyAll = 0.8;
// The work is over when less than this share of what it holds is still to be allocated.
constexpr std::uint64_t kEndOfWork = 10;
// In so many repetitions one event may be another.
constexpr std::size_t kOneOther = 10;
// The rest of one, and something else.
constexpr std::size_t kMostBetween = 2;

std::vector<bool> freed_blocks(const Trace& trace, std::uint64_t begin, std::uint64_t end) {
  std::vector<bool> freed(trace.allocations);
  for (std::uint64_t i = begin; i < end; ++i) {
    if (trace.events[i].is_free()) {
      freed[trace.events[i].block] = true;
    }
  }
  return freed;
}

// What is held beside the base.
struct Held {
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t kept = 0;  // bytes that are never freed

  [[nodiscard]] double mean() const {
    return static_cast<double>(bytes) / static_cast<double>(blocks);
  }
};

void note_lower(const Held& now, std::optional<Held>* lowest) {
  if (!*lowest || now.bytes < (*lowest)->bytes) {
    *lowest = now;
  }
}

bool rose_by_what_stays(const Held& before, const Held& after) {
  return after.bytes > before.bytes && after.kept > before.kept &&
         static_cast<double>(after.kept - before.kept) >=
             kNearlyAll * static_cast<double>(after.bytes - before.bytes);
}

// The middle is the lowest of the middle third, so that what a step holds for a moment is no growth.
void compare_middle_with_end(const Trace& trace,
                             std::uint64_t begin,
                             std::uint64_t end,
                             const std::vector<bool>& freed,
                             Hindsight* found) {
  Held now;
  std::optional<Held> middle;
  std::optional<Held> early;  // of the second sixth
  std::optional<Held> late;   // of the fourth
  std::vector<bool> young(trace.allocations);
  const std::uint64_t third = (end - begin) / 3;
  for (std::uint64_t i = begin; i < end; ++i) {
    const TraceEvent& event = trace.events[i];
    if (!event.is_free()) {
      young[event.block] = true;
      now.bytes += event.size;
      ++now.blocks;
      now.kept += freed[event.block] ? 0 : event.size;
    } else if (young[event.block]) {
      now.bytes -= event.size;
      --now.blocks;
    }
    if (i >= begin + third && i < end - third) {
      note_lower(now, &middle);
      if (i >= begin + third + third / 2) {
        note_lower(now, &late);
      }
    } else if (i >= begin + third / 2 && i < begin + third) {
      note_lower(now, &early);
    }
  }
  if (middle && middle->bytes > 0) {
    found->growth_kept = static_cast<double>(middle->kept) / static_cast<double>(middle->bytes);
    found->rise_kept = early && late && rose_by_what_stays(*early, *late);
    found->growth_larger = now.blocks > 0 && now.mean() >= kClearlyLarger * middle->mean();
  }
}

// What an event is to the work: a block that stays may have any size.
using Symbols = std::vector<std::uint64_t>;
constexpr std::uint64_t kStays = 0;

Symbols symbols_of(const Trace& trace,
                   std::uint64_t begin,
                   std::uint64_t end,
                   const std::vector<bool>& freed) {
  Symbols symbols;
  symbols.reserve(end - begin);
  for (std::uint64_t i = begin; i < end; ++i) {
    const TraceEvent& event = trace.events[i];
    const bool stays = !event.is_free() && !freed[event.block];
    symbols.push_back(stays ? kStays : event.size * 2 + (event.is_free() ? 2 : 1));
  }
  return symbols;
}

bool is_allocation(std::uint64_t symbol) {
  return symbol % 2 == 1;
}

// Do the last events come again every `period`? Without the last one, which was under way.
bool comes_again(const Symbols& all, std::size_t period, std::size_t last) {
  const std::size_t end = all.size() - period;
  const std::size_t searched = std::min(end, last);
  const std::size_t allowed = searched / period / kOneOther;
  std::size_t others = 0;
  for (std::size_t i = end - searched; i + period < end && others <= allowed; ++i) {
    others += all[i] == all[i + period] ? 0U : 1U;
  }
  return others <= allowed;
}

// What the last whole one consists of.
Repeats repetition(const Symbols& all, std::size_t period) {
  const auto last = all.end() - static_cast<std::ptrdiff_t>(period);
  const auto first = last - static_cast<std::ptrdiff_t>(period);
  Repeats one;
  one.temporaries = static_cast<std::uint64_t>(std::count_if(first, last, is_allocation));
  one.allocations = one.temporaries + static_cast<std::uint64_t>(std::count(first, last, kStays));
  return one;
}

// A value that differs for what consists of other symbols, in whatever order.
std::uint64_t mixed(std::uint64_t symbol) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  const std::uint64_t once = (symbol + 1) * kOdd;
  return (once ^ (once >> 32)) * kOdd;
}

std::uint64_t sum_of(const Symbols& all, std::size_t first, std::size_t period) {
  std::uint64_t sum = 0;
  for (std::size_t i = first; i < first + period; ++i) {
    sum += mixed(all[i]);
  }
  return sum;
}

// A period of the work, and the stretch up to the end in which it came again.
struct Run {
  Repeats one;
  std::size_t first = 0;
};

// Backward from the end, as long as there is the same in it as in the last whole one. Something else may come between
// two, but hardly more than one takes: beyond it lies other work.
void count_run(const Symbols& all, std::size_t period, Run* run) {
  const std::uint64_t same = sum_of(all, all.size() - 2 * period, period);
  std::uint64_t here = sum_of(all, all.size() - period, period);
  std::size_t skipped = 0;
  std::size_t end = all.size();
  while (end >= period && skipped <= kMostBetween * period) {
    if (here != same) {
      ++skipped;
      --end;
      here -= mixed(all[end]);
      here += end >= period ? mixed(all[end - period]) : 0;
      continue;
    }
    ++run->one.times;
    skipped = 0;
    end -= period;
    run->first = end;
    here = end >= period ? sum_of(all, end - period, period) : 0;
  }
}

// Of what the last so many events show, the shortest, so that two of it are not taken for one. As many blocks go as
// come, or it is a part of a long row of equal ones.
Run find_run(const Symbols& all, std::size_t last) {
  const std::size_t longest = std::min({kLongest, all.size() / kLeastRepeats, last / 2});
  for (std::size_t period = 2; period <= longest; ++period) {
    if (!comes_again(all, period, last)) {
      continue;
    }
    Run found;
    found.one = repetition(all, period);
    if (found.one.temporaries == 0 || found.one.temporaries + found.one.allocations != period) {
      continue;
    }
    count_run(all, period, &found);
    return found;
  }
  return {};
}

// Gaps that stand out from the usual one, and are worth a wait, as the later half has them: the first of what comes again
// waits for what is loaded on the way.
std::uint64_t count_waits(const Trace& trace, std::uint64_t first, std::uint64_t end) {
  std::vector<std::uint64_t> gaps;
  for (std::uint64_t i = first + (end - first) / 2 + 1; i < end; ++i) {
    gaps.push_back(trace.events[i].time_us - trace.events[i - 1].time_us);
  }
  if (gaps.empty()) {
    return 0;
  }
  const auto middle = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2);
  std::nth_element(gaps.begin(), middle, gaps.end());
  const std::uint64_t wait = std::max(kLeastWaitUs, kWaitOverUsual * *middle);
  return 2 * static_cast<std::uint64_t>(std::count_if(
                 gaps.begin(), gaps.end(), [&](std::uint64_t gap) { return gap >= wait; }));
}

std::uint64_t after_longest_pause(const Trace& trace, std::uint64_t first, std::uint64_t end) {
  std::uint64_t longest = 0;
  for (std::uint64_t i = first + 1; i < end; ++i) {
    const std::uint64_t gap = trace.events[i].time_us - trace.events[i - 1].time_us;
    if (gap > longest) {
      longest = gap;
      first = i;
    }
  }
  return first;
}

// Loads keep a block for each that goes; steps come again more often, or pause, and keep less.
bool are_steps(const Repeats& same) {
  return same.temporaries >= kLeastTemporaries && same.allocations < 2 * same.temporaries &&
         (same.times > kMostLayers || (same.times >= kRepeated && 2 * same.waits >= same.times));
}

// Work begins with the first free; but where a load frees copies on the way, after the longest pause, unless steps were
// done before it.
std::uint64_t begin_of_work(const Trace& trace, std::uint64_t end, const std::vector<bool>& freed) {
  std::uint64_t first = 0;
  while (first < end && !trace.events[first].is_free()) {
    ++first;
  }
  if (first >= kAtOnce || end == 0) {
    return first;
  }
  const std::uint64_t pause = after_longest_pause(trace, first, end);
  // The load is among these.
  const Symbols before = symbols_of(trace, first, pause, freed);
  Run run = find_run(before, std::min(kSearched, before.size() / 2));
  run.one.waits = count_waits(trace, first + run.first, pause);
  return are_steps(run.one) ? first + run.first : pause;
}

}  // namespace

Hindsight look_back(const Trace& trace, std::uint64_t base, std::uint64_t end) {
  Hindsight found;
  const std::vector<bool> freed = freed_blocks(trace, 0, end);
  const std::uint64_t first = begin_of_work(trace, end, freed);
  if (base < end) {
    compare_middle_with_end(trace, base, end, freed, &found);
  }
  const Run run = find_run(symbols_of(trace, first, end, freed), kSearched);
  found.repeats = run.one;
  found.repeats.waits = run.one.times > 0 ? count_waits(trace, first + run.first, end) : 0;
  return found;
}

std::optional<Fate> look_ahead(const Trace& trace, std::uint64_t base, std::uint64_t now) {
  std::uint64_t end = trace.events.size();
  for (const TraceMark& mark : trace.marks) {
    end = mark.event > now ? std::min(end, mark.event) : end;
  }
  const auto each = [&](std::uint64_t first, std::uint64_t last, const auto& visit) {
    for (std::uint64_t i = first; i < last; ++i) {
      visit(trace.events[i]);
    }
  };
  std::vector<bool> grown(trace.allocations);
  Fate fate;
  each(base, now, [&](const TraceEvent& event) {
    if (!event.is_free()) {
      grown[event.block] = true;
      fate.stay += Bytes(event.size);
    } else if (grown[event.block]) {
      grown[event.block] = false;
      fate.stay -= Bytes(event.size);
    }
  });
  std::uint64_t to_come = 0;  // bytes
  each(now + 1, end, [&](const TraceEvent& event) { to_come += event.is_free() ? 0 : event.size; });
  if (fate.stay.is_zero() || to_come == 0) {
    return std::nullopt;
  }
  const std::uint64_t least = fate.stay.count() / kEndOfWork;
  Bytes came = Bytes(trace.events[now].size);
  Bytes went;
  each(now + 1, end, [&](const TraceEvent& event) {
    if (to_come < least) {
      return;
    }
    if (!event.is_free()) {
      came += Bytes(event.size);
      to_come -= event.size;
      return;
    }
    went += Bytes(event.size);
    fate.fall = went > came ? std::max(fate.fall, went - came) : fate.fall;
    if (grown[event.block]) {
      fate.given_back += Bytes(event.size);
      fate.stay -= Bytes(event.size);
    }
  });
  return fate;
}

}  // namespace nofrag
