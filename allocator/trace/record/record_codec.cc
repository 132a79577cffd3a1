#include "trace/record/record_codec.h"

#include <array>
#include <limits>
#include <unordered_map>
#include <utility>

#include <nofrag/trace_format.h>

namespace nofrag {
namespace {

constexpr std::size_t kFields = NOFRAG_TRACE_FIELD_LAST + 1;
constexpr std::size_t kColumns = 2 * kFields;

using Row = std::array<std::uint64_t, kFields>;

Row row_of(const RecordEvent& event) {
  Row row{};
  row[NOFRAG_TRACE_FIELD_ADDRESS] = event.address;
  row[NOFRAG_TRACE_FIELD_SIZE] = event.size;
  row[NOFRAG_TRACE_FIELD_SLACK] = event.slack;
  row[NOFRAG_TRACE_FIELD_STREAM] = event.stream;
  row[NOFRAG_TRACE_FIELD_DEVICE] = event.device;
  row[NOFRAG_TRACE_FIELD_THREAD] = event.thread;
  row[NOFRAG_TRACE_FIELD_POOL_FIRST] = event.pool_first;
  row[NOFRAG_TRACE_FIELD_POOL_SECOND] = event.pool_second;
  row[NOFRAG_TRACE_FIELD_DETAIL] = event.detail;
  row[NOFRAG_TRACE_FIELD_SITE] = event.site;
  return row;
}

template <typename T>
bool narrow(std::uint64_t value, T* field) {
  *field = static_cast<T>(value);
  return value <= std::numeric_limits<T>::max();
}

bool set_row(const Row& row, RecordEvent* event) {
  event->address = row[NOFRAG_TRACE_FIELD_ADDRESS];
  event->size = row[NOFRAG_TRACE_FIELD_SIZE];
  event->stream = row[NOFRAG_TRACE_FIELD_STREAM];
  event->pool_first = row[NOFRAG_TRACE_FIELD_POOL_FIRST];
  event->pool_second = row[NOFRAG_TRACE_FIELD_POOL_SECOND];
  return narrow(row[NOFRAG_TRACE_FIELD_SLACK], &event->slack) &&
         narrow(row[NOFRAG_TRACE_FIELD_DEVICE], &event->device) &&
         narrow(row[NOFRAG_TRACE_FIELD_THREAD], &event->thread) &&
         narrow(row[NOFRAG_TRACE_FIELD_DETAIL], &event->detail) &&
         narrow(row[NOFRAG_TRACE_FIELD_SITE], &event->site);
}

// Values that repeat: the different ones once, and an index for each use.
class FieldColumns {
 public:
  void add(std::uint64_t value, bool as_difference) {
    if (count_ == 0 || value != last_) {
      const auto [at, is_new] = index_.try_emplace(value, index_.size());
      if (is_new) {
        append_varint(as_difference ? zigzag(static_cast<std::int64_t>(value - newest_)) : value,
                      &values_);
        newest_ = value;
      }
      last_ = value;
      last_index_ = at->second;
    }
    any_ = any_ || value != 0;
    ++count_;
    append_varint(last_index_, &uses_);
  }
  void append(std::size_t field, std::string* payload) const {
    if (!any_) {
      return;
    }
    for (const auto& [column, bytes] :
         {std::pair(2 * field, &values_), std::pair(2 * field + 1, &uses_)}) {
      payload->push_back(static_cast<char>(column));
      append_text(*bytes, payload);
    }
  }

 private:
  std::unordered_map<std::uint64_t, std::uint64_t> index_;
  std::string values_;
  std::string uses_;
  std::uint64_t last_ = 0;
  std::uint64_t last_index_ = 0;
  std::uint64_t newest_ = 0;
  std::size_t count_ = 0;
  bool any_ = false;
};

using Columns = std::array<std::string_view, kColumns>;

bool split(std::string_view payload, Columns* columns, std::string* why) {
  VarintReader reader(payload);
  std::array<bool, kColumns> seen{};
  while (!reader.empty()) {
    std::string_view kind_byte;
    std::string_view bytes;
    std::uint64_t length = 0;
    if (!reader.take(1, &kind_byte) || !reader.next(&length) || !reader.take(length, &bytes)) {
      *why = "a column that runs past its end";
      return false;
    }
    const auto kind = static_cast<unsigned char>(kind_byte[0]);
    if (kind == 0 || kind >= kColumns) {
      if ((kind & NOFRAG_TRACE_COLUMN_MUST_UNDERSTAND) != 0) {
        *why = "column kind " + std::to_string(kind) + ", which needs a newer nofrag";
        return false;
      }
      continue;
    }
    if (std::exchange(seen[kind], true)) {
      *why = "the same column twice";
      return false;
    }
    (*columns)[kind] = bytes;
  }
  return true;
}

struct FieldReader {
  std::vector<std::uint64_t> values;
  VarintReader uses;
  bool present = false;

  bool open(std::size_t field, const Columns& columns) {
    VarintReader reader(columns[2 * field]);
    std::uint64_t last = 0;
    while (!reader.empty()) {
      std::uint64_t value = 0;
      if (!reader.next(&value)) {
        return false;
      }
      if (field == NOFRAG_TRACE_FIELD_ADDRESS) {
        value = last + static_cast<std::uint64_t>(unzigzag(value));
        last = value;
      }
      values.push_back(value);
    }
    uses = VarintReader(columns[2 * field + 1]);
    present = !values.empty() || !uses.empty();
    return true;
  }
  bool next(std::uint64_t* value) {
    std::uint64_t index = 0;
    if (!uses.next(&index) || index >= values.size()) {
      return false;
    }
    *value = values[index];
    return true;
  }
};

}  // namespace

std::string encode_record(std::span<const RecordEvent> events, ClockPair clock) {
  std::string kinds;
  std::string ticks;
  std::array<FieldColumns, kFields> fields;
  std::uint64_t last_tick = 0;
  for (const RecordEvent& event : events) {
    kinds.push_back(static_cast<char>(event.kind));
    append_varint(zigzag(static_cast<std::int64_t>(event.tick - last_tick)), &ticks);
    last_tick = event.tick;
    const Row row = row_of(event);
    for (std::size_t field = NOFRAG_TRACE_FIELD_ADDRESS; field < kFields; ++field) {
      fields[field].add(row[field], field == NOFRAG_TRACE_FIELD_ADDRESS);
    }
  }
  std::string clocks;
  append_little_endian(clock.tick, &clocks);
  append_little_endian(clock.ns, &clocks);
  std::string payload;
  for (const auto& [column, bytes] : {std::pair(NOFRAG_TRACE_RECORD_COLUMN_CLOCK, &clocks),
                                      std::pair(NOFRAG_TRACE_RECORD_COLUMN_KIND, &kinds),
                                      std::pair(NOFRAG_TRACE_RECORD_COLUMN_TICK, &ticks)}) {
    payload.push_back(static_cast<char>(column));
    append_text(*bytes, &payload);
  }
  for (std::size_t field = NOFRAG_TRACE_FIELD_ADDRESS; field < kFields; ++field) {
    fields[field].append(field, &payload);
  }
  return payload;
}

bool decode_record(std::string_view payload,
                   std::uint32_t items,
                   std::vector<RecordEvent>* events,
                   ClockPair* clock,
                   std::string* why) {
  Columns columns{};
  if (!split(payload, &columns, why)) {
    return false;
  }
  std::array<FieldReader, kFields> fields;
  for (std::size_t field = NOFRAG_TRACE_FIELD_ADDRESS; field < kFields; ++field) {
    if (!fields[field].open(field, columns)) {
      *why = "broken values of field " + std::to_string(field);
      return false;
    }
  }
  const std::string_view kinds = columns[NOFRAG_TRACE_RECORD_COLUMN_KIND];
  if (kinds.size() != items) {
    *why = "another number of events than its header says";
    return false;
  }
  const std::string_view clocks = columns[NOFRAG_TRACE_RECORD_COLUMN_CLOCK];
  if (clocks.size() >= 2 * sizeof(std::uint64_t)) {
    clock->tick = load_little_endian<std::uint64_t>(clocks, 0);
    clock->ns = load_little_endian<std::uint64_t>(clocks, sizeof(std::uint64_t));
  }
  VarintReader ticks(columns[NOFRAG_TRACE_RECORD_COLUMN_TICK]);
  std::uint64_t tick = 0;
  for (const char kind : kinds) {
    std::uint64_t step = 0;
    if (!ticks.next(&step)) {
      *why = "a broken column of ticks";
      return false;
    }
    tick += static_cast<std::uint64_t>(unzigzag(step));
    Row row{};
    for (std::size_t field = NOFRAG_TRACE_FIELD_ADDRESS; field < kFields; ++field) {
      if (fields[field].present && !fields[field].next(&row[field])) {
        *why = "a broken column of field " + std::to_string(field);
        return false;
      }
    }
    RecordEvent event{};
    event.tick = tick;
    event.kind = static_cast<std::uint8_t>(kind);
    if (!set_row(row, &event)) {
      *why = "a number that does not fit its field";
      return false;
    }
    events->push_back(event);
  }
  return true;
}

}  // namespace nofrag
