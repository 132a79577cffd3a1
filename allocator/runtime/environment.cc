#include "runtime/environment.h"

#include <cstdlib>

namespace nofrag {

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void set_environment(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

}  // namespace nofrag
