// JsonHandler and read_json: a JSON text of any size, value by value.
//
// Owns: nothing but where it is. Layer: trace. Numbers keep their text, so that none loses digits. Threads:
// none. Failure: read_json gives the handler's error, the source's, or what is wrong with the JSON, at the
// byte where it was noticed. Cost: one pass, no document in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trace/byte_source.h"
#include "trace/trace.h"

namespace nofrag {

struct JsonScalar {
  enum class Kind : unsigned char { kNull, kBool, kInteger, kUnsigned, kFraction, kText };
  Kind kind = Kind::kNull;
  std::int64_t integer = 0;         // kInteger: below 0
  std::uint64_t whole = 0;          // kUnsigned
  double fraction = 0;              // kFraction
  std::string_view text;            // kText, kFraction: as it stands in the file

  // A whole number from 0 on, also where it stands as a text.
  [[nodiscard]] std::optional<std::uint64_t> as_unsigned() const;
  [[nodiscard]] std::optional<std::int64_t> as_signed() const;
};

class JsonHandler {
 public:
  JsonHandler() = default;
  JsonHandler(const JsonHandler&) = delete;
  JsonHandler& operator=(const JsonHandler&) = delete;
  virtual ~JsonHandler() = default;

  // `key` is the member's name in an object, empty in an array. False ends the reading. depth() counts
  // open brackets: in open() without, in close() without the bracket that is meant.
  virtual bool open(char bracket, std::string_view key) = 0;
  virtual bool close(char bracket) = 0;
  virtual bool scalar(std::string_view key, const JsonScalar& value) = 0;

  [[nodiscard]] int depth() const { return depth_; }
  [[nodiscard]] std::uint64_t offset() const { return offset_; }
  [[nodiscard]] const std::optional<TraceError>& error() const { return error_; }

 protected:
  bool fail(const std::string& name, std::string found, std::string expected);

 private:
  friend class JsonReader;
  int depth_ = 0;
  std::uint64_t offset_ = 0;
  std::optional<TraceError> error_;
};

// `expected` says what the file should be, for messages about broken JSON.
std::optional<TraceError> read_json(ByteWindow& input,
                                    const std::string& name,
                                    const std::string& expected,
                                    JsonHandler& handler);

}  // namespace nofrag
