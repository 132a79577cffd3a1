// RecordReader: the blocks of a recording, put together to a Trace.
//
// Events come from the file in about the order in which they happened, several threads' mixed. They are sorted by
// their ticks. Where two ticks are wrong (clocks of two processors that differ, a lost event), what must be true
// decides: an address is given out again only after its free.
// Owns: the events until finish(). Layer: trace. Units: as in trace.h.
// Invariants: the events that it makes pass TraceBuilder like those of any format.
// Threads: none. Failure: take() and finish() say false and what is wrong; what had to be mended is counted, and
// said in the trace's warnings. Cost: 64 bytes an event while reading; a sort of what is nearly sorted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trace/record/record_event.h"
#include "trace/record/recording.h"
#include "trace/trace.h"
#include "trace/trace_builder.h"

namespace nofrag {

class RecordReader {
 public:
  // One of the blocks that only recordings have?
  static bool knows(std::uint16_t kind);
  // *last is set by the stop block.
  bool take(std::uint16_t kind,
            std::uint32_t items,
            std::string_view payload,
            bool* last,
            std::string* why);
  [[nodiscard]] bool any() const { return recording_ != nullptr; }
  [[nodiscard]] std::uint64_t event_count() const { return events_.size(); }

  // `torn`: how the file ends before its time; empty if it is whole.
  bool finish(const std::string& torn, Trace* trace, std::string* why);
  // Why finish said false: there was no allocation, and no request that failed.
  [[nodiscard]] bool told_nothing() const { return told_nothing_; }

 private:
  using Key = std::uint64_t;  // device and address
  struct RawMark {
    std::uint64_t tick = 0;
    std::uint16_t thread = 0;
    std::string text;
  };
  struct RawRange {
    std::uint64_t tick = 0;
    Recording::RangeMoment moment;
  };

  bool take_texts(std::uint16_t kind, std::uint32_t items, std::string_view payload);
  [[nodiscard]] ClockPair first_clock() const;
  [[nodiscard]] std::uint64_t time_of(std::uint64_t tick) const;
  [[nodiscard]] std::uint64_t time_at(std::uint64_t tick) const;
  bool take_ranges(std::uint32_t items, std::string_view payload);
  void place_ranges();
  bool play(TraceBuilder* builder);
  bool allocate(TraceBuilder* builder, std::size_t at);
  bool release(TraceBuilder* builder, std::size_t at, std::uint64_t block);
  bool free(TraceBuilder* builder, std::size_t at);
  [[nodiscard]] std::size_t find_later(std::size_t at, bool free) const;
  void note(const RecordEvent& event, std::uint64_t before);
  [[nodiscard]] bool any_failure() const;
  void number_streams(Trace* trace);
  void find_peak_held(const Trace& trace);
  void add_warnings(const std::string& torn, Trace* trace) const;

  std::unique_ptr<Recording> recording_;
  std::vector<RecordEvent> events_;
  std::vector<RawMark> marks_;
  std::vector<RawRange> ranges_;
  ClockPair first_clock_;
  ClockPair last_clock_;
  std::uint64_t stop_reason_ = 0;
  bool told_nothing_ = false;

  // While playing.
  struct Live {
    std::uint64_t block = 0;
    std::uint64_t stream = 0;  // that used it last, as far as known
  };
  std::unordered_map<Key, Live> live_;
  std::vector<bool> done_;  // events played ahead of their turn
  std::uint64_t now_us_ = 0;
  std::uint64_t first_tick_ = 0;
  double us_a_tick_ = 0;
  bool counts_ns_ = false;  // a tick is a nanosecond
  std::map<std::uint8_t, std::uint64_t> reserved_;
  std::uint64_t mended_ = 0;   // played in another order than their ticks'
  std::uint64_t orphans_ = 0;  // frees of blocks that were never seen
  std::uint64_t assumed_ = 0;  // frees that were not seen
};

}  // namespace nofrag
