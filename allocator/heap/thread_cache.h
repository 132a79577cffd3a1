// ThreadCache: what one thread keeps of one device's freed blocks, by stream, and its own share of the
// device's counters.
//
// The thread passes its handshake (base/handshake.h) for every use; whoever holds the device's lock can close
// it and empty the cache, so that kept memory is free memory for everybody who is short of it.
// Owns: its KeptBlocks. Shared by the thread, which drops it when it ends, and the device's allocator.
// Layer: heap.
// Units: Bytes; the counters are differences, and single ones may be negative.
// Invariants: `kept_bytes` of all caches and of the device add up to the sizes of the blocks that are kept.
// Threads: as said at each member. Counters: written by the thread alone, read by all.
// Failure: none.
// Decision: docs/decisions/0006-thread-caches.md
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/handshake.h"
#include "heap/kept_blocks.h"

namespace nofrag {

// One writer: no read-modify-write.
class ThreadCounter {
 public:
  void add(std::int64_t difference) {
    value_.store(value_.load(std::memory_order_relaxed) + difference, std::memory_order_relaxed);
  }
  void set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  [[nodiscard]] std::int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

struct ThreadCounters {
  ThreadCounter allocations;      // served from the cache
  ThreadCounter frees;            // that the cache took
  ThreadCounter requested_bytes;  // of the two
  ThreadCounter kept_bytes;
  // Since the device last looked (DeviceAllocator::Impl::note_peak).
  ThreadCounter least_kept_bytes;
};

// A cache line pair of its own: its thread writes it all the time.
class alignas(128) ThreadCache {
 public:
  ThreadCache() = default;
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;

  // The calling thread's cache of the allocator with this number, or nullptr. Cheap.
  [[gnu::hot]] static ThreadCache* mine(std::uint64_t allocator);
  // Makes it; nullptr while the thread is ending.
  static std::shared_ptr<ThreadCache> make_mine(std::uint64_t allocator);
  // A number that no other allocator of the process ever has.
  static std::uint64_t new_allocator();

  // In one cache line with the stream that was asked for last.
  Handshake door;

 private:
  KeptBlocks* last_ = nullptr;

 public:
  ThreadCounters counters;
  ThreadCounter large_bytes;  // in blocks too large for bins; 0 after take_all, whoever calls it

  // Inside the door: what is kept for a stream, by either of its names.
  [[nodiscard]] KeptBlocks* of(StreamId stream) {
    KeptBlocks* kept = last_of(stream);
    return kept != nullptr ? kept : find_stream(stream);
  }
  [[nodiscard]] KeptBlocks* of(const StreamClock* clock) {
    KeptBlocks* kept = last_of(clock);
    return kept != nullptr ? kept : find_clock(clock);
  }
  // The same if it is the one that was asked for last, and without a call; else null.
  [[nodiscard]] KeptBlocks* last_of(StreamId stream) const {
    return last_ != nullptr && last_->stream == stream ? last_ : nullptr;
  }
  [[nodiscard]] KeptBlocks* last_of(const StreamClock* clock) const {
    return last_ != nullptr && last_->clock == clock ? last_ : nullptr;
  }
  // Inside: the block's place and the thread's counters.
  void note_taken(Block& block, Bytes requested) {
    if (block.size > KeptBlocks::kLargestBinned) {
      large_bytes.add(-static_cast<std::int64_t>(block.size.count()));
    }
    note_binned_taken(block, requested);
  }
  void note_kept(Block& block) {
    if (block.size > KeptBlocks::kLargestBinned) {
      large_bytes.add(static_cast<std::int64_t>(block.size.count()));
    }
    note_binned_kept(block);
  }
  // The same of blocks that are not too large for bins.
  void note_binned_taken(Block& block, Bytes requested) {
    block.kept.store(false, std::memory_order_relaxed);
    block.requested = requested;
    counters.allocations.add(1);
    counters.requested_bytes.add(static_cast<std::int64_t>(requested.count()));
    const std::int64_t kept =
        counters.kept_bytes.get() - static_cast<std::int64_t>(block.size.count());
    counters.kept_bytes.set(kept);
    if (kept < counters.least_kept_bytes.get()) [[unlikely]] {
      counters.least_kept_bytes.set(kept);
    }
  }
  void note_binned_kept(Block& block) {
    block.kept.store(true, std::memory_order_relaxed);
    counters.frees.add(1);
    counters.requested_bytes.add(-static_cast<std::int64_t>(block.requested.count()));
    block.requested = Bytes(0);
    counters.kept_bytes.add(static_cast<std::int64_t>(block.size.count()));
  }

  // Under the device's lock, by the thread itself or with the door closed:
  KeptBlocks& add(StreamId stream, StreamClock& clock, Depot& depot);
  // Everything kept, as one chain by next_kept. The counters stay.
  Block* take_all();
  [[gnu::hot]] Block* take_all_and_depots();
  // Only blocks too large for bins.
  Block* take_large();
  // Forgets the stream; what was kept for it, as take_all.
  Block* forget(const StreamClock& clock);
  // Forgets all, of which nothing may be kept any more.
  void forget_all();
  void note_least() { counters.least_kept_bytes.set(counters.kept_bytes.get()); }
  // The same, but whatever the thread does meanwhile.
  [[nodiscard]] bool knows(const StreamClock& clock) const;
  template <typename Visitor>
  void for_each_depot(Visitor&& visit) const {
    for (const auto& kept : streams_) {
      visit(kept->depot);
    }
  }
  [[nodiscard]] std::size_t stream_count() const { return streams_.size(); }
  [[nodiscard]] bool empty() const;

  // The thread has ended: nobody passes the door any more.
  [[nodiscard]] bool thread_ended() const { return ended_.load(std::memory_order_acquire); }
  void note_thread_ended() { ended_.store(true, std::memory_order_release); }
  // The allocator is gone: the thread may forget the cache.
  [[nodiscard]] bool allocator_gone() const { return orphan_.load(std::memory_order_acquire); }
  void note_allocator_gone() { orphan_.store(true, std::memory_order_release); }

  // The device's, for telling caches that rest, and what small requests there were.
  std::int64_t uses_seen = 0;
  std::int64_t uses_lately = 0;
  std::int64_t hits_counted = 0;

 private:
  [[gnu::hot]] KeptBlocks* find_stream(StreamId stream);
  KeptBlocks* find_clock(const StreamClock* clock);

  std::vector<std::unique_ptr<KeptBlocks>> streams_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> orphan_{false};
};

}  // namespace nofrag
