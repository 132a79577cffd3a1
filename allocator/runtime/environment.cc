#include "runtime/environment.h"

#include <cstdlib>

namespace nofrag {

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace nofrag
