#include <algorithm>
#include <unordered_map>

#include <nofrag/trace_format.h>

#include "trace/packed_codec.h"
#include "trace/packed_format.h"
#include "trace/record/record_rewriter.h"

namespace nofrag {
namespace {

// Values that repeat: the different ones once, and an index for each use.
class DictionaryColumn {
 public:
  void add(std::uint64_t value) {
    const auto [at, is_new] = index_.try_emplace(value, index_.size());
    if (is_new) {
      append_varint(value, &values_);
    }
    append_varint(at->second, &uses_);
  }
  [[nodiscard]] const std::string& values() const { return values_; }
  [[nodiscard]] const std::string& uses() const { return uses_; }

 private:
  std::unordered_map<std::uint64_t, std::uint64_t> index_;
  std::string values_;
  std::string uses_;
};

// What carries over from one block to the next.
struct Carry {
  std::uint64_t last_id = UINT64_MAX;
  std::uint64_t allocations = 0;
};

void append_column(nofrag_trace_column kind, std::string_view bytes, std::string* payload) {
  payload->push_back(static_cast<char>(kind));
  append_varint(bytes.size(), payload);
  payload->append(bytes);
}

std::string events_payload(const Trace& trace, std::size_t first, std::size_t last, Carry* carry) {
  std::string op;
  std::string time;
  std::string id;
  std::string freed;
  DictionaryColumn size;
  DictionaryColumn stream;
  std::uint64_t last_time = 0;
  for (std::size_t i = first; i < last; ++i) {
    const TraceEvent& event = trace.events[i];
    op.push_back(event.is_free() ? 'f' : 'a');
    append_varint(event.time_us - last_time, &time);
    last_time = event.time_us;
    stream.add(trace.streams[event.stream()]);
    if (event.is_free()) {
      append_varint(carry->allocations - 1 - event.block, &freed);
      continue;
    }
    const std::uint64_t this_id = trace.id_of(event.block);
    append_varint(zigzag(static_cast<std::int64_t>(this_id - (carry->last_id + 1))), &id);
    carry->last_id = this_id;
    ++carry->allocations;
    size.add(event.size);
  }
  std::string payload;
  append_column(NOFRAG_TRACE_COLUMN_OP, op, &payload);
  append_column(NOFRAG_TRACE_COLUMN_TIME, time, &payload);
  append_column(NOFRAG_TRACE_COLUMN_ID, id, &payload);
  append_column(NOFRAG_TRACE_COLUMN_SIZE_VALUES, size.values(), &payload);
  append_column(NOFRAG_TRACE_COLUMN_SIZE, size.uses(), &payload);
  append_column(NOFRAG_TRACE_COLUMN_FREED, freed, &payload);
  append_column(NOFRAG_TRACE_COLUMN_STREAM_VALUES, stream.values(), &payload);
  append_column(NOFRAG_TRACE_COLUMN_STREAM, stream.uses(), &payload);
  return payload;
}

std::string end_block(const Trace& trace) {
  std::string totals;
  append_little_endian<std::uint64_t>(trace.events.size(), &totals);
  append_little_endian<std::uint64_t>(trace.allocations, &totals);
  append_little_endian<std::uint64_t>(trace.frees, &totals);
  append_little_endian<std::uint64_t>(trace.peak_live.count(), &totals);
  append_little_endian<std::uint64_t>(trace.live_at_end.count(), &totals);
  return packed_block_header(NOFRAG_TRACE_BLOCK_END,
                             NOFRAG_TRACE_BLOCK_MUST_UNDERSTAND,
                             totals.size(),
                             totals.size(),
                             0) +
         totals;
}

}  // namespace

bool write_packed(const Trace& trace,
                  const PackedOptions& options,
                  const std::function<bool(std::string_view)>& sink) {
  if (trace.recording != nullptr) {
    return write_recording(trace, sink);
  }
  if (!sink(packed_file_header())) {
    return false;
  }
  Carry carry;
  for (std::size_t first = 0; first < trace.events.size();) {
    const std::size_t last =
        std::min<std::size_t>(trace.events.size(), first + options.events_per_block);
    const std::string raw = events_payload(trace, first, last, &carry);
    const std::string frame = pack_zstd(raw, options.zstd_level);
    if (frame.empty() ||
        !sink(packed_block_header(NOFRAG_TRACE_BLOCK_EVENTS,
                                  NOFRAG_TRACE_BLOCK_ZSTD | NOFRAG_TRACE_BLOCK_MUST_UNDERSTAND,
                                  frame.size(),
                                  raw.size(),
                                  last - first)) ||
        !sink(frame)) {
      return false;
    }
    first = last;
  }
  return sink(end_block(trace));
}

}  // namespace nofrag
