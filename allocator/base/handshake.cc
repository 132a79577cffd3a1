#include "base/handshake.h"

#include <unistd.h>

#include <thread>

#include <linux/membarrier.h>
#include <sys/syscall.h>

#include "base/checks.h"

namespace nofrag {
namespace {

bool membarrier(int command) {
  return ::syscall(SYS_membarrier, command, 0, 0) == 0;
}

}  // namespace

bool can_fence_everywhere() {
  // Asked at its first use; the answer never changes.
  static const bool can = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return can;
}

void fence_everywhere() {
  // A child of a fork has to ask for itself.
  if (can_fence_everywhere() && !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
    const bool fenced = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
                        membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    NOFRAG_CHECK(fenced, "the kernel takes back its membarrier");
  }
}

void Handshake::await() const {
  // The owner is inside for some tens of nanoseconds, unless it lost its processor there.
  while (inside_.load(std::memory_order_seq_cst)) {
    std::this_thread::yield();
  }
}

}  // namespace nofrag
