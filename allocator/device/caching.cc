// Thread caches: allocations and frees that never take the device's lock, and how what threads keep comes
// back to the heap when it is needed.

#include "device/caching.h"

#include <algorithm>

#include "base/thread_id.h"
#include "device/device_impl.h"

namespace nofrag {
namespace {

// What one thread keeps for one stream, and what a depot holds, as parts of the device's memory or the limit.
constexpr std::uint64_t kKeptShare = 2048;
constexpr Bytes kKeptMost = 16 * kMiB;
constexpr std::uint64_t kLargeShare = 64;
// How much of a full depot, and of a full cache, goes at once.
constexpr std::uint64_t kGoesShare = 8;
// Where memory may run short only small blocks are kept, and only blocks of the very size are given out.
constexpr Bytes kLargestWhenTight = 32 * kKiB;
constexpr std::uint64_t kPlentyShare = 25;
// Streams that one thread keeps blocks for: programs that make a stream for each request have no end of them.
constexpr std::size_t kMostStreams = 32;
// How often caches that rest are looked for: in calls under the lock, and in time.
constexpr std::uint32_t kCallsALook = 256;
constexpr std::chrono::seconds kRest{1};
constexpr Bytes kLargestCached = kGiB;
constexpr StreamId kLegacy{1};
// No caller's stream: per-thread default streams of other threads share one name.
constexpr StreamId kNobodys{UINT64_MAX};

// Two names for one stream.
StreamId one_name(StreamId stream) {
  return stream == kLegacy ? StreamId(0) : stream;
}

bool all(const ThreadCache&) {
  return true;
}

}  // namespace

Caching::Caches Caching::close_doors(const std::function<bool(const ThreadCache&)>& which) const {
  Caches closed;
  for (const auto& cache : caches) {
    if (which(*cache)) {
      cache->door.close();
      closed.push_back(cache.get());
    }
  }
  if (!closed.empty()) {
    fence_everywhere();
  }
  for (const ThreadCache* cache : closed) {
    cache->door.await();
  }
  return closed;
}

void Caching::open_doors(const Caches& closed) {
  for (ThreadCache* cache : closed) {
    cache->door.open();
  }
}

Bytes Caching::kept_exactly() const {
  // A block that went from a thread read already to one read later, or back, is counted twice or not at all.
  const Caches closed = caches.size() > 1 ? close_doors(all) : Caches{};
  const Bytes sum = kept();
  open_doors(closed);
  return sum;
}

// Whether caches may be used, and how much they may hold. Called whenever something of it changed.
void DeviceAllocator::Impl::set_caching() {
  note_pressure();
  const Bytes share(capacity().count() / kKeptShare);
  caching.most.store(std::min(share, kKeptMost), std::memory_order_relaxed);
  caching.most_large.store(Bytes(capacity().count() / kLargeShare), std::memory_order_relaxed);
  const bool off = !caching.wanted || filling_pool() || sink != nullptr;
  caching.off.store(off, std::memory_order_relaxed);
}

// Small blocks of the very size alone are kept where memory may run short: once half of it is taken, or, with
// several streams that share it, once it is not next to nothing.
void DeviceAllocator::Impl::note_pressure() {
  caching.in_use = kPlentyShare * physical.reserved() >= capacity();
  const bool shared = streams.several() && caching.in_use;
  if (caching.exact.load(std::memory_order_relaxed) != (tight || shared)) {
    caching.exact.store(tight || shared, std::memory_order_relaxed);
  }
}

// A kept block for the request, at once, or null.
VirtAddr DeviceAllocator::Impl::take_kept(Bytes requested, StreamId stream) {
  if (caching.off.load(std::memory_order_relaxed) || requested.is_zero() ||
      requested > kLargestCached) {
    return {};
  }
  ThreadCache* cache = ThreadCache::mine(caching.allocator);
  if (cache == nullptr || !cache->door.enter()) {
    return {};
  }
  Block* block = nullptr;
  // Asked again inside: whoever switches caches off and empties them finds them empty from then on.
  const bool off = caching.off.load(std::memory_order_relaxed);
  KeptBlocks* kept = off ? nullptr : cache->of(one_name(stream));
  // A destroyed stream's handle may mean another stream now: whoever does not retire streams asks for checks.
  if (kept != nullptr && (!options.check_streams || kept->clock->identity == 0 ||
                          driver.stream_is(device, stream, kept->clock->identity))) {
    block = kept->take(round_up(requested, kBlockUnit),
                       caching.exact.load(std::memory_order_relaxed),
                       caching.epoch.load(std::memory_order_relaxed));
  }
  VirtAddr address;
  if (block != nullptr) {
    cache->note_taken(*block, requested);
    address = block->address;
  }
  cache->door.leave();
  return address;
}

// True if the free is dealt with: the block is kept, or (*status) it is nobody's.
bool DeviceAllocator::Impl::keep(VirtAddr address, Status* status) {
  if (caching.off.load(std::memory_order_relaxed)) {
    return false;
  }
  ThreadCache* cache = ThreadCache::mine(caching.allocator);
  if (cache == nullptr || !cache->door.enter()) {
    return false;
  }
  // Read together: of a block that is freed twice another thread may be taking leave right now.
  Block* block = nullptr;
  bool nobodys = false;
  const bool known = blocks.find_shared(address, &block, [&nobodys](const Block& found) {
    nobodys = found.kept.load(std::memory_order_acquire);
  });
  bool done = false;
  if (!known || block == nullptr) {
    cache->door.leave();
    return false;
  }
  if (nobodys) {
    *status = Errc::kUnknownPointer;
    done = true;
  } else if (block->uses == nullptr && block->pool == default_pool &&
             !caching.off.load(std::memory_order_relaxed)) {
    if (KeptBlocks* kept = cache->of(block->clock)) {
      const bool exact = caching.exact.load(std::memory_order_relaxed);
      if (block->size <= (exact ? kLargestWhenTight : KeptBlocks::kLargestBinned)) {
        done = kept->put(block, caching.most.load(std::memory_order_relaxed));
      } else {
        done = !exact && block->epoch == caching.epoch.load(std::memory_order_relaxed) &&
               kept->put_large(block, caching.most_large.load(std::memory_order_relaxed));
      }
      if (done) {
        cache->note_kept(*block);
      }
    }
  }
  cache->door.leave();
  return done;
}

// From now on this thread keeps what is freed of the stream. `stream`: what the caller calls it, if it is its
// own name.
void DeviceAllocator::Impl::open_cache(StreamClock& clock) {
  look_after_caches();
  note_pressure();
  const bool vouched =
      clock.identity != 0 || clock.stream.value() == 0 || clock.stream.is_per_thread();
  if (caching.off.load(std::memory_order_relaxed) || !vouched || clock.captured || clock.foreign ||
      clock.gone || clock.retired) {
    return;
  }
  ThreadCache* cache = ThreadCache::mine(caching.allocator);
  if (cache == nullptr) {
    empty_ended_caches();
    const std::shared_ptr<ThreadCache> made = ThreadCache::make_mine(caching.allocator);
    if (made == nullptr) {
      return;
    }
    caching.caches.push_back(made);
    cache = made.get();
  }
  if (cache->of(&clock) != nullptr) {
    return;
  }
  const bool nobodys = clock.owner_thread != 0 && clock.owner_thread != this_thread_id();
  const StreamId name = nobodys ? kNobodys : clock.stream;
  // Its handle meant another stream before; or too many streams were seen.
  const KeptBlocks* stale = cache->of(name);
  if (cache->stream_count() >= kMostStreams || (stale != nullptr && !nobodys)) {
    Block* chain = cache->take_all();
    cache->forget_all();
    release_kept(chain);
    drop_unused_depots();
  }
  cache->add(name, clock, caching.depots[clock.index]);
}

// What threads keep goes back to the heap. True if there was anything.
bool DeviceAllocator::Impl::empty_caches() {
  // With several threads a sum of zero may be wrong.
  if (caching.caches.size() <= 1 && caching.kept().is_zero()) {
    return false;
  }
  return empty_caches(all, true);
}

bool DeviceAllocator::Impl::empty_caches(const Which& which, bool depots) {
  note_peak();
  const Caching::Caches closed = caching.close_doors(which);
  Block* chain = nullptr;
  for (ThreadCache* cache : closed) {
    chain = chain_blocks(cache->take_all(), chain);
    cache->note_least();
  }
  for (auto& [index, depot] : caching.depots) {
    chain = chain_blocks(depots ? depot.take_all() : nullptr, chain);
  }
  Caching::open_doors(closed);
  drop_ended_caches();
  return release_kept(chain);
}

// Nothing is kept, and nothing will be until set_caching() allows it.
void DeviceAllocator::Impl::stop_caching() {
  caching.off.store(true, std::memory_order_relaxed);
  empty_caches(all, true);
}

// What threads keep for this stream goes back, and they forget it: no others are stopped.
void DeviceAllocator::Impl::forget_stream(const StreamClock& clock) {
  note_peak();
  const Caching::Caches closed =
      caching.close_doors([&clock](const ThreadCache& cache) { return cache.knows(clock); });
  Block* chain = nullptr;
  for (ThreadCache* cache : closed) {
    chain = chain_blocks(cache->forget(clock), chain);
    cache->note_least();
  }
  if (const auto depot = caching.depots.find(clock.index); depot != caching.depots.end()) {
    chain = chain_blocks(depot->second.take_all(), chain);
    caching.depots.erase(depot);
  }
  Caching::open_doors(closed);
  release_kept(chain);
}

// Streams that turned out to be destroyed without a word: nobody keeps anything for their handles any more.
void DeviceAllocator::Impl::forget_gone_streams() {
  for (StreamClock* gone : streams.take_newly_gone()) {
    forget_stream(*gone);
  }
}

// What the calling thread keeps goes back to the heap, and what lies in the depots of its streams: no door to
// close. True if there was anything.
bool DeviceAllocator::Impl::empty_own_cache() {
  ThreadCache* cache = ThreadCache::mine(caching.allocator);
  return cache != nullptr && release_kept(cache->take_all_and_depots());
}

// A large request finds the heap as it would be if nothing were kept by this thread, and nothing large by others:
// where it goes decides how much memory a job needs. (PyTorch's backward pass runs in a thread of its own.)
void DeviceAllocator::Impl::empty_for_large() {
  empty_own_cache();
  const auto large = [](const ThreadCache& cache) { return cache.large_blocks.get() > 0; };
  if (std::any_of(caching.caches.begin(), caching.caches.end(), [&large](const auto& cache) {
        return large(*cache);
      })) {
    empty_caches(large, false);
  }
}

// If it was for want of room that the thread did not keep this block, some of what is in the way goes.
void DeviceAllocator::Impl::make_room_for(const Block& block) {
  const bool exact = caching.exact.load(std::memory_order_relaxed);
  ThreadCache* cache = ThreadCache::mine(caching.allocator);
  KeptBlocks* kept = cache == nullptr ? nullptr : cache->of(block.clock);
  if (kept == nullptr || block.uses != nullptr || block.pool != default_pool ||
      block.size > (exact ? kLargestWhenTight : KeptBlocks::kLargestBinned)) {
    return;
  }
  const Bytes most = caching.most.load(std::memory_order_relaxed);
  if (block.size > most) {
    return;
  }
  const Bytes left = most - std::max(block.size, Bytes(most.count() / kGoesShare));
  Block* chain = kept->depot.take_down_to(left);
  release_kept(chain_blocks(kept->take_down_to(left), chain));
}

// Nobody else comes to what ended threads kept.
void DeviceAllocator::Impl::empty_ended_caches() {
  Block* chain = nullptr;
  for (const auto& cache : caching.caches) {
    if (cache->thread_ended()) {
      chain = chain_blocks(cache->take_all(), chain);
    }
  }
  release_kept(chain);
  drop_ended_caches();
}

// Threads that have ended leave their counters; what they kept must be out already.
void DeviceAllocator::Impl::drop_ended_caches() {
  const auto gone =
      std::erase_if(caching.caches, [this](const std::shared_ptr<ThreadCache>& cache) {
        if (!cache->thread_ended() || !cache->empty()) {
          return false;
        }
        for (const auto counter : {&ThreadCounters::allocations,
                                   &ThreadCounters::frees,
                                   &ThreadCounters::requested_bytes,
                                   &ThreadCounters::kept_bytes,
                                   &ThreadCounters::kept_blocks}) {
          (caching.own.*counter).add((cache->counters.*counter).get());
        }
        caching.own.least_kept_bytes.set(caching.own.kept_bytes.get());
        return true;
      });
  if (gone > 0) {
    drop_unused_depots();
  }
}

// Nobody takes from the depots of streams that no thread knows any more: their own threads have ended.
void DeviceAllocator::Impl::drop_unused_depots() {
  std::vector<const Depot*> used;
  for (const auto& cache : caching.caches) {
    cache->for_each_depot([&used](const Depot& depot) { used.push_back(&depot); });
  }
  std::sort(used.begin(), used.end());
  Block* chain = nullptr;
  for (auto at = caching.depots.begin(); at != caching.depots.end();) {
    if (std::binary_search(used.begin(), used.end(), &at->second)) {
      ++at;
      continue;
    }
    chain = chain_blocks(at->second.take_all(), chain);
    at = caching.depots.erase(at);
  }
  release_kept(chain);
}

// Gives a chain of kept blocks to the heap. True if there was one.
bool DeviceAllocator::Impl::release_kept(Block* chain) {
  const bool any = chain != nullptr;
  while (chain != nullptr) {
    Block* block = chain;
    chain = std::exchange(block->next_kept, nullptr);
    caching.own.kept_bytes.add(-static_cast<std::int64_t>(block->size.count()));
    caching.own.kept_blocks.add(-1);
    blocks.erase(block->address);
    block->kept.store(false, std::memory_order_release);  // after the erase: keep() relies on it
    live_bytes -= block->size;
    --live_blocks;
    --block->pool->live_blocks;
    finish_free(block);
  }
  caching.own.least_kept_bytes.set(caching.own.kept_bytes.get());
  return any;
}

// Between two calls under the lock live memory was highest when least was kept. (With several threads the
// least of each counts, so that the peak may be too high by what they keep.)
Bytes DeviceAllocator::Impl::most_live() const {
  const Bytes least(caching.count(&ThreadCounters::least_kept_bytes));
  return live_bytes - std::min(live_bytes, least);
}

void DeviceAllocator::Impl::note_peak() {
  // To add up what all threads keep takes a look at each.
  if (live_bytes > peak_live || live_bytes + pending_bytes > peak_allocated) {
    const Bytes used = most_live();
    peak_live = std::max(peak_live, used);
    peak_allocated = std::max(peak_allocated, used + pending_bytes);
  }
  if (ThreadCache* cache = ThreadCache::mine(caching.allocator)) {
    cache->note_least();
  }
}

void DeviceAllocator::Impl::reset_peaks() {
  const Caching::Caches closed = caching.close_doors(all);
  for (ThreadCache* cache : closed) {
    cache->note_least();
  }
  caching.own.least_kept_bytes.set(caching.own.kept_bytes.get());
  peak_live = most_live();
  peak_allocated = peak_live + pending_bytes;
  physical.reset_peak();
  Caching::open_doors(closed);
}

// Now and then: what threads keep that have not come for a while goes back.
void DeviceAllocator::Impl::look_after_caches() {
  if (++caching.calls_since_look < kCallsALook) {
    return;
  }
  caching.calls_since_look = 0;
  const auto now = std::chrono::steady_clock::now();
  if (now - caching.last_look < kRest) {
    return;
  }
  caching.last_look = now;
  bool any = false;
  std::vector<const ThreadCache*> resting;
  for (const auto& cache : caching.caches) {
    const std::int64_t uses = cache->counters.allocations.get() + cache->counters.frees.get();
    if (uses == cache->uses_seen && uses != 0) {
      resting.push_back(cache.get());
      any = true;
    }
    cache->uses_seen = uses;
  }
  if (any) {
    empty_caches(
        [&resting](const ThreadCache& cache) {
          return std::find(resting.begin(), resting.end(), &cache) != resting.end();
        },
        false);
  }
}

}  // namespace nofrag
