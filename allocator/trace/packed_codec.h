// Little-endian numbers, varints and zstd for the packed trace format.
//
// Layer: trace. Units: bytes. Threads: pure functions and plain values. Failure: the reading side
// returns false at the end of its bytes or on a number that does not fit. Cost: O(bytes).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nofrag/trace_format.h>

namespace nofrag {

template <typename T>
void append_little_endian(T value, std::string* bytes) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes->push_back(static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff));
  }
}

// pre: at + sizeof(T) <= bytes.size()
template <typename T>
T load_little_endian(std::string_view bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return static_cast<T>(value);
}

inline void append_varint(std::uint64_t value, std::string* bytes) {
  while (value >= 0x80) {
    bytes->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  bytes->push_back(static_cast<char>(value));
}

// Reads varints from the front of a column.
class VarintReader {
 public:
  explicit VarintReader(std::string_view bytes = {}) : rest_(bytes) {}

  bool next(std::uint64_t* value) {
    std::uint64_t result = 0;
    for (std::size_t i = 0; i < rest_.size() && i < 10; ++i) {
      const auto byte = static_cast<unsigned char>(rest_[i]);
      if (i == 9 && byte > 1) {
        return false;  // beyond 64 bits
      }
      result |= std::uint64_t{byte & 0x7fU} << (7 * i);
      if (byte < 0x80) {
        rest_.remove_prefix(i + 1);
        *value = result;
        return true;
      }
    }
    return false;
  }
  bool take(std::size_t count, std::string_view* bytes) {
    if (count > rest_.size()) {
      return false;
    }
    *bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return true;
  }
  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

constexpr std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
constexpr std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

// One zstd frame with content size and checksum. Empty on failure (no host memory).
std::string pack_zstd(std::string_view raw, int level);
// False, with the reason, unless the frame is whole, undamaged and unpacks to exactly raw_bytes.
bool unpack_zstd(std::string_view frame, std::size_t raw_bytes, std::string* raw, std::string* why);
// As in gzip.
std::uint32_t crc32_of(std::string_view bytes);

// What a file, and each block, begins with (include/nofrag/trace_format.h).
std::string packed_file_header();
std::string packed_block_header(nofrag_trace_block_kind kind,
                                std::uint32_t flags,
                                std::size_t stored,
                                std::size_t raw,
                                std::size_t items);

}  // namespace nofrag
