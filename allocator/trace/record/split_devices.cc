#include "trace/record/split_devices.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include <nofrag/trace_format.h>

#include "base/checks.h"
#include "trace/record/recording.h"
#include "trace/trace_builder.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;

// The failures of one device, and its memory.
void take_failures(const Recording& recording, Trace* trace) {
  std::uint64_t reserved = 0;
  for (const Recording::Note& note : recording.notes) {
    const RecordEvent& event = note.event;
    if (event.kind == NOFRAG_TRACE_RECORD_CREATE) {
      reserved += std::min(event.size, UINT64_MAX - reserved);
    } else if (event.kind == NOFRAG_TRACE_RECORD_RELEASE) {
      reserved -= std::min(event.size, reserved);
    } else if (event.kind == NOFRAG_TRACE_RECORD_OUT_OF_MEMORY) {
      TraceMark mark;
      mark.event = note.before;
      mark.time_us = note.time_us;
      mark.requested = event.size;
      mark.reserved_bytes = reserved;
      if (event.detail > 0) {
        mark.free_bytes = (event.detail - std::uint64_t{1}) * kMib;
      }
      if (event.address > 0) {
        mark.limit_bytes = event.address;
      }
      trace->marks.push_back(mark);
    }
  }
  const auto total =
      recording.info.find("device." + std::to_string(trace->device) + ".total_bytes");
  if (total != recording.info.end()) {
    const std::string& text = total->second;
    std::from_chars(text.data(), text.data() + text.size(), trace->device_bytes);
  }
}

// One device's part of a recording.
class DevicePart {
 public:
  DevicePart(const Trace& whole, std::uint8_t device)
      : whole_(whole), from_(*whole.recording), device_(device) {}

  Trace take() {
    part_->info = from_.info;
    part_->threads = from_.threads;
    part_->sites = from_.sites;
    part_->modules = from_.modules;
    part_->stacks = from_.stacks;
    part_->range_moments = from_.range_moments;
    part_->lost = from_.lost;
    part_->whole = from_.whole;
    copy_peak(from_.peak_reserved, &part_->peak_reserved);
    copy_peak(from_.peak_held, &part_->peak_held);
    for (std::size_t i = 0; i < whole_.events.size(); ++i) {
      take_notes(i);
      take_event(i);
    }
    take_notes(whole_.events.size());
    Trace trace = builder_.finish(whole_.format);
    number_streams(&trace);
    trace.device = device_;
    take_failures(*part_, &trace);
    trace.warnings = whole_.warnings;
    trace.recording = std::move(part_);
    return trace;
  }

 private:
  void copy_peak(const std::map<std::uint8_t, Bytes>& from,
                 std::map<std::uint8_t, Bytes>* to) const {
    if (const auto at = from.find(device_); at != from.end()) {
      to->insert(*at);
    }
  }

  void take_event(std::size_t i) {
    const TraceEvent& event = whole_.events[i];
    const Recording::Block& block = from_.blocks[event.block];
    if (block.device != device_) {
      return;
    }
    const std::uint64_t stream = whole_.streams[event.stream()];
    bool good = false;
    if (event.is_free()) {
      good = builder_.add_free_of_block(event.time_us, numbers_.at(event.block), stream);
    } else {
      const std::uint64_t number = builder_.block_count();
      numbers_.emplace(event.block, number);
      part_->blocks.push_back(block);
      good = builder_.add_allocation(event.time_us, number, event.size, stream);
    }
    NOFRAG_CHECK(good, "a part of a sound trace is not sound");
    part_->event_threads.push_back(from_.event_threads[i]);
  }

  // Those that come before event i. A thread ends for all devices.
  void take_notes(std::size_t i) {
    for (; next_note_ < from_.notes.size() && from_.notes[next_note_].before <= i; ++next_note_) {
      Recording::Note note = from_.notes[next_note_];
      if (note.event.device != device_ && note.event.kind != NOFRAG_TRACE_RECORD_THREAD_END) {
        continue;
      }
      note.before = builder_.event_count();
      if (const auto at = numbers_.find(note.block); at != numbers_.end()) {
        note.block = static_cast<std::uint32_t>(at->second);
      }
      part_->notes.push_back(note);
    }
    for (; next_mark_ < from_.marks.size() && from_.marks[next_mark_].before <= i; ++next_mark_) {
      part_->marks.push_back(from_.marks[next_mark_]);
      part_->marks.back().before = builder_.event_count();
    }
  }

  // Notes name streams by the part's numbers.
  void number_streams(Trace* trace) const {
    std::unordered_map<std::uint64_t, std::uint32_t> numbers;
    for (const std::uint64_t stream : trace->streams) {
      numbers.try_emplace(stream, static_cast<std::uint32_t>(numbers.size()));
    }
    for (Recording::Note& note : part_->notes) {
      const auto [at, is_new] =
          numbers.try_emplace(note.event.stream, static_cast<std::uint32_t>(numbers.size()));
      if (is_new) {
        trace->streams.push_back(note.event.stream);
      }
      note.stream = at->second;
    }
  }

  const Trace& whole_;
  const Recording& from_;
  std::uint8_t device_;
  TraceBuilder builder_{TraceUnit::kEvent};
  std::unique_ptr<Recording> part_ = std::make_unique<Recording>();
  std::unordered_map<std::uint32_t, std::uint64_t> numbers_;  // of blocks, in the part
  std::size_t next_note_ = 0;
  std::size_t next_mark_ = 0;
};

}  // namespace

std::vector<Trace> split_by_device(Trace trace) {
  std::set<std::uint8_t> devices;
  if (trace.recording != nullptr) {
    for (const Recording::Block& block : trace.recording->blocks) {
      devices.insert(block.device);
    }
    // One whose very first request failed has no blocks.
    for (const Recording::Note& note : trace.recording->notes) {
      if (note.event.kind == NOFRAG_TRACE_RECORD_OUT_OF_MEMORY) {
        devices.insert(note.event.device);
      }
    }
  }
  std::vector<Trace> parts;
  if (devices.size() <= 1) {
    if (!devices.empty()) {
      trace.device = *devices.begin();
      take_failures(*trace.recording, &trace);
    }
    parts.push_back(std::move(trace));
    return parts;
  }
  for (const std::uint8_t device : devices) {
    parts.push_back(DevicePart(trace, device).take());
  }
  return parts;
}

}  // namespace nofrag
