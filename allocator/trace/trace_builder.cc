#include "trace/trace_builder.h"

#include <algorithm>
#include <utility>

namespace nofrag {
namespace {

// Above these a number is a mistake of the recorder, and sums of several could wrap.
constexpr std::uint64_t kLargestSize = std::uint64_t{1} << 60;
constexpr std::uint64_t kLargestLive = std::uint64_t{1} << 62;
constexpr std::uint64_t kLatestTime = std::uint64_t{1} << 53;  // exact as a double
constexpr std::size_t kMostEvents = UINT32_MAX - 1;
constexpr std::size_t kMostStreams = std::size_t{1} << 20;
constexpr std::size_t kFirstTableSize = 1024;

std::uint64_t mix(std::uint64_t x) {
  x *= 0x9E3779B97F4A7C15ULL;
  return x ^ (x >> 32);
}

}  // namespace

bool TraceBuilder::refuse(std::string found, std::string expected) {
  problem_ = {std::move(found), std::move(expected)};
  return false;
}

std::string TraceBuilder::place(std::uint32_t event) const {
  return unit_ == TraceUnit::kLine ? "line " + std::to_string(event + first_line_)
                                   : "event " + std::to_string(event);
}

std::string TraceBuilder::name(std::uint32_t block) const {
  return std::to_string(trace_.ids[block]);
}

bool TraceBuilder::check_time(std::uint64_t time_us) {
  if (trace_.events.size() >= kMostEvents) {
    return refuse("more than " + std::to_string(kMostEvents) + " events", "a shorter trace");
  }
  if (time_us > kLatestTime) {
    return refuse("time " + std::to_string(time_us) + " us", "a time of at most 2^53 microseconds");
  }
  if (!trace_.events.empty() && time_us < trace_.events.back().time_us) {
    return refuse("time " + std::to_string(time_us) + " us, earlier than the event before it at " +
                      std::to_string(trace_.events.back().time_us) + " us",
                  "events in time order");
  }
  return true;
}

bool TraceBuilder::intern_stream(std::uint64_t stream, std::uint32_t* number) {
  if (last_stream_number_ == UINT32_MAX || stream != last_stream_) {
    const auto [at, is_new] =
        stream_numbers_.try_emplace(stream, static_cast<std::uint32_t>(trace_.streams.size()));
    if (is_new) {
      if (trace_.streams.size() >= kMostStreams) {
        return refuse("more than 2^20 different streams", "a stream column that names streams");
      }
      trace_.streams.push_back(stream);
    }
    last_stream_number_ = at->second;
    last_stream_ = stream;
  }
  *number = last_stream_number_;
  return true;
}

void TraceBuilder::grow_table() {
  std::vector<Slot> old(std::max(kFirstTableSize, table_.size() * 2));
  old.swap(table_);
  for (const Slot& slot : old) {
    if (slot.block_plus_one != 0) {
      find_slot(slot.id) = slot;
    }
  }
}

TraceBuilder::Slot& TraceBuilder::find_slot(std::uint64_t id) {
  const std::size_t mask = table_.size() - 1;
  std::size_t at = mix(id) & mask;
  while (table_[at].block_plus_one != 0 && table_[at].id != id) {
    at = (at + 1) & mask;
  }
  return table_[at];
}

bool TraceBuilder::add_allocation(std::uint64_t time_us,
                                  std::uint64_t id,
                                  std::uint64_t size,
                                  std::uint64_t stream) {
  if (!check_time(time_us)) {
    return false;
  }
  if (size > kLargestSize) {
    return refuse("size " + std::to_string(size), "a size of at most 2^60 bytes");
  }
  std::uint32_t stream_number = 0;
  if (!intern_stream(stream, &stream_number)) {
    return false;
  }
  if (trace_.allocations * 2 >= table_.size()) {
    grow_table();
  }
  Slot& slot = find_slot(id);
  if (slot.block_plus_one != 0) {
    return refuse("id " + std::to_string(id) + " allocated again (first at " +
                      place(allocated_at_[slot.block_plus_one - 1]) + ")",
                  "an id never used before");
  }
  live_ += round_up(Bytes(size), kTraceRounding);
  if (live_ > Bytes(kLargestLive)) {
    return refuse("more than 2^62 bytes live at once", "sizes that some device could hold");
  }
  trace_.peak_live = std::max(trace_.peak_live, live_);
  const auto block = static_cast<std::uint32_t>(trace_.allocations++);
  slot = {id, block + 1};
  allocated_at_.push_back(static_cast<std::uint32_t>(trace_.events.size()));
  freed_at_.push_back(kLive);
  trace_.ids.push_back(id);
  trace_.events.push_back({time_us, size, block, stream_number});
  return true;
}

bool TraceBuilder::add_free(std::uint64_t time_us,
                            std::uint64_t id,
                            std::uint64_t size,
                            std::uint64_t stream) {
  const Slot* slot = table_.empty() ? nullptr : &find_slot(id);
  if (slot == nullptr || slot->block_plus_one == 0) {
    return refuse("a free of id " + std::to_string(id) + ", which was never allocated",
                  "the id of a live block");
  }
  const std::uint32_t block = slot->block_plus_one - 1;
  const std::uint64_t allocated = trace_.events[allocated_at_[block]].size;
  if (size != allocated && size != 0) {
    return refuse(
        "a free of id " + std::to_string(id) + " with size " + std::to_string(size),
        "size " + std::to_string(allocated) + ", as allocated at " + place(allocated_at_[block]));
  }
  return append_free(time_us, block, stream);
}

bool TraceBuilder::add_free_of_block(std::uint64_t time_us,
                                     std::uint64_t block,
                                     std::uint64_t stream) {
  if (block >= trace_.allocations) {
    return refuse("a free of block " + std::to_string(block) + " when " +
                      std::to_string(trace_.allocations) + " were allocated",
                  "the number of a live block");
  }
  return append_free(time_us, static_cast<std::uint32_t>(block), stream);
}

bool TraceBuilder::append_free(std::uint64_t time_us, std::uint32_t block, std::uint64_t stream) {
  if (!check_time(time_us)) {
    return false;
  }
  if (freed_at_[block] != kLive) {
    return refuse("id " + name(block) + " freed twice (first at " + place(freed_at_[block]) + ")",
                  "the id of a live block");
  }
  std::uint32_t stream_number = 0;
  if (!intern_stream(stream, &stream_number)) {
    return false;
  }
  const std::uint64_t size = trace_.events[allocated_at_[block]].size;
  live_ -= round_up(Bytes(size), kTraceRounding);
  freed_at_[block] = static_cast<std::uint32_t>(trace_.events.size());
  ++trace_.frees;
  trace_.events.push_back({time_us, size, block, stream_number | TraceEvent::kFreeBit});
  return true;
}

Trace TraceBuilder::finish(TraceFormat format) {
  bool plain = true;
  for (std::size_t i = 0; plain && i < trace_.ids.size(); ++i) {
    plain = trace_.ids[i] == i;
  }
  if (plain) {
    trace_.ids = {};
  }
  trace_.format = format;
  trace_.live_at_end = live_;
  table_ = {};
  stream_numbers_ = {};
  allocated_at_ = {};
  freed_at_ = {};
  return std::move(trace_);
}

}  // namespace nofrag
