#include "heap/thread_cache.h"

#include <algorithm>
#include <utility>

namespace nofrag {
namespace {

// The cache a thread used last: all that most calls look at.
struct LastUsed {
  std::uint64_t allocator = 0;
  ThreadCache* cache = nullptr;
};
// (Not of the initial-exec model: a library that is loaded late could be refused for want of static thread
// memory. They are read in functions of their own, never inlined, so that no vector register holds anything
// then: glibc before 2.40 does not keep those while it makes thread memory for a descriptor.)
constinit thread_local LastUsed last_used{};
constinit thread_local bool thread_ending = false;

struct OwnCaches {
  std::vector<std::pair<std::uint64_t, std::shared_ptr<ThreadCache>>> all;

  OwnCaches() = default;
  OwnCaches(const OwnCaches&) = delete;
  OwnCaches& operator=(const OwnCaches&) = delete;
  // What is kept stays where it is until the allocator needs it or looks after it: another thread's end is
  // no moment to take locks.
  ~OwnCaches() {
    thread_ending = true;
    last_used = {};
    for (const auto& [allocator, cache] : all) {
      cache->note_thread_ended();
    }
  }
};
thread_local OwnCaches own_caches;

[[gnu::noinline]] ThreadCache* find_mine(std::uint64_t allocator) {
  if (thread_ending) {
    return nullptr;
  }
  for (const auto& [owner, cache] : own_caches.all) {
    if (owner == allocator) {
      last_used = {allocator, cache.get()};
      return cache.get();
    }
  }
  return nullptr;
}

}  // namespace

std::uint64_t ThreadCache::new_allocator() {
  // Not state that anybody can read back or set: a source of fresh numbers.
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

[[gnu::noinline]] ThreadCache* ThreadCache::mine(std::uint64_t allocator) {
  const LastUsed& last = last_used;
  return last.allocator == allocator ? last.cache : find_mine(allocator);
}

[[gnu::noinline]] std::shared_ptr<ThreadCache> ThreadCache::make_mine(std::uint64_t allocator) {
  if (thread_ending) {
    return nullptr;
  }
  std::erase_if(own_caches.all, [](const auto& own) { return own.second->allocator_gone(); });
  auto made = std::make_shared<ThreadCache>();
  own_caches.all.emplace_back(allocator, made);
  last_used = {allocator, made.get()};
  return made;
}

KeptBlocks* ThreadCache::find_stream(StreamId stream) {
  for (const auto& kept : streams_) {
    if (kept->stream == stream) {
      last_ = kept.get();
      return last_;
    }
  }
  return nullptr;
}

KeptBlocks* ThreadCache::find_clock(const StreamClock* clock) {
  for (const auto& kept : streams_) {
    if (kept->clock == clock) {
      last_ = kept.get();
      return last_;
    }
  }
  return nullptr;
}

KeptBlocks& ThreadCache::add(StreamId stream, StreamClock& clock, Depot& depot) {
  depot.add_thread(1);
  streams_.push_back(std::make_unique<KeptBlocks>(stream, clock, depot));
  last_ = streams_.back().get();
  return *last_;
}

Block* ThreadCache::take_all() {
  Block* all = nullptr;
  large_bytes.set(0);
  for (const auto& kept : streams_) {
    all = chain_blocks(kept->take_all(), all);
  }
  return all;
}

Block* ThreadCache::take_all_and_depots() {
  if (streams_.size() == 1 && last_ != nullptr && last_->nothing()) {
    return nullptr;
  }
  Block* all = take_all();
  for (const auto& kept : streams_) {
    all = chain_blocks(kept->depot.take_all(), all);
  }
  return all;
}

Block* ThreadCache::take_large() {
  Block* all = nullptr;
  large_bytes.set(0);
  for (const auto& kept : streams_) {
    all = chain_blocks(kept->take_large(), all);
  }
  return all;
}

bool ThreadCache::empty() const {
  return std::all_of(
      streams_.begin(), streams_.end(), [](const auto& kept) { return kept->bytes().is_zero(); });
}

void ThreadCache::forget_all() {
  for (const auto& kept : streams_) {
    kept->depot.add_thread(-1);
  }
  streams_.clear();
  last_ = nullptr;
}

bool ThreadCache::knows(const StreamClock& clock) const {
  return std::any_of(
      streams_.begin(), streams_.end(), [&](const auto& kept) { return kept->clock == &clock; });
}

Block* ThreadCache::forget(const StreamClock& clock) {
  KeptBlocks* kept = find_clock(&clock);
  Block* all = kept == nullptr ? nullptr : kept->take_all();
  for (const Block* block = all; block != nullptr; block = block->next_kept) {
    if (block->size > KeptBlocks::kLargestBinned) {
      large_bytes.add(-static_cast<std::int64_t>(block->size.count()));
    }
  }
  if (kept != nullptr) {
    kept->depot.add_thread(-1);
  }
  std::erase_if(streams_, [&](const auto& known) { return known.get() == kept; });
  last_ = nullptr;
  return all;
}

}  // namespace nofrag
