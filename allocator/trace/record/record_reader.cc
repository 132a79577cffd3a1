#include "trace/record/record_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include <nofrag/trace_format.h>

#include "trace/record/record_codec.h"
#include "trace/stacks/stack_rows.h"

namespace nofrag {
namespace {

// How far an event may stand from its place: clocks of one machine differ by less.
constexpr std::size_t kFarthest = 4096;
constexpr std::uint64_t kNsAMicrosecond = 1000;

std::uint64_t key_of(const RecordEvent& event) {
  return event.address ^ (std::uint64_t{event.device} << 56);
}

bool is_allocation(const RecordEvent& event) {
  return event.kind == NOFRAG_TRACE_RECORD_ALLOC || event.kind == NOFRAG_TRACE_RECORD_EXISTING;
}

bool is_free(const RecordEvent& event) {
  return event.kind == NOFRAG_TRACE_RECORD_FREE;
}

bool next_number(VarintReader& reader, std::uint64_t most, std::uint64_t* value) {
  return reader.next(value) && *value <= most;
}

}  // namespace

bool RecordReader::knows(std::uint16_t kind) {
  return kind >= NOFRAG_TRACE_BLOCK_RECORD && kind <= NOFRAG_TRACE_BLOCK_RANGES;
}

bool RecordReader::take(std::uint16_t kind,
                        std::uint32_t items,
                        std::string_view payload,
                        bool* last,
                        std::string* why) {
  if (recording_ == nullptr) {
    recording_ = std::make_unique<Recording>();
  }
  if (kind == NOFRAG_TRACE_BLOCK_RECORD) {
    ClockPair clock = last_clock_;
    if (!decode_record(payload, items, &events_, &clock, why)) {
      return false;
    }
    first_clock_ = first_clock_.ns == 0 ? clock : first_clock_;
    last_clock_ = clock;
    return true;
  }
  if (kind == NOFRAG_TRACE_BLOCK_STOP) {
    if (payload.size() < sizeof(nofrag_trace_stop)) {
      *why = "a stop block of too few bytes";
      return false;
    }
    const auto events = load_little_endian<std::uint64_t>(payload, 0);
    recording_->lost = load_little_endian<std::uint64_t>(payload, 8);
    stop_reason_ = load_little_endian<std::uint64_t>(payload, 16);
    if (events != events_.size()) {
      *why = "a stop block that counts " + std::to_string(events) + " events where " +
             std::to_string(events_.size()) + " were read";
      return false;
    }
    recording_->whole = true;
    *last = true;
    return true;
  }
  if (kind == NOFRAG_TRACE_BLOCK_MODULES) {
    return decode_modules(payload, items, &recording_->modules, why);
  }
  if (kind == NOFRAG_TRACE_BLOCK_STACKS) {
    return decode_stacks(payload, items, recording_->modules, &recording_->stacks, why);
  }
  if (kind == NOFRAG_TRACE_BLOCK_RANGES) {
    *why = "broken ranges";
    return take_ranges(items, payload);
  }
  *why = "broken texts";
  return take_texts(kind, items, payload);
}

bool RecordReader::take_texts(std::uint16_t kind, std::uint32_t items, std::string_view payload) {
  constexpr std::uint64_t kMostThreads = std::numeric_limits<std::uint16_t>::max();
  constexpr std::uint64_t kMostSites = std::numeric_limits<std::uint32_t>::max();
  constexpr std::uint64_t kMostFrames = 1024;
  VarintReader reader(payload);
  for (std::uint32_t i = 0; i < items; ++i) {
    std::uint64_t number = 0;
    std::uint64_t second = 0;
    std::string text;
    if (kind == NOFRAG_TRACE_BLOCK_INFO) {
      if (!next_text(reader, &text) || !next_text(reader, &recording_->info[text])) {
        return false;
      }
    } else if (kind == NOFRAG_TRACE_BLOCK_MARKS) {
      if (!reader.next(&number) || !next_number(reader, kMostThreads, &second) ||
          !next_text(reader, &text)) {
        return false;
      }
      marks_.push_back({number, static_cast<std::uint16_t>(second), std::move(text)});
    } else if (kind == NOFRAG_TRACE_BLOCK_THREADS) {
      if (!next_number(reader, kMostThreads, &number) || !reader.next(&second) ||
          !next_text(reader, &text)) {
        return false;
      }
      recording_->threads[static_cast<std::uint16_t>(number)] = {second, std::move(text)};
    } else {
      if (!next_number(reader, kMostSites, &number) || !next_number(reader, kMostFrames, &second)) {
        return false;
      }
      std::vector<std::string> frames(second);
      for (std::string& frame : frames) {
        if (!next_text(reader, &frame)) {
          return false;
        }
      }
      recording_->sites[static_cast<std::uint32_t>(number)] = std::move(frames);
    }
  }
  return true;
}

bool RecordReader::take_ranges(std::uint32_t items, std::string_view payload) {
  VarintReader reader(payload);
  for (std::uint32_t i = 0; i < items; ++i) {
    std::uint64_t thread = 0;
    std::uint64_t kind = 0;
    RawRange range;
    if (!reader.next(&range.tick) ||
        !next_number(reader, std::numeric_limits<std::uint16_t>::max(), &thread) ||
        !next_number(reader, std::numeric_limits<std::uint8_t>::max(), &kind) ||
        !reader.next(&range.moment.key) || !next_text(reader, &range.moment.name)) {
      return false;
    }
    range.moment.thread = static_cast<std::uint16_t>(thread);
    range.moment.kind = static_cast<std::uint8_t>(kind);
    if (kind >= NOFRAG_TRACE_RANGE_PUSH && kind <= NOFRAG_TRACE_RANGE_END) {
      ranges_.push_back(std::move(range));
    }
  }
  return true;
}

void RecordReader::place_ranges() {
  std::stable_sort(
      ranges_.begin(), ranges_.end(), [](const auto& a, const auto& b) { return a.tick < b.tick; });
  for (RawRange& range : ranges_) {
    range.moment.time_us = time_at(range.tick);
    recording_->range_moments.push_back(std::move(range.moment));
  }
}

// Both clocks when the recording began, else at its first block.
ClockPair RecordReader::first_clock() const {
  ClockPair clock;
  for (const auto& [name, value] :
       {std::pair("clock_tick", &clock.tick), std::pair("clock_ns", &clock.ns)}) {
    const auto at = recording_->info.find(name);
    if (at == recording_->info.end()) {
      return first_clock_;
    }
    const char* const end = at->second.data() + at->second.size();
    if (const auto read = std::from_chars(at->second.data(), end, *value);
        read.ec != std::errc() || read.ptr != end) {
      return first_clock_;
    }
  }
  return clock;
}

// Never earlier than what was played before.
std::uint64_t RecordReader::time_of(std::uint64_t tick) const {
  return std::max(now_us_, time_at(tick));
}

std::uint64_t RecordReader::time_at(std::uint64_t tick) const {
  if (counts_ns_) {
    return tick > first_tick_ ? (tick - first_tick_) / kNsAMicrosecond : 0;
  }
  const double since = tick > first_tick_ ? static_cast<double>(tick - first_tick_) : 0.0;
  constexpr double kLatest = 1e18;  // far beyond what TraceBuilder takes
  return static_cast<std::uint64_t>(std::min(since * us_a_tick_, kLatest));
}

void RecordReader::note(const RecordEvent& event, std::uint64_t before) {
  if (event.kind == NOFRAG_TRACE_RECORD_CREATE || event.kind == NOFRAG_TRACE_RECORD_RELEASE) {
    std::uint64_t& reserved = reserved_[event.device];
    if (event.kind == NOFRAG_TRACE_RECORD_CREATE) {
      reserved += std::min(event.size, UINT64_MAX - reserved);
    } else {
      reserved -= std::min(event.size, reserved);
    }
    Bytes& peak = recording_->peak_reserved[event.device];
    peak = std::max(peak, Bytes(reserved));
  }
  std::uint32_t block = Recording::kNoBlock;
  if (event.kind == NOFRAG_TRACE_RECORD_STREAM) {
    if (const auto at = live_.find(key_of(event)); at != live_.end()) {
      at->second.stream = event.stream;
      block = static_cast<std::uint32_t>(at->second.block);
    }
  }
  recording_->notes.push_back({now_us_, before, block, 0, event});
}

// The next event of this address within reach, if it is of the wanted kind; else events_.size().
std::size_t RecordReader::find_later(std::size_t at, bool free) const {
  const std::uint64_t key = key_of(events_[at]);
  const std::size_t end = std::min(events_.size(), at + kFarthest);
  for (std::size_t i = at + 1; i < end; ++i) {
    const RecordEvent& event = events_[i];
    if (!done_[i] && key_of(event) == key && (is_free(event) || is_allocation(event))) {
      return is_free(event) == free ? i : events_.size();
    }
  }
  return events_.size();
}

bool RecordReader::release(TraceBuilder* builder, std::size_t at, std::uint64_t block) {
  const auto found = live_.find(key_of(events_[at]));
  const std::uint64_t stream = found->second.stream;
  live_.erase(found);
  recording_->event_threads.push_back(events_[at].thread);
  return builder->add_free_of_block(now_us_, block, stream);
}

bool RecordReader::allocate(TraceBuilder* builder, std::size_t at) {
  const RecordEvent& event = events_[at];
  if (const auto held = live_.find(key_of(event)); held != live_.end()) {
    // Somebody had it: its free comes a little late, or was lost.
    const std::size_t late = find_later(at, true);
    if (late < events_.size()) {
      done_[late] = true;
      ++mended_;
    } else {
      ++assumed_;
    }
    if (!release(builder, late < events_.size() ? late : at, held->second.block)) {
      return false;
    }
  }
  const std::uint64_t block = builder->block_count();
  live_[key_of(event)] = {block, event.stream};
  recording_->blocks.push_back({event.address,
                                event.pool_first,
                                event.pool_second,
                                event.slack,
                                event.site,
                                event.thread,
                                event.device,
                                event.kind == NOFRAG_TRACE_RECORD_EXISTING});
  recording_->event_threads.push_back(event.thread);
  return builder->add_allocation(now_us_, block, event.size, event.stream);
}

bool RecordReader::free(TraceBuilder* builder, std::size_t at) {
  if (!live_.contains(key_of(events_[at]))) {
    const std::size_t late = find_later(at, false);
    if (late == events_.size()) {
      ++orphans_;
      return true;
    }
    done_[late] = true;
    ++mended_;
    if (!allocate(builder, late)) {
      return false;
    }
  }
  return release(builder, at, live_.find(key_of(events_[at]))->second.block);
}

bool RecordReader::play(TraceBuilder* builder) {
  std::size_t next_mark = 0;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const RecordEvent& event = events_[i];
    for (; next_mark < marks_.size() && marks_[next_mark].tick <= event.tick; ++next_mark) {
      RawMark& mark = marks_[next_mark];
      recording_->marks.push_back(
          {time_of(mark.tick), builder->event_count(), mark.thread, std::move(mark.text)});
    }
    if (done_[i]) {
      continue;
    }
    now_us_ = time_of(event.tick);
    bool good = true;
    if (is_allocation(event)) {
      good = allocate(builder, i);
    } else if (is_free(event)) {
      good = free(builder, i);
    } else {
      note(event, builder->event_count());
    }
    if (!good) {
      return false;
    }
  }
  for (; next_mark < marks_.size(); ++next_mark) {
    RawMark& mark = marks_[next_mark];
    recording_->marks.push_back(
        {time_of(mark.tick), builder->event_count(), mark.thread, std::move(mark.text)});
  }
  return true;
}

bool RecordReader::finish(const std::string& torn, Trace* trace, std::string* why) {
  std::stable_sort(
      events_.begin(), events_.end(), [](const auto& a, const auto& b) { return a.tick < b.tick; });
  std::stable_sort(
      marks_.begin(), marks_.end(), [](const auto& a, const auto& b) { return a.tick < b.tick; });
  done_.assign(events_.size(), false);
  first_tick_ = events_.empty() ? 0 : events_.front().tick;
  // One rate for the whole recording: two clocks of one machine hardly drift apart.
  us_a_tick_ = 1.0 / static_cast<double>(kNsAMicrosecond);
  const ClockPair from = first_clock();
  counts_ns_ = recording_->info["clock"] == "monotonic";
  // A recording that was written again has times already.
  first_tick_ = recording_->info.contains("times_from_0") ? 0 : first_tick_;
  if (!counts_ns_ && last_clock_.tick > from.tick && last_clock_.ns > from.ns) {
    us_a_tick_ = static_cast<double>(last_clock_.ns - from.ns) /
                 static_cast<double>(last_clock_.tick - from.tick) /
                 static_cast<double>(kNsAMicrosecond);
  }
  TraceBuilder builder(TraceUnit::kEvent);
  if (!play(&builder)) {
    *why = "event " + std::to_string(builder.event_count()) + ": " + builder.problem().found;
    return false;
  }
  if (builder.event_count() == 0 && !any_failure()) {
    told_nothing_ = true;
    *why = torn.empty()
               ? "a recording without an allocation"
               : "a recording that ended before its first block of events (its process was "
                 "killed in its first moment, or has only begun)";
    return false;
  }
  *trace = builder.finish(TraceFormat::kNofrag);
  place_ranges();
  number_streams(trace);
  find_peak_held(*trace);
  add_warnings(torn, trace);
  trace->recording = std::move(recording_);
  return true;
}

// A request that failed is something to tell, though nothing was ever allocated.
bool RecordReader::any_failure() const {
  return std::any_of(events_.begin(), events_.end(), [](const RecordEvent& event) {
    return event.kind == NOFRAG_TRACE_RECORD_OUT_OF_MEMORY;
  });
}

void RecordReader::find_peak_held(const Trace& trace) {
  std::map<std::uint8_t, Bytes> held;
  for (const TraceEvent& event : trace.events) {
    const Recording::Block& block = recording_->blocks[event.block];
    const Bytes size = round_up(Bytes(event.size), kTraceRounding) + Bytes(block.slack);
    Bytes& now = held[block.device];
    now = event.is_free() ? now - size : now + size;
    Bytes& peak = recording_->peak_held[block.device];
    peak = std::max(peak, now);
  }
}

// Of notes: some streams allocate nothing.
void RecordReader::number_streams(Trace* trace) {
  std::unordered_map<std::uint64_t, std::uint32_t> numbers;
  for (const std::uint64_t stream : trace->streams) {
    numbers.try_emplace(stream, static_cast<std::uint32_t>(numbers.size()));
  }
  for (Recording::Note& note : recording_->notes) {
    const auto [at, is_new] =
        numbers.try_emplace(note.event.stream, static_cast<std::uint32_t>(numbers.size()));
    if (is_new) {
      trace->streams.push_back(note.event.stream);
    }
    note.stream = at->second;
  }
}

void RecordReader::add_warnings(const std::string& torn, Trace* trace) const {
  const auto warn = [trace](std::uint64_t count, const char* text) {
    if (count > 0) {
      trace->warnings.push_back(std::to_string(count) + text);
    }
  };
  if (!torn.empty()) {
    trace->warnings.push_back(torn);
  }
  if (stop_reason_ == NOFRAG_TRACE_STOP_MAX) {
    trace->warnings.emplace_back(
        "the recording ends where its file had the size that it may have (max=)");
  }
  warn(recording_->lost, " events could not be recorded");
  if (const auto lost = recording_->info.find("ranges_lost"); lost != recording_->info.end()) {
    trace->warnings.push_back("at least " + lost->second +
                              " beginnings and ends of the program's ranges could not be recorded");
  }
  if (const auto lost = recording_->info.find("stacks_lost"); lost != recording_->info.end()) {
    trace->warnings.push_back(
        "more different call stacks than the recorder keeps (those through a library that was "
        "closed count anew): at least " +
        lost->second + " allocations are without theirs");
  }
  warn(orphans_, " frees of blocks that the recording does not know are left out");
  warn(assumed_,
       " frees that the recording does not have are assumed where the address is used again");
}

}  // namespace nofrag
