#include "runtime/callback_list.h"

namespace nofrag {
namespace {

// The lists this thread is inside of. A process has two: pressure and out-of-memory callbacks.
constexpr std::size_t kMostLists = 4;
thread_local std::array<const void*, kMostLists> inside{};
thread_local std::size_t depth = 0;

}  // namespace

CallbackGuard::CallbackGuard(const void* list) : list_(list) {
  for (std::size_t i = 0; i < depth; ++i) {
    inside_already_ = inside_already_ || inside[i] == list;
  }
  if (!inside_already_ && depth < kMostLists) {
    inside[depth++] = list;
  } else {
    inside_already_ = true;
  }
}

CallbackGuard::~CallbackGuard() {
  if (!inside_already_ && depth > 0 && inside[depth - 1] == list_) {
    --depth;
  }
}

}  // namespace nofrag
