#include "trace/record/record_output.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "trace/packed_codec.h"
#include "trace/record/record_codec.h"

namespace nofrag {
namespace {

// Fast: the writer shares the machine with the job.
constexpr int kZstdLevel = 3;

constexpr std::size_t kFewestEvents = 64;  // that a block is cut down to, at the end of a full file
constexpr std::size_t kHeaderBytes = sizeof(nofrag_trace_block_header);
constexpr std::size_t kStopBytes = kHeaderBytes + sizeof(nofrag_trace_stop);

}  // namespace

std::string recording_stop_block(nofrag_trace_stop_reason reason,
                                 std::uint64_t events,
                                 std::uint64_t lost) {
  std::string payload;
  append_little_endian(events, &payload);
  append_little_endian(lost, &payload);
  append_little_endian<std::uint64_t>(reason, &payload);
  append_little_endian<std::uint64_t>(0, &payload);
  std::string block = packed_block_header(NOFRAG_TRACE_BLOCK_STOP,
                                          NOFRAG_TRACE_BLOCK_MUST_UNDERSTAND,
                                          payload.size(),
                                          payload.size(),
                                          0);
  return block + payload;
}

RecordOutput::Block RecordOutput::make_block(nofrag_trace_block_kind kind,
                                             std::string_view payload,
                                             std::size_t items) {
  const bool events = kind == NOFRAG_TRACE_BLOCK_RECORD;
  const std::string packed = pack_zstd(payload, kZstdLevel);
  Block block;
  block.raw = payload.size();
  block.packed = !packed.empty();  // always, for its checksum, unless there is no host memory
  block.events = events ? static_cast<std::uint32_t>(items) : 0;
  const std::string_view stored = block.packed ? std::string_view(packed) : payload;
  block.bytes = packed_block_header(kind,
                                    (block.packed ? NOFRAG_TRACE_BLOCK_ZSTD : 0U) |
                                        (events ? NOFRAG_TRACE_BLOCK_MUST_UNDERSTAND : 0U),
                                    stored.size(),
                                    payload.size(),
                                    items);
  block.bytes.append(stored);
  return block;
}

bool RecordOutput::start() {
  if (!is_flight()) {
    const bool opened = file_.open(path_, true) && file_.append(packed_file_header());
    path_ = file_.path();
    return opened;
  }
  // A flight recorder's file is made when it is asked for; that it could be is found out now.
  path_ = RecordFile::expand(path_);
  if (!RecordFile::may_take_place_of(path_)) {
    return file_.refuse(path_);
  }
  if (!file_.open(partial())) {
    return false;
  }
  file_.close();
  std::remove(file_.path().c_str());
  return true;
}

bool RecordOutput::put(Block block) {
  if (full_) {
    return true;
  }
  if (!is_flight()) {
    if (!has_room_for(block)) {
      full_ = true;
      return file_.append(recording_stop_block(NOFRAG_TRACE_STOP_MAX, events_, lost_));
    }
    events_ += block.events;
    return file_.append(block.bytes);
  }
  kept_bytes_ += block.bytes.size();
  kept_.push_back(std::move(block));
  while (kept_bytes_ > keep_ && kept_.size() > 1) {
    let_go_of_oldest();
  }
  return true;
}

bool RecordOutput::set_info(const std::map<std::string, std::string>& info) {
  std::string payload;
  for (const auto& [name, value] : info) {
    append_text(name, &payload);
    append_text(value, &payload);
  }
  return add_lasting_block(NOFRAG_TRACE_BLOCK_INFO, payload, info.size());
}

bool RecordOutput::add_events(std::span<const RecordEvent> events,
                              ClockPair clock,
                              std::uint64_t lost) {
  clock_ = clock;
  lost_ = lost;
  if (full_) {
    return true;
  }
  Block block = make_block(NOFRAG_TRACE_BLOCK_RECORD, encode_record(events, clock), events.size());
  // A block may be larger than all that is left of a small file: its first events have room.
  if (!is_flight() && !has_room_for(block) && events.size() > kFewestEvents) {
    const std::size_t half = events.size() / 2;
    return add_events(events.first(half), clock, lost) &&
           add_events(events.subspan(half), clock, lost);
  }
  return put(std::move(block));
}

bool RecordOutput::has_room_for(const Block& block) const {
  return file_.size() + block.bytes.size() + kStopBytes <= max_;
}

bool RecordOutput::add_block(nofrag_trace_block_kind kind,
                             std::string_view payload,
                             std::size_t items) {
  return put(make_block(kind, payload, items));
}

bool RecordOutput::add_lasting_block(nofrag_trace_block_kind kind,
                                     std::string_view payload,
                                     std::size_t items) {
  if (!is_flight()) {
    return add_block(kind, payload, items);
  }
  lasting_ += make_block(kind, payload, items).bytes;
  return true;
}

void RecordOutput::let_go_of_oldest() {
  const Block oldest = std::move(kept_.front());
  kept_.pop_front();
  kept_bytes_ -= oldest.bytes.size();
  if (oldest.events == 0) {
    return;
  }
  std::string_view payload = std::string_view(oldest.bytes).substr(kHeaderBytes);
  std::string unpacked;
  std::vector<RecordEvent> events;
  ClockPair clock;
  std::string why;
  if (oldest.packed) {
    unpack_zstd(payload, oldest.raw, &unpacked, &why);
    payload = unpacked;
  }
  // Our own bytes: if they cannot be read, the machine is failing, and what is known stays.
  decode_record(payload, oldest.events, &events, &clock, &why);
  for (const RecordEvent& event : events) {
    fold(event);
  }
}

void RecordOutput::fold(const RecordEvent& event) {
  last_tick_before_ = std::max(last_tick_before_, event.tick);
  const auto key = std::pair(event.device, event.address);
  switch (event.kind) {
    case NOFRAG_TRACE_RECORD_ALLOC:
    case NOFRAG_TRACE_RECORD_EXISTING:
      live_before_.insert_or_assign(key, event);
      break;
    case NOFRAG_TRACE_RECORD_FREE:
      // Unless it came late: the address may be somebody else's by now.
      if (const auto at = live_before_.find(key);
          at != live_before_.end() && at->second.tick < event.tick) {
        live_before_.erase(at);
      }
      break;
    case NOFRAG_TRACE_RECORD_CREATE:
      reserved_before_[event.device] += event.size;
      break;
    case NOFRAG_TRACE_RECORD_RELEASE:
      reserved_before_[event.device] -= std::min(reserved_before_[event.device], event.size);
      break;
    default:
      break;
  }
}

// What was live and reserved before the oldest kept block, all at one moment.
std::string RecordOutput::state_block() const {
  std::vector<RecordEvent> events;
  for (const auto& [device, bytes] : reserved_before_) {
    RecordEvent created{};
    created.kind = NOFRAG_TRACE_RECORD_CREATE;
    created.device = device;
    created.size = bytes;
    created.tick = last_tick_before_;
    events.push_back(created);
  }
  for (const auto& [key, block] : live_before_) {
    RecordEvent existing = block;
    existing.kind = NOFRAG_TRACE_RECORD_EXISTING;
    existing.tick = last_tick_before_;
    events.push_back(existing);
  }
  return events.empty()
             ? std::string()
             : make_block(NOFRAG_TRACE_BLOCK_RECORD, encode_record(events, clock_), events.size())
                   .bytes;
}

bool RecordOutput::write_flight(std::uint64_t lost) {
  if (!file_.open(partial())) {
    return false;
  }
  std::uint64_t events = reserved_before_.size() + live_before_.size();
  bool written =
      file_.append(packed_file_header()) && file_.append(lasting_) && file_.append(state_block());
  for (const Block& kept : kept_) {
    written = written && file_.append(kept.bytes);
    events += kept.events;
  }
  return written && file_.append(recording_stop_block(NOFRAG_TRACE_STOP_FLIGHT, events, lost)) &&
         file_.rename_to(path_);
}

void RecordOutput::abandon() {
  if (!is_flight()) {
    file_.remove_if_made();
  }
  file_.close();
}

void RecordOutput::finish(nofrag_trace_stop_reason reason, std::uint64_t lost) {
  lost_ = lost;
  if (!is_flight() && !full_) {
    file_.append(recording_stop_block(reason, events_, lost));
  }
  file_.close();
}

}  // namespace nofrag
