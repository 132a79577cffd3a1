// Caching: the thread caches of one device, and what the device knows of them.
//
// Owns: a share in each thread's cache; the depots. Layer: device (private header).
// Units: Bytes; counters are differences.
// Invariants: kept blocks are in `blocks` of the device and live for their heap; kept() is their sum.
// Threads: `most`, `off`, `exact` and `epoch` are written under the device's mutex and read by all; the rest is under
// it. Failure: none.
// Decision: docs/decisions/0006-thread-caches.md
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "heap/thread_cache.h"

namespace nofrag {

struct Caching {
  const std::uint64_t allocator = ThreadCache::new_allocator();
  bool wanted = false;              // by the options, and the device has virtual memory
  std::atomic<Bytes> most{};        // that one thread keeps for one stream, and its depot
  std::atomic<Bytes> most_large{};  // the same of blocks too large for bins
  std::atomic<bool> off{
      true};  // now: not wanted, a pool is being filled, or somebody reads all events
  std::atomic<bool> exact{false};       // memory is tight: blocks of the very size only
  std::atomic<std::uint64_t> epoch{0};  // frees of large blocks that the heap has seen
  bool in_use = false;                  // more than next to nothing of the device's memory is taken
  std::vector<std::shared_ptr<ThreadCache>> caches;
  std::map<std::uint32_t, Depot> depots;  // by StreamClock::index; nodes never move
  // The device's own share of the counters: of blocks it took back, and of threads that ended.
  ThreadCounters own;
  std::uint32_t calls_since_look = 0;
  std::chrono::steady_clock::time_point last_look{};

  [[nodiscard]] std::int64_t sum(ThreadCounter ThreadCounters::*counter) const {
    std::int64_t total = (own.*counter).get();
    for (const auto& cache : caches) {
      total += (cache->counters.*counter).get();
    }
    return total;
  }
  // A sum read while threads go on may be off by what they do meanwhile, but never below zero.
  [[nodiscard]] std::uint64_t count(ThreadCounter ThreadCounters::*counter) const {
    const std::int64_t total = sum(counter);
    return total < 0 ? 0 : static_cast<std::uint64_t>(total);
  }
  [[nodiscard]] Bytes kept() const { return Bytes(count(&ThreadCounters::kept_bytes)); }
  // Not off by what threads do: they are stopped for it, unless there is only one to read.
  [[nodiscard]] Bytes kept_exactly() const;

  // The threads of these caches stay outside until open_doors.
  using Caches = std::vector<ThreadCache*>;
  [[nodiscard]] Caches close_doors(const std::function<bool(const ThreadCache&)>& which) const;
  static void open_doors(const Caches& closed);
};

}  // namespace nofrag
