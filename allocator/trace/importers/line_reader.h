// LineReader: a text, line by line, each with its number.
//
// Owns: nothing. Layer: trace. Lines end in LF or CRLF; a byte order mark before the first is dropped; a last
// line may lack its end. Threads: none. Failure: next() gives nothing at the end and after a failure, which
// error() tells apart: a line beyond the longest allowed, or what the source reports. Cost: no copy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trace/byte_source.h"
#include "trace/trace.h"

namespace nofrag {

class LineReader {
 public:
  LineReader(ByteWindow& input, const std::string& name, std::size_t longest)
      : input_(input), name_(name), longest_(longest) {}

  // Valid until the next call.
  std::optional<std::string_view> next();
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] const std::optional<TraceError>& error() const { return error_; }

 private:
  ByteWindow& input_;
  const std::string& name_;
  std::size_t longest_;
  std::size_t to_consume_ = 0;
  std::uint64_t number_ = 0;
  std::optional<TraceError> error_;
};

}  // namespace nofrag
