// What a recording says beside its events: threads, marks, the program's ranges, what call stacks mean.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_id.h"
#include "base/utf8.h"
#include "trace/record/record_codec.h"
#include "trace/record/recorder.h"

namespace nofrag {
namespace {

constexpr std::size_t kLongestMark = 1000;
constexpr std::size_t kMostMarks = 65536;  // not yet written; of ranges' moments likewise

}  // namespace

void Recorder::mark(std::string_view text) {
  Ring* const ring = active() ? my_ring() : nullptr;
  if (ring == nullptr) {
    return;
  }
  const std::uint64_t tick = clock_.now();
  const std::lock_guard lock(rings_mutex_);
  if (marks_.size() < kMostMarks) {
    marks_.push_back({tick, ring->thread, std::string(utf8_front(text, kLongestMark))});
  }
}

void Recorder::range(nofrag_trace_range_kind kind, std::uint64_t key, std::string_view name) {
  Ring* const ring = active() ? my_ring() : nullptr;
  if (ring == nullptr) {
    return;
  }
  const std::uint64_t tick = clock_.now();
  const std::lock_guard lock(rings_mutex_);
  if (ranges_.size() < kMostMarks) {
    ranges_.push_back({tick, ring->thread, kind, key, std::string(utf8_front(name, kLongestMark))});
    if (ranges_.size() == kMostMarks / 4) {
      ranges_wait_.store(true, std::memory_order_relaxed);
      wake();
    }
  } else {
    ++ranges_lost_;
  }
}

void Recorder::add_info(std::string name, std::string value) {
  const std::lock_guard lock(rings_mutex_);
  new_info_[std::move(name)] = std::move(value);
}

// ---- the writer thread

// Threads that are new, and marks.
bool Recorder::write_texts() {
  std::vector<std::shared_ptr<Ring>> threads;
  std::vector<Mark> marks;
  std::map<std::string, std::string> info;
  {
    const std::lock_guard lock(rings_mutex_);
    threads.swap(new_rings_);
    marks.swap(marks_);
    info.swap(new_info_);
  }
  if (!info.empty() && !output_.set_info(info)) {
    return false;
  }
  std::string payload;
  for (const auto& ring : threads) {
    append_varint(ring->thread, &payload);
    append_varint(ring->kernel_thread, &payload);
    append_text(kernel_thread_name(ring->kernel_thread), &payload);
  }
  if (!threads.empty() &&
      !output_.add_lasting_block(NOFRAG_TRACE_BLOCK_THREADS, payload, threads.size())) {
    return false;
  }
  payload.clear();
  for (const Mark& mark : marks) {
    append_varint(mark.tick, &payload);
    append_varint(mark.thread, &payload);
    append_text(mark.text, &payload);
  }
  return marks.empty() || output_.add_block(NOFRAG_TRACE_BLOCK_MARKS, payload, marks.size());
}

// Call stacks that are new. (Those of events in pending_ are there already.)
bool Recorder::write_stacks() {
  if (sampler_ == nullptr) {
    return true;
  }
  sampler_->look_for_python();
  const StackSampler::Rows rows = sampler_->take_rows();
  // Said again only when it has doubled: a flight recorder keeps every word of it.
  if (rows.lost >= 2 * stacks_lost_ + 1) {
    stacks_lost_ = rows.lost;
    if (!output_.set_info({{"stacks_lost", std::to_string(rows.lost)}})) {
      return false;
    }
  }
  return (rows.module_count == 0 ||
          output_.add_lasting_block(NOFRAG_TRACE_BLOCK_MODULES, rows.modules, rows.module_count)) &&
         (rows.stack_count == 0 ||
          output_.add_lasting_block(NOFRAG_TRACE_BLOCK_STACKS, rows.stacks, rows.stack_count));
}

bool Recorder::write_ranges() {
  std::vector<RangeMoment> ranges;
  std::uint64_t lost = 0;
  {
    const std::lock_guard lock(rings_mutex_);
    ranges.swap(ranges_);
    lost = ranges_lost_;
  }
  if (lost >= 2 * ranges_lost_said_ + 1) {
    ranges_lost_said_ = lost;
    if (!output_.set_info({{"ranges_lost", std::to_string(lost)}})) {
      return false;
    }
  }
  std::string payload;
  for (const RangeMoment& moment : ranges) {
    append_varint(moment.tick, &payload);
    append_varint(moment.thread, &payload);
    append_varint(moment.kind, &payload);
    append_varint(moment.key, &payload);
    append_text(moment.name, &payload);
  }
  return ranges.empty() || output_.add_block(NOFRAG_TRACE_BLOCK_RANGES, payload, ranges.size());
}

}  // namespace nofrag
