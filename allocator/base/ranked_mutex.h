// RankedMutex: a mutex with a place in the one global lock order.
//
// Layer: base. A thread may lock a RankedMutex only if its rank is higher than that of every
// RankedMutex the thread holds; at check level >= 1 a violation aborts. Ranks are listed here so
// that the whole order can be read in one place.
// Threads: any. Works with std::lock_guard and std::unique_lock.
#pragma once

#include <mutex>

#include "base/checks.h"

namespace nofrag {

enum class LockRank : unsigned char {
  kRuntime = 10,  // the table of device allocators
  kDevice = 20,   // one device allocator: pools, heaps, streams, counters
  kDriver = 30,   // simulated driver state, driver ledgers
};

class RankedMutex {
 public:
  explicit RankedMutex(LockRank rank) : rank_(rank) {}
  RankedMutex(const RankedMutex&) = delete;
  RankedMutex& operator=(const RankedMutex&) = delete;

  [[gnu::hot]] void lock();
  void unlock();
  [[gnu::hot]] bool try_lock();

 private:
  std::mutex mutex_;
  LockRank rank_;
};

}  // namespace nofrag
