#include "base/ranked_mutex.h"

namespace nofrag {
namespace {

constexpr int kSpins = 100;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace

#if NOFRAG_CHECK_LEVEL >= 1
namespace {

// Ranks held by this thread, one bit a rank (ranks are below 64).
thread_local unsigned long long held_ranks = 0;

unsigned long long bit(LockRank rank) {
  return 1ULL << static_cast<unsigned>(rank);
}

void note_locked(LockRank rank) {
  NOFRAG_CHECK(held_ranks < bit(rank), "lock taken out of rank order (see base/ranked_mutex.h)");
  held_ranks |= bit(rank);
}

void note_unlocked(LockRank rank) {
  NOFRAG_CHECK((held_ranks & bit(rank)) != 0, "unlock of a lock this thread does not hold");
  held_ranks &= ~bit(rank);
}

}  // namespace
#else
namespace {
void note_locked(LockRank) {}
void note_unlocked(LockRank) {}
}  // namespace
#endif

void RankedMutex::lock() {
  note_locked(rank_);
  // Mostly held for less than it takes to sleep and be woken.
  for (int i = 0; i < kSpins; ++i) {
    if (mutex_.try_lock()) {
      return;
    }
    pause();
  }
  mutex_.lock();
}

void RankedMutex::unlock() {
  mutex_.unlock();
  note_unlocked(rank_);
}

bool RankedMutex::try_lock() {
  if (!mutex_.try_lock()) {
    return false;
  }
  note_locked(rank_);
  return true;
}

}  // namespace nofrag
