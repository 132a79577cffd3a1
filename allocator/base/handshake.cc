#include "base/handshake.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include <linux/membarrier.h>
#include <sys/syscall.h>

namespace nofrag {
namespace {

constexpr int kYields = 1000;
constexpr std::chrono::microseconds kNap{50};
constexpr std::chrono::milliseconds kStoresAreOut{2};

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
  if (!can_fence_everywhere()) {
    return;  // the owners do it
  }
  // A child of a fork has to ask for itself.
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
      (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
       membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED))) {
    return;
  }
  // Forbidden since we asked, by a sandbox that closed. What orders an owner's store is then that it leaves its
  // processor's buffer within microseconds: while it waits there nothing but time is missing.
  std::this_thread::sleep_for(kStoresAreOut);
}

void Handshake::await() const {
  // The owner is inside for some tens of nanoseconds, unless it lost its processor there.
  for (int yields = 0; inside_.load(std::memory_order_seq_cst); ++yields) {
    if (yields < kYields) {
      std::this_thread::yield();
    } else {
      // To yield lets no thread of lower priority run, and the owner may be one.
      std::this_thread::sleep_for(kNap);
    }
  }
}

}  // namespace nofrag
