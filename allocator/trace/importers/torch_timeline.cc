// torch.profiler's memory timeline: the raw form lists events without addresses, the other form only totals.
#include <algorithm>
#include <map>
#include <utility>

#include "trace/importers/importer.h"
#include "trace/importers/json_stream.h"
#include "trace/trace_builder.h"

namespace nofrag {
namespace {

constexpr const char* kTimelineExpected =
    "a memory timeline of torch.profiler: [[time, action, bytes, category], ...] (.raw.json) or "
    "[times, sizes] (.json)";

// PyTorch's numbers of actions.
constexpr std::int64_t kPreexisting = 1;
constexpr std::int64_t kCreate = 2;
constexpr std::int64_t kIncrementVersion = 3;
constexpr std::int64_t kDestroy = 4;

struct Row {
  std::int64_t time_ns;
  std::int64_t action;
  std::int64_t bytes;
  std::int64_t category;
  std::uint64_t place;
};

// Both forms as they stand; which one it is shows at the third level.
class TimelineHandler final : public JsonHandler {
 public:
  explicit TimelineHandler(const std::string& name) : name_(name) {}

  bool open(char bracket, std::string_view /*key*/) override {
    if (bracket != '[' || depth() > 2) {
      return fail(
          name_, bracket == '{' ? "an object" : "a fourth level of lists", kTimelineExpected);
    }
    if (depth() == 2 && lists_ != 2) {
      return fail(name_, "a list in the list number " + std::to_string(lists_), kTimelineExpected);
    }
    if (depth() == 1) {
      ++lists_;
      numbers_.clear();
    } else if (depth() == 2) {
      if (!is_totals) {
        // The first list was times, and no event.
        is_totals = true;
        rows_are_totals();
      }
      totals.emplace_back(0, offset());
    }
    return true;
  }

  bool close(char /*bracket*/) override {
    if (depth() != 1) {
      return true;
    }
    if (lists_ == 1) {
      first_ = numbers_;
      first_place_ = offset();
    }
    if (is_totals) {
      return lists_ == 2 || fail(name_, "a third list", kTimelineExpected);
    }
    if (lists_ > 1 && numbers_.size() != 4) {
      // A timeline of no moments is two empty lists.
      return fail(
          name_, "an event of " + std::to_string(numbers_.size()) + " numbers", kTimelineExpected);
    }
    if (lists_ > 1) {
      add_row(numbers_, offset());
    }
    return true;
  }

  bool scalar(std::string_view /*key*/, const JsonScalar& value) override {
    const std::optional<std::int64_t> number = value.as_signed();
    if (!number || depth() < 2) {
      return fail(name_, "something else than a whole number in a list", kTimelineExpected);
    }
    if (depth() == 2) {
      numbers_.push_back(*number);
    } else if (*number < 0 || *number > (std::int64_t{1} << 60)) {
      return fail(name_, "a total of " + std::to_string(*number), "bytes from 0 to 2^60");
    } else {
      totals.back().first += static_cast<std::uint64_t>(*number);
    }
    return true;
  }

  // The first list is an event like the others, if it is a timeline of events.
  bool finish() {
    if (is_totals) {
      for (const std::int64_t time : times) {
        if (time > (std::int64_t{1} << 53)) {
          return fail(name_, "time " + std::to_string(time), "microseconds of at most 2^53");
        }
      }
      return times.size() == totals.size() || fail(name_,
                                                   std::to_string(times.size()) + " times and " +
                                                       std::to_string(totals.size()) + " sizes",
                                                   "as many of each");
    }
    if (lists_ > 0 && first_.size() != 4) {
      return fail(
          name_, "a list of " + std::to_string(first_.size()) + " numbers", kTimelineExpected);
    }
    if (lists_ > 0) {
      add_row(first_, first_place_);
      std::rotate(rows.begin(), rows.end() - 1, rows.end());
    }
    return !rows.empty() || fail(name_, "no event", kTimelineExpected);
  }

  bool is_totals = false;
  std::vector<Row> rows;
  std::vector<std::int64_t> times;                              // microseconds
  std::vector<std::pair<std::uint64_t, std::uint64_t>> totals;  // bytes live, place

 private:
  void add_row(const std::vector<std::int64_t>& numbers, std::uint64_t place) {
    rows.push_back({numbers[0], numbers[1], numbers[2], numbers[3], place});
  }
  void rows_are_totals() { times = std::move(first_); }

  const std::string& name_;
  std::size_t lists_ = 0;
  std::vector<std::int64_t> numbers_;
  std::vector<std::int64_t> first_;
  std::uint64_t first_place_ = 0;
};

// Pairs what ends with what began: the latest of the same size and category.
class RowMatcher {
 public:
  RowMatcher(const std::vector<Row>& rows, const std::string& name) : rows_(rows), name_(name) {}

  ImportError match(Trace* trace) {
    const auto first =
        std::find_if(rows_.begin(), rows_.end(), [](const Row& row) { return row.time_ns >= 0; });
    now_us_ = first == rows_.end() ? 0 : static_cast<std::uint64_t>(first->time_ns) / 1000;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      if (row.time_ns >= 0) {
        // In the order of the rows: they were sorted by whoever wrote them.
        now_us_ = std::max(now_us_, static_cast<std::uint64_t>(row.time_ns) / 1000);
      }
      const std::uint64_t size = magnitude(row.bytes);
      bool accepted = true;
      if (row.action == kPreexisting || row.action == kCreate) {
        accepted = begin(size, row.category);
      } else if (row.action == kDestroy) {
        accepted = end(size, row.category);
      } else if (row.action != kIncrementVersion) {
        return error_at_byte(name_,
                             row.place,
                             "action " + std::to_string(row.action),
                             "actions 1 to 4: preexisting, create, increment version, destroy");
      } else if (row.bytes > 0 && pair_before(i)) {
        move(size, rows_[i - 1].category, row.category);
      }
      if (!accepted) {
        return error_at_byte(
            name_, row.place, builder_.problem().found, builder_.problem().expected);
      }
    }
    *trace = builder_.finish(TraceFormat::kTimeline);
    return std::nullopt;
  }
  [[nodiscard]] std::uint64_t unknown_ends() const { return unknown_ends_; }

 private:
  using Key = std::pair<std::uint64_t, std::int64_t>;  // size, category

  static std::uint64_t magnitude(std::int64_t bytes) {
    return bytes < 0 ? ~static_cast<std::uint64_t>(bytes) + 1 : static_cast<std::uint64_t>(bytes);
  }
  [[nodiscard]] bool pair_before(std::size_t i) const {
    return i > 0 && rows_[i - 1].action == kIncrementVersion &&
           magnitude(rows_[i - 1].bytes) == magnitude(rows_[i].bytes) && rows_[i - 1].bytes < 0;
  }

  bool begin(std::uint64_t size, std::int64_t category) {
    const std::uint64_t id = builder_.block_count();
    live_[{size, category}].push_back(id);
    return builder_.add_allocation(now_us_, id, size, 0);
  }
  // A version that changes its category changes that of one block.
  void move(std::uint64_t size, std::int64_t from, std::int64_t to) {
    std::vector<std::uint64_t>& source = live_[{size, from}];
    if (from == to || source.empty()) {
      return;
    }
    const std::uint64_t block = source.back();
    source.pop_back();
    live_[{size, to}].push_back(block);
  }
  bool end(std::uint64_t size, std::int64_t category) {
    std::vector<std::uint64_t>* from = &live_[{size, category}];
    if (from->empty()) {
      // Its category changed where no version shows it.
      auto other = live_.lower_bound({size, INT64_MIN});
      while (other != live_.end() && other->first.first == size && other->second.empty()) {
        ++other;
      }
      if (other == live_.end() || other->first.first != size) {
        ++unknown_ends_;
        return true;
      }
      from = &other->second;
    }
    const std::uint64_t block = from->back();
    from->pop_back();
    return builder_.add_free(now_us_, block, size, 0);
  }

  const std::vector<Row>& rows_;
  const std::string& name_;
  TraceBuilder builder_{TraceUnit::kEvent};
  std::uint64_t now_us_ = 0;
  std::map<Key, std::vector<std::uint64_t>> live_;
  std::uint64_t unknown_ends_ = 0;
};

// Only the sum is known: what it rises by is taken for blocks, what it falls by for the end of the latest.
// Begin and end are numbers of moments.
std::vector<Lifetime> lifetimes_of_totals(const TimelineHandler& timeline) {
  struct Piece {
    std::uint64_t begin;
    std::uint64_t size;
    std::uint64_t place;
  };
  std::vector<Lifetime> lifetimes;
  std::vector<Piece> live;
  std::uint64_t before = 0;
  const auto end_piece = [&](const Piece& piece, std::uint64_t size, std::uint64_t end) {
    lifetimes.push_back({piece.begin, end, size, lifetimes.size(), piece.place});
  };
  for (std::size_t i = 0; i < timeline.times.size(); ++i) {
    const auto [now, place] = timeline.totals[i];
    if (now > before) {
      live.push_back({i, now - before, place});
    }
    for (std::uint64_t left = before > now ? before - now : 0; left > 0;) {
      Piece& last = live.back();
      const std::uint64_t part = std::min(left, last.size);
      end_piece(last, part, i);
      left -= part;
      last.size -= part;
      if (last.size == 0) {
        live.pop_back();
      }
    }
    before = now;
  }
  for (const Piece& piece : live) {
    end_piece(piece, piece.size, kNeverEnds);
  }
  return lifetimes;
}

// The trace's times are numbers of moments; these are the moments.
void give_times(const std::vector<std::int64_t>& times, Trace* trace) {
  std::uint64_t now = 0;
  for (TraceEvent& event : trace->events) {
    const std::int64_t time = times[event.time_us];
    now = std::max(now, static_cast<std::uint64_t>(std::max<std::int64_t>(time, 0)));
    event.time_us = now;
  }
}

}  // namespace

ImportError import_torch_timeline(ByteWindow& input,
                                  const std::string& name,
                                  std::vector<Trace>* traces) {
  TimelineHandler timeline(name);
  if (ImportError error = read_json(input, name, kTimelineExpected, timeline)) {
    return error;
  }
  if (!timeline.finish()) {
    return timeline.error();
  }
  std::vector<std::string> notes = {
      "the timeline has neither addresses nor streams: all is on stream 0"};
  Trace trace;
  if (timeline.is_totals) {
    EventList::Problem problem;
    if (!trace_of_lifetimes(
            lifetimes_of_totals(timeline), TraceFormat::kTimeline, &trace, &problem)) {
      return error_at_byte(name, problem.place, problem.found, problem.expected);
    }
    give_times(timeline.times, &trace);
    notes.emplace_back(
        "the timeline has totals only: what they rise by is one block, what they fall by ends the "
        "latest "
        "ones; export it to a name that ends in .raw.json.gz for single blocks");
  } else {
    RowMatcher matcher(timeline.rows, name);
    if (ImportError error = matcher.match(&trace)) {
      return error;
    }
    notes.emplace_back(
        "which free ends which block is found by size and category, the latest first");
    if (matcher.unknown_ends() > 0) {
      notes.push_back(counted(matcher.unknown_ends(), "free", "frees") +
                      " of no known block left out");
    }
  }
  if (trace.events.empty()) {
    return error_at_byte(name, 0, "a timeline in which nothing is ever live", kTimelineExpected);
  }
  trace.warnings = std::move(notes);
  traces->clear();
  traces->push_back(std::move(trace));
  return std::nullopt;
}

}  // namespace nofrag
