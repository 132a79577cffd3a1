// Caching: the thread caches of one device, and what the device knows of them.
//
// Owns: a share in each thread's cache; the depots. Layer: device (private header).
// Units: Bytes; counters are differences.
// Invariants: kept blocks are in `blocks` of the device and live for their heap; kept() is their sum.
// Threads: `rules` are written under the device's mutex and read by all; the rest is under it. Failure: none.
// Decision: docs/decisions/0006-thread-caches.md
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/event_sink.h"
#include "device/request_mix.h"
#include "heap/thread_cache.h"

namespace nofrag {

// Who hears of what a cache serves or takes: nobody, or the listener.
enum class Told : unsigned char { kNobody, kListener };

struct Caching {
  // What threads read all the time is in a cache line of its own.
  struct alignas(128) Rules {
    const std::uint64_t allocator = ThreadCache::new_allocator();
    // Now: not wanted, a pool is being filled, or somebody reads all events.
    std::atomic<bool> off{true};
    bool check_streams = false;  // the option; constant
    std::atomic<Fit> fit{Fit::kExact};
    std::atomic<Bytes> largest{};         // in bins
    std::atomic<Bytes> most{};            // that one thread keeps for one stream, and its depot
    std::atomic<Bytes> most_large{};      // the same of blocks too large for bins; 0: none
    std::atomic<std::uint64_t> epoch{0};  // frees of large blocks that the heap has seen
    // Who wants to hear of what caches serve: then they are off for calls that say nothing, and serve those that
    // tell (Told). Read inside doors.
    std::atomic<EventSink*> listener{nullptr};
  };
  Rules rules;

  // The device's own share of the counters: of blocks it took back, and of threads that ended.
  alignas(128) ThreadCounters own;
  // In two cache lines with `own`: what every call under the lock looks at.
  bool wanted = false;        // by the options, and the device has virtual memory
  bool in_use = false;        // more than next to nothing of the device's memory is taken
  bool seen_several = false;  // streams, when `rules` were made
  bool stale = false;         // reserved or the capacity may have changed since
  RequestMix mix;
  std::uint32_t calls = 0;  // under the lock
  std::vector<std::shared_ptr<ThreadCache>> caches;
  // With many threads: the most of either, kept blocks included, since the peaks were last worked out.
  Bytes high_live;
  Bytes high_allocated;
  Bytes rounded;  // by which blocks are larger than their requests, for their classes' sake
  Bytes
      most_by_thread;  // what `most` may be at most; it is less where all threads together keep too much
  std::int64_t taken_back = 0;            // blocks
  std::map<std::uint32_t, Depot> depots;  // by StreamClock::index; nodes never move
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
  [[nodiscard]] Bytes kept_in_bins() const {
    std::int64_t bytes = sum(&ThreadCounters::kept_bytes);
    for (const auto& cache : caches) {
      bytes -= cache->large_bytes.get();
    }
    return Bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)));
  }
  [[nodiscard]] std::int64_t kept_blocks() const {
    return sum(&ThreadCounters::frees) - sum(&ThreadCounters::allocations) - taken_back;
  }
  // More are not added up in every call.
  [[nodiscard]] bool few_threads() const { return caches.size() <= 4; }
  // Of what is live or allocated, with kept blocks, when it was highest: what was used.
  [[nodiscard]] Bytes without_least_kept(Bytes high) const {
    return high - std::min(high, Bytes(count(&ThreadCounters::least_kept_bytes)));
  }
  // Not off by what threads do: they are stopped for it, unless there is only one to read.
  [[nodiscard]] Bytes kept_exactly() const;

  template <Told kTold>
  [[nodiscard]] bool closed() const {
    if constexpr (kTold == Told::kListener) {
      return rules.listener.load(std::memory_order_relaxed) == nullptr;
    }
    return rules.off.load(std::memory_order_relaxed);
  }
  // Read once, inside: it may go at any moment, but what was read stays until the door is left.
  template <Told kTold>
  [[nodiscard]] EventSink* listener_for() const {
    return kTold == Told::kListener ? rules.listener.load(std::memory_order_acquire) : nullptr;
  }
  [[nodiscard]] bool serve() const {
    return !rules.off.load(std::memory_order_relaxed) ||
           rules.listener.load(std::memory_order_relaxed) != nullptr;
  }

  // The threads of these caches stay outside until open_doors.
  using Caches = std::vector<ThreadCache*>;
  using Which = std::function<bool(const ThreadCache&)>;
  [[nodiscard]] Caches close_doors(const Which& which) const;
  static void open_doors(const Caches& closed);
};

}  // namespace nofrag
