#include "trace/record/record_rewriter.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <nofrag/trace_format.h>

#include "trace/packed_codec.h"
#include "trace/record/record_codec.h"
#include "trace/record/record_output.h"
#include "trace/record/recording.h"
#include "trace/stacks/stack_rows.h"

namespace nofrag {
namespace {

constexpr std::size_t kEventsARewrittenBlock = 65536;
constexpr std::uint64_t kTicksAMicrosecond = 1000;

class Rewriter {
 public:
  Rewriter(const Trace& trace, const std::function<bool(std::string_view)>& sink)
      : trace_(trace), from_(*trace.recording), sink_(sink) {}

  bool write() {
    std::map<std::string, std::string> info = from_.info;
    info["clock"] = "monotonic";
    info["times_from_0"] = "yes";
    info.erase("clock_tick");
    info.erase("clock_ns");
    collect();
    return sink_(packed_file_header()) && write_rows(info) && write_events() &&
           sink_(recording_stop_block(NOFRAG_TRACE_STOP_ASKED, events_.size(), from_.lost));
  }

 private:
  // Never the same tick twice: the order is that of the trace.
  std::uint64_t tick_of(std::uint64_t time_us) {
    last_tick_ = std::max(last_tick_ + 1, time_us * kTicksAMicrosecond);
    return last_tick_;
  }

  void collect() {
    std::size_t next_note = 0;
    std::size_t next_mark = 0;
    for (std::size_t i = 0; i <= trace_.events.size(); ++i) {
      for (; next_note < from_.notes.size() && from_.notes[next_note].before <= i; ++next_note) {
        const Recording::Note& note = from_.notes[next_note];
        events_.push_back(note.event);
        events_.back().tick = tick_of(note.time_us);
      }
      for (; next_mark < from_.marks.size() && from_.marks[next_mark].before <= i; ++next_mark) {
        mark_ticks_.push_back(tick_of(from_.marks[next_mark].time_us));
      }
      if (i < trace_.events.size()) {
        add(trace_.events[i], from_.event_threads[i]);
      }
    }
  }

  void add(const TraceEvent& event, std::uint16_t thread) {
    const Recording::Block& block = from_.blocks[event.block];
    RecordEvent recorded{};
    recorded.tick = tick_of(event.time_us);
    recorded.address = block.address;
    recorded.device = block.device;
    recorded.thread = thread;
    if (event.is_free()) {
      recorded.kind = NOFRAG_TRACE_RECORD_FREE;
    } else {
      recorded.kind = static_cast<std::uint8_t>(block.existing ? NOFRAG_TRACE_RECORD_EXISTING
                                                               : NOFRAG_TRACE_RECORD_ALLOC);
      recorded.size = event.size;
      recorded.slack = block.slack;
      recorded.site = block.site;
      recorded.stream = trace_.streams[event.stream()];
      recorded.pool_first = block.pool_first;
      recorded.pool_second = block.pool_second;
    }
    events_.push_back(recorded);
  }

  // The sites with the names that their stacks have got meanwhile: another machine may not have the modules.
  [[nodiscard]] std::map<std::uint32_t, std::vector<std::string>> names() const {
    auto named = from_.sites;
    if (!trace_.sites.empty() && !trace_.site_frames.empty()) {
      for (std::size_t block = 0; block < from_.blocks.size(); ++block) {
        const auto& frames = trace_.site_frames[trace_.sites[block]];
        if (from_.blocks[block].site != 0 && !frames.empty()) {
          named.try_emplace(from_.blocks[block].site, frames);
        }
      }
    }
    return named;
  }

  bool put(nofrag_trace_block_kind kind, std::string_view payload, std::size_t items) {
    return items == 0 || sink_(RecordOutput::make_block(kind, payload, items).bytes);
  }

  bool write_rows(const std::map<std::string, std::string>& info) {
    std::string infos;
    for (const auto& [name, value] : info) {
      append_text(name, &infos);
      append_text(value, &infos);
    }
    std::string threads;
    for (const auto& [number, thread] : from_.threads) {
      append_varint(number, &threads);
      append_varint(thread.kernel_id, &threads);
      append_text(thread.name, &threads);
    }
    const auto named = names();
    std::string sites;
    for (const auto& [number, frames] : named) {
      append_varint(number, &sites);
      append_varint(frames.size(), &sites);
      for (const std::string& frame : frames) {
        append_text(frame, &sites);
      }
    }
    std::string modules;
    for (const auto& [number, module] : from_.modules) {
      append_module(number, module, &modules);
    }
    std::string stacks;
    for (const auto& [site, stack] : from_.stacks) {
      append_stack(site, stack, &stacks);
    }
    std::string ranges;
    for (const Recording::RangeMoment& moment : from_.range_moments) {
      append_varint(moment.time_us * kTicksAMicrosecond, &ranges);
      append_varint(moment.thread, &ranges);
      append_varint(moment.kind, &ranges);
      append_varint(moment.key, &ranges);
      append_text(moment.name, &ranges);
    }
    std::string marks;
    for (std::size_t i = 0; i < from_.marks.size(); ++i) {
      append_varint(mark_ticks_[i], &marks);
      append_varint(from_.marks[i].thread, &marks);
      append_text(from_.marks[i].text, &marks);
    }
    return put(NOFRAG_TRACE_BLOCK_INFO, infos, info.size()) &&
           put(NOFRAG_TRACE_BLOCK_THREADS, threads, from_.threads.size()) &&
           put(NOFRAG_TRACE_BLOCK_SITES, sites, named.size()) &&
           put(NOFRAG_TRACE_BLOCK_MODULES, modules, from_.modules.size()) &&
           put(NOFRAG_TRACE_BLOCK_STACKS, stacks, from_.stacks.size()) &&
           put(NOFRAG_TRACE_BLOCK_RANGES, ranges, from_.range_moments.size()) &&
           put(NOFRAG_TRACE_BLOCK_MARKS, marks, from_.marks.size());
  }

  bool write_events() {
    const std::span<const RecordEvent> all(events_);
    bool written = true;
    for (std::size_t first = 0; written && first < all.size(); first += kEventsARewrittenBlock) {
      const auto some = all.subspan(first, std::min(kEventsARewrittenBlock, all.size() - first));
      const std::uint64_t tick = some.back().tick;
      written = put(NOFRAG_TRACE_BLOCK_RECORD, encode_record(some, {tick, tick}), some.size());
    }
    return written;
  }

  const Trace& trace_;
  const Recording& from_;
  const std::function<bool(std::string_view)>& sink_;
  std::vector<RecordEvent> events_;
  std::vector<std::uint64_t> mark_ticks_;
  std::uint64_t last_tick_ = 0;
};

}  // namespace

bool write_recording(const Trace& trace, const std::function<bool(std::string_view)>& sink) {
  return Rewriter(trace, sink).write();
}

}  // namespace nofrag
