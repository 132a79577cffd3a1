#include "base/thread_id.h"

#include <atomic>

namespace nofrag {

std::uint64_t this_thread_id() {
  // Not state that anybody can read back or set: a source of fresh numbers.
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t id = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return id;
}

}  // namespace nofrag
