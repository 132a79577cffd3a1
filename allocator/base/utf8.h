// utf8: where the characters of a text are.
//
// Layer: base. Owns: nothing. Units: bytes. Invariants: never reads outside the text; any bytes are accepted.
// Threads: pure functions. Failure: none. Cost: one pass at most.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace nofrag {

// How many bytes the character at the front of `text` has; 0: there is none, or its bytes are no character's.
constexpr std::size_t utf8_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty() || byte(0) < 0x80) {
    return text.empty() ? 0 : 1;
  }
  const std::size_t length = byte(0) < 0xc2   ? 0
                             : byte(0) < 0xe0 ? 2
                             : byte(0) < 0xf0 ? 3
                             : byte(0) < 0xf5 ? 4
                                              : 0;
  if (length == 0 || text.size() < length) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  // Longer than need be, halves of UTF-16's pairs, beyond the last character.
  const bool wrong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) > 0x9f) ||
                     (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) > 0x8f);
  return wrong ? 0 : length;
}

// At most `most` bytes of the front, and no character's half at the end.
constexpr std::string_view utf8_front(std::string_view text, std::size_t most) {
  if (text.size() <= most) {
    return text;
  }
  std::size_t end = most;
  for (const std::size_t least = most - std::min<std::size_t>(most, 3);
       end > least && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80;) {
    --end;
  }
  return text.substr(0, end);
}

}  // namespace nofrag
