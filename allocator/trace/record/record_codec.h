// The payloads of a recording's blocks: events in columns, texts in rows.
//
// Owns: nothing. Layer: trace. Format: include/nofrag/trace_format.h. Threads: pure functions.
// Failure: the decoder trusts nothing and says what is wrong; *events may then hold some of the block.
// Cost: one pass a column; about 0.2 us an event to write, 0.1 to read.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/packed_codec.h"
#include "trace/record/record_event.h"

namespace nofrag {

std::string encode_record(std::span<const RecordEvent> events, ClockPair clock);

// Appends `items` events. `clock` is left alone if the block has none.
bool decode_record(std::string_view payload,
                   std::uint32_t items,
                   std::vector<RecordEvent>* events,
                   ClockPair* clock,
                   std::string* why);

inline void append_text(std::string_view text, std::string* bytes) {
  append_varint(text.size(), bytes);
  bytes->append(text);
}

inline bool next_text(VarintReader& reader, std::string* text) {
  std::uint64_t size = 0;
  std::string_view bytes;
  if (!reader.next(&size) || !reader.take(size, &bytes)) {
    return false;
  }
  text->assign(bytes);
  return true;
}

}  // namespace nofrag
