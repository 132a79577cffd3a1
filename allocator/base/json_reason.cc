#include "base/json_reason.h"

namespace nofrag {
namespace {

constexpr std::size_t kLongest = 120;

}  // namespace

std::string json_reason(std::string_view message) {
  if (message.starts_with("[json.exception.")) {
    const std::size_t name_end = message.find("] ");
    message.remove_prefix(name_end == std::string_view::npos ? 0 : name_end + 2);
  }
  if (message.starts_with("parse error")) {
    // Where it stands, what was being read, and then why.
    const std::size_t why = message.find(" - ");
    message.remove_prefix(why == std::string_view::npos ? 0 : why + 3);
    for (const std::string_view more : {"; expected ", "; last read"}) {
      message = message.substr(0, message.find(more));
    }
  }
  return std::string(message.substr(0, kLongest));
}

}  // namespace nofrag
