#include "trace/importers/json_stream.h"

#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json_reason.h"
#include "trace/importers/importer.h"

namespace nofrag {
namespace {

constexpr std::size_t kJsonReadStep = std::size_t{1} << 16;

}  // namespace

// The bytes of a window, given back as they are used.
class JsonCursor {
 public:
  explicit JsonCursor(ByteWindow& window) : window_(window) { more(); }

  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
  [[nodiscard]] char current() const { return text_[at_]; }
  void next() {
    if (++at_ == text_.size()) {
      more();
    }
  }
  [[nodiscard]] std::uint64_t offset() const { return window_.offset() + at_; }

 private:
  void more() {
    window_.consume(at_);
    at_ = 0;
    text_ = window_.fill(kJsonReadStep);
  }

  ByteWindow& window_;
  std::string_view text_;
  std::size_t at_ = 0;
};

namespace {

// What nlohmann's reader takes for a place in the text.
class CursorIterator {
 public:
  // NOLINTBEGIN(readability-identifier-naming): the names that the standard gives them
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;
  // NOLINTEND(readability-identifier-naming)

  CursorIterator() = default;
  explicit CursorIterator(JsonCursor* cursor) : cursor_(cursor) {}
  char operator*() const { return cursor_->current(); }
  CursorIterator& operator++() {
    cursor_->next();
    return *this;
  }
  CursorIterator operator++(int) {
    CursorIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CursorIterator& a, const CursorIterator& b) {
    return a.ended() == b.ended();
  }
  friend bool operator!=(const CursorIterator& a, const CursorIterator& b) { return !(a == b); }

 private:
  [[nodiscard]] bool ended() const { return cursor_ == nullptr || cursor_->at_end(); }
  JsonCursor* cursor_ = nullptr;
};

}  // namespace

std::optional<std::uint64_t> JsonScalar::as_unsigned() const {
  if (kind == Kind::kUnsigned) {
    return whole;
  }
  return kind == Kind::kText ? parse_unsigned(text) : std::nullopt;
}

std::optional<std::int64_t> JsonScalar::as_signed() const {
  if (kind == Kind::kInteger) {
    return integer;
  }
  if (kind == Kind::kUnsigned && whole <= INT64_MAX) {
    return static_cast<std::int64_t>(whole);
  }
  return std::nullopt;
}

bool JsonHandler::fail(const std::string& name, std::string found, std::string expected) {
  error_ = error_at_byte(name, offset_, std::move(found), std::move(expected));
  return false;
}

// Turns the library's calls into ours.
class JsonReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonReader(JsonHandler& handler,
             JsonCursor& cursor,
             const std::string& name,
             const std::string& expected)
      : handler_(handler), cursor_(cursor), name_(name), expected_(expected) {}

  bool null() override { return give({}); }
  bool boolean(bool value) override {
    JsonScalar scalar;
    scalar.kind = JsonScalar::Kind::kBool;
    scalar.whole = value ? 1 : 0;
    return give(scalar);
  }
  bool number_integer(number_integer_t value) override {
    JsonScalar scalar;
    scalar.kind = JsonScalar::Kind::kInteger;
    scalar.integer = value;
    return give(scalar);
  }
  bool number_unsigned(number_unsigned_t value) override {
    JsonScalar scalar;
    scalar.kind = JsonScalar::Kind::kUnsigned;
    scalar.whole = value;
    return give(scalar);
  }
  bool number_float(number_float_t value, const string_t& text) override {
    JsonScalar scalar;
    scalar.kind = JsonScalar::Kind::kFraction;
    scalar.fraction = value;
    scalar.text = text;
    return give(scalar);
  }
  bool string(string_t& text) override {
    JsonScalar scalar;
    scalar.kind = JsonScalar::Kind::kText;
    scalar.text = text;
    return give(scalar);
  }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*elements*/) override { return open('{'); }
  bool start_array(std::size_t /*elements*/) override { return open('['); }
  bool end_object() override { return close('{'); }
  bool end_array() override { return close('['); }
  bool key(string_t& text) override {
    key_ = text;
    return true;
  }
  bool parse_error(std::size_t position,
                   const std::string& last_token,
                   const nlohmann::detail::exception& problem) override {
    error_ = error_at_byte(name_,
                           position,
                           "invalid JSON near " + quoted_for_message(last_token) + " (" +
                               json_reason(problem.what()) + ")",
                           expected_);
    return false;
  }
  [[nodiscard]] const std::optional<TraceError>& json_error() const { return error_; }

 private:
  bool give(const JsonScalar& scalar) {
    handler_.offset_ = cursor_.offset();
    const bool goes_on = handler_.scalar(key_, scalar);
    key_.clear();
    return goes_on;
  }
  bool open(char bracket) {
    handler_.offset_ = cursor_.offset();
    const bool goes_on = handler_.open(bracket, key_);
    ++handler_.depth_;
    key_.clear();
    return goes_on;
  }
  bool close(char bracket) {
    handler_.offset_ = cursor_.offset();
    --handler_.depth_;
    return handler_.close(bracket);
  }

  JsonHandler& handler_;
  JsonCursor& cursor_;
  const std::string& name_;
  const std::string& expected_;
  std::string key_;
  std::optional<TraceError> error_;
};

std::optional<TraceError> read_json(ByteWindow& input,
                                    const std::string& name,
                                    const std::string& expected,
                                    JsonHandler& handler) {
  JsonCursor cursor(input);
  JsonReader reader(handler, cursor, name, expected);
  const bool whole = nlohmann::json::sax_parse(CursorIterator(&cursor), CursorIterator(), &reader);
  if (input.source_error()) {
    return input.source_error();
  }
  if (whole) {
    return std::nullopt;
  }
  return handler.error() ? handler.error() : reader.json_error();
}

}  // namespace nofrag
