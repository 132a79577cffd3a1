#include "cli/printable.h"

#include <fmt/format.h>

namespace nofrag {
namespace {

constexpr unsigned char kSpace = 0x20;
constexpr unsigned char kDelete = 0x7f;
// U+0080 to U+009F in UTF-8: the second set of control characters.
constexpr unsigned char kSecondSet = 0xc2;
constexpr unsigned char kSecondSetEnd = 0xa0;

bool is_second_set(std::string_view rest) {
  return rest.size() >= 2 && static_cast<unsigned char>(rest[0]) == kSecondSet &&
         static_cast<unsigned char>(rest[1]) >= 0x80 &&
         static_cast<unsigned char>(rest[1]) < kSecondSetEnd;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte < kSpace || byte == kDelete) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (is_second_set(text.substr(i))) {
      out += fmt::format("\\x{:02x}\\x{:02x}", byte, static_cast<unsigned char>(text[++i]));
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace nofrag
