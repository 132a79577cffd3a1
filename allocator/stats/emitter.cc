#include "stats/emitter.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "base/checks.h"
#include "config/human_bytes.h"

namespace nofrag {
namespace {

void append_json_string(std::string* out, std::string_view value) {
  *out += '"';
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += c;
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      *out += escape;
    } else {
      *out += c;
    }
  }
  *out += '"';
}

std::string format_real(double value, int decimals) {
  char digits[64];
  std::snprintf(digits, sizeof digits, "%.*f", decimals, std::isfinite(value) ? value : 0.0);
  return digits;
}

}  // namespace

void JsonEmitter::begin_value(std::string_view key) {
  if (!first_) {
    out_ += ',';
  }
  first_ = false;
  if (!key.empty()) {
    append_json_string(&out_, key);
    out_ += ':';
  }
}

void JsonEmitter::open_object(std::string_view key) {
  begin_value(key);
  out_ += '{';
  ++depth_;
  first_ = true;
}

void JsonEmitter::open_item(std::string_view /*label*/) {
  open_object({});
}

void JsonEmitter::close_object() {
  out_ += '}';
  --depth_;
  first_ = false;
}

void JsonEmitter::open_list(std::string_view key) {
  begin_value(key);
  out_ += '[';
  ++depth_;
  first_ = true;
}

void JsonEmitter::close_list() {
  out_ += ']';
  --depth_;
  first_ = false;
}

void JsonEmitter::number(std::string_view key, std::uint64_t value, StatUnit /*unit*/) {
  begin_value(key);
  out_ += std::to_string(value);
}

void JsonEmitter::real(std::string_view key, double value, int decimals) {
  begin_value(key);
  out_ += format_real(value, decimals);
}

void JsonEmitter::text(std::string_view key, std::string_view value) {
  begin_value(key);
  append_json_string(&out_, value);
}

std::string JsonEmitter::take() {
  close_object();
  NOFRAG_CHECK(depth_ == 0, "an object or list was not closed");
  out_ += '\n';
  return std::move(out_);
}

void TextEmitter::line(std::string_view key, std::string_view value) {
  constexpr std::size_t kValueColumn = 34;
  const std::size_t begin = out_.size();
  out_.append(static_cast<std::size_t>(depth_) * 2, ' ');
  out_ += key;
  const std::size_t width = out_.size() - begin;
  out_.append(width < kValueColumn ? kValueColumn - width : 1, ' ');
  out_ += value;
  out_ += '\n';
}

void TextEmitter::open_object(std::string_view key) {
  out_.append(static_cast<std::size_t>(depth_) * 2, ' ');
  out_ += key;
  out_ += ":\n";
  ++depth_;
}

void TextEmitter::open_item(std::string_view label) {
  open_object(label);
}

void TextEmitter::close_object() {
  --depth_;
}

// Items carry their own heading.
void TextEmitter::open_list(std::string_view /*key*/) {}
void TextEmitter::close_list() {}

void TextEmitter::number(std::string_view key, std::uint64_t value, StatUnit unit) {
  std::string digits = std::to_string(value);
  if (unit == StatUnit::kBytes && value == UINT64_MAX) {
    digits = "none";
  } else if (unit == StatUnit::kBytes && value >= 1024) {
    digits += " (" + human_bytes(Bytes(value)) + ")";
  }
  line(key, digits);
}

void TextEmitter::real(std::string_view key, double value, int decimals) {
  line(key, format_real(value, decimals));
}

void TextEmitter::text(std::string_view key, std::string_view value) {
  line(key, value);
}

std::string TextEmitter::take() {
  NOFRAG_CHECK(depth_ == 0, "an object was not closed");
  return std::move(out_);
}

}  // namespace nofrag
