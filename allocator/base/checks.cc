#include "base/checks.h"

#include <cstdio>
#include <cstdlib>

namespace nofrag {

void check_failed(const char* file, int line, const char* condition, const char* what) {
  std::fprintf(stderr, "nofrag: %s:%d: %s (%s does not hold)\n", file, line, what, condition);
  std::abort();
}

}  // namespace nofrag
