#include "runtime/environment.h"

#include <strings.h>
#include <unistd.h>

#include <cstdlib>

namespace nofrag {

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::vector<std::pair<std::string, std::string>> environment_with(std::string_view prefix) {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** one = ::environ; one != nullptr && *one != nullptr; ++one) {
    const std::string_view text = *one;
    const std::size_t end = text.find('=');
    if (end != std::string_view::npos && end > prefix.size() &&
        ::strncasecmp(*one, prefix.data(), prefix.size()) == 0) {
      found.emplace_back(text.substr(0, end), text.substr(end + 1));
    }
  }
  return found;
}

void set_environment(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

}  // namespace nofrag
