#include "preload/real_calls.h"

#include "preload/bootstrap.h"

namespace nofrag::preload {
namespace {

RealCalls calls;

}  // namespace

const RealCalls& real() {
  return calls;
}

bool fill_real_calls(void* library, const char** missing) {
  *missing = nullptr;
#define NOFRAG_REAL(member, function, symbol)                                           \
  calls.member = reinterpret_cast<decltype(calls.member)>(real_dlsym(library, symbol)); \
  if (calls.member == nullptr) {                                                        \
    *missing = symbol;                                                                  \
  }
  NOFRAG_REAL_CALLS(NOFRAG_REAL)
#undef NOFRAG_REAL
  return *missing == nullptr;
}

}  // namespace nofrag::preload
