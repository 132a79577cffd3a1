// Thread caches: what may be kept in them (fast_path.cc), and how what threads keep comes back to the heap when it is
// needed.

#include "device/caching.h"

#include <algorithm>
#include <utility>

#include "base/thread_id.h"
#include "device/device_impl.h"

namespace nofrag {
namespace {

// What one thread keeps for one stream, and what a depot holds, as parts of the device's memory or the limit.
constexpr std::uint64_t kKeptShare = 2048;
constexpr Bytes kKeptMost = 16 * kMiB;
constexpr std::uint64_t kLargeShare = 64;
// What all keep together, while there is plenty and else.
constexpr std::uint64_t kAllShare = 64;
constexpr std::uint64_t kAllShareInUse = 1024;
constexpr Bytes kLeastKept = 64 * kKiB;
// How much of a full depot, and of a full cache, goes at once.
constexpr std::uint64_t kGoesShare = 8;
// Where memory may run short only small blocks are kept.
constexpr Bytes kLargestWhenTight = 32 * kKiB;
constexpr std::uint64_t kPlentyShare = 25;
// What classes may add to the sizes of all blocks, once small requests come thick and fast.
constexpr std::uint64_t kRoundedShare = 1024;
// Streams that one thread keeps blocks for: programs that make a stream for each request have no end of them.
constexpr std::size_t kMostStreams = 32;
// How often what all keep is added up, and caches that rest are looked for: in calls under the lock, and in time.
constexpr std::uint32_t kCallsASum = 64;
constexpr std::uint32_t kCallsALook = 512;
constexpr std::chrono::seconds kRest{1};
// No caller's stream: per-thread default streams of other threads share one name.
constexpr StreamId kNobodys{UINT64_MAX};

bool all(const ThreadCache&) {
  return true;
}

}  // namespace

Caching::Caches Caching::close_doors(const Which& which) const {
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
  const bool wanted = caching.wanted && !filling_pool();
  const bool told = wanted && sink != nullptr && sink->concurrent();
  caching.rules.off.store(!wanted || sink != nullptr, std::memory_order_relaxed);
  caching.rules.listener.store(told ? sink : nullptr, std::memory_order_release);
  note_pressure();
}

// Memory may run short: half of it is taken, or, with several streams that share it, more than next to nothing.
bool DeviceAllocator::Impl::may_run_short() const {
  return tight || (streams.several() && caching.in_use);
}

// What may be kept, of the very size. Several streams: nothing, unless small requests are many more than large
// ones; then, as wherever memory may run short, only small blocks. Once small requests come thick and fast, and
// hardly any large ones that need the heap in good order, all sizes, and what is somewhat larger serves too.
void DeviceAllocator::Impl::note_pressure() {
  caching.in_use = kPlentyShare * physical.reserved() >= capacity();
  caching.seen_several = streams.several();
  const bool hot = caching.mix.hot();
  const bool sparing = may_run_short() && !hot;
  const bool shared = streams.several() && !hot;
  const bool plenty = hot && !caching.in_use && !tight;
  const Bytes share = std::min(Bytes(capacity().count() / kKeptShare), kKeptMost);
  // Written only if they change: every thread reads them all the time.
  const auto set = [](auto& rule, auto value) {
    if (rule.load(std::memory_order_relaxed) != value) {
      rule.store(value, std::memory_order_relaxed);
    }
  };
  Caching::Rules& rules = caching.rules;
  if (const Bytes by_thread = plenty ? 2 * share : share; caching.most_by_thread != by_thread) {
    caching.most_by_thread = by_thread;
    set(rules.most, by_thread);
  }
  set(rules.fit, plenty ? Fit::kDouble : hot ? Fit::kEighth : Fit::kExact);
  const Bytes largest = sparing ? kLargestWhenTight : KeptBlocks::kLargestBinned;
  set(rules.largest, shared && !caching.mix.fine() ? Bytes(0) : largest);
  const Bytes large = Bytes(capacity().count() / kLargeShare);
  set(rules.most_large, shared || may_run_short() ? Bytes(0) : large);
}

// A request that no cache served: what may be kept depends on which are many.
void DeviceAllocator::Impl::note_missed(Bytes size) {
  if (!caching.wanted) {
    return;
  }
  ThreadCache* cache = ThreadCache::mine(caching.rules.allocator);
  const std::int64_t hits = cache == nullptr ? 0 : cache->counters.allocations.get();
  const std::int64_t more =
      hits - (cache == nullptr ? 0 : std::exchange(cache->hits_counted, hits));
  if (!caching.mix.note(size <= KeptBlocks::kLargestBinned, more, streams.several())) {
    return;
  }
  const Bytes before = caching.rules.largest.load(std::memory_order_relaxed);
  note_pressure();
  if (caching.rules.largest.load(std::memory_order_relaxed) < before) {
    empty_caches();
  }
}

// The size that the heap is asked for, so that a kept block serves its whole class.
Bytes DeviceAllocator::Impl::size_for_cache(Bytes size) const {
  const Bytes whole = KeptBlocks::class_size(size);
  const Bytes rounded = caching.rounded + (whole - size);
  return caching.mix.hot() && rounded <= Bytes(capacity().count() / kRoundedShare) ? whole : size;
}

// From now on this thread keeps what is freed of the stream. `stream`: what the caller calls it, if it is its
// own name.
void DeviceAllocator::Impl::open_cache(StreamClock& clock) {
  if (caching.wanted && ++caching.calls % kCallsASum == 0) [[unlikely]] {
    look_after_caches();
  }
  if (caching.seen_several != streams.several() || std::exchange(caching.stale, false)) {
    note_pressure();
  }
  const bool vouched =
      clock.identity != 0 || clock.stream.value() == 0 || clock.stream.is_per_thread();
  if (!caching.serve() || !vouched || clock.captured || clock.foreign || clock.gone ||
      clock.retired) {
    return;
  }
  ThreadCache* cache = ThreadCache::mine(caching.rules.allocator);
  if (cache == nullptr) {
    empty_ended_caches();
    const std::shared_ptr<ThreadCache> made = ThreadCache::make_mine(caching.rules.allocator);
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

bool DeviceAllocator::Impl::empty_caches(const Caching::Which& which, bool depots) {
  note_high();
  take_peak();
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
  caching.rules.off.store(true, std::memory_order_relaxed);
  caching.rules.listener.store(nullptr, std::memory_order_relaxed);
  empty_caches(all, true);
}

// What threads keep for this stream goes back, and they forget it: no others are stopped.
void DeviceAllocator::Impl::forget_stream(const StreamClock& clock) {
  note_high();
  take_peak();
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
  ThreadCache* cache = ThreadCache::mine(caching.rules.allocator);
  return cache != nullptr && release_kept(cache->take_all_and_depots());
}

// A large request finds the heap as it would be if nothing were kept by this thread, and nothing large by others:
// where it goes decides how much memory a job needs. (PyTorch's backward pass runs in a thread of its own.)
void DeviceAllocator::Impl::empty_for_large() {
  empty_own_cache();
  const auto large = [](const ThreadCache& cache) { return cache.large_bytes.get() > 0; };
  if (std::none_of(caching.caches.begin(), caching.caches.end(), [&large](const auto& cache) {
        return large(*cache);
      })) {
    return;
  }
  const Caching::Caches closed = caching.close_doors(large);
  Block* chain = nullptr;
  for (ThreadCache* cache : closed) {
    chain = chain_blocks(cache->take_large(), chain);
  }
  Caching::open_doors(closed);
  release_kept(chain);
}

// If it was for want of room that the thread did not keep this block, some of what is in the way goes.
void DeviceAllocator::Impl::make_room_for(const Block& block) {
  if (!caching.serve()) {
    return;
  }
  ThreadCache* cache = ThreadCache::mine(caching.rules.allocator);
  KeptBlocks* kept = cache == nullptr ? nullptr : cache->of(block.clock);
  if (kept == nullptr || !block.keepable ||
      block.size > caching.rules.largest.load(std::memory_order_relaxed)) {
    return;
  }
  const Bytes alone = caching.rules.most.load(std::memory_order_relaxed);
  const Bytes most = kept->depot.shared() ? alone : 2 * alone;
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
                                   &ThreadCounters::kept_bytes}) {
          (caching.own.*counter).add((cache->counters.*counter).get());
        }
        caching.own.least_kept_bytes.set(caching.own.kept_bytes.get());
        cache->forget_all();
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

// Now and then: all together must not keep too much, and what threads keep that have not come for a while goes
// back.
void DeviceAllocator::Impl::look_after_caches() {
  // Blocks too large for bins have a bound of their own (most_large), and are no reason to keep few small ones.
  const Bytes kept = caching.kept_in_bins();
  const bool in_use = caching.in_use || tight;
  const Bytes budget(capacity().count() / (in_use ? kAllShareInUse : kAllShare));
  const Bytes most = caching.rules.most.load(std::memory_order_relaxed);
  Bytes fair = most;
  if (kept > budget) {
    fair = std::max(Bytes(most.count() / 4 * 3), std::min(kLeastKept, most));
  } else if (most < caching.most_by_thread && kept.count() / 3 * 4 < budget.count()) {
    fair = std::min(Bytes(most.count() / 4 * 5), caching.most_by_thread);
  }
  if (fair != most) {
    caching.rules.most.store(fair, std::memory_order_relaxed);
  }
  if (caching.calls % kCallsALook != 0) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  const bool long_ago = now - caching.last_look >= kRest;
  if (long_ago) {
    caching.last_look = now;
  }
  std::vector<const ThreadCache*> resting;
  for (const auto& cache : caching.caches) {
    const std::int64_t uses = cache->counters.allocations.get() + cache->counters.frees.get();
    const bool rests =
        (long_ago && uses == cache->uses_seen) || (kept > budget && uses == cache->uses_lately);
    if (rests && uses != 0) {
      resting.push_back(cache.get());
    }
    cache->uses_lately = uses;
    cache->uses_seen = long_ago ? uses : cache->uses_seen;
  }
  if (!resting.empty()) {
    empty_caches(
        [&resting](const ThreadCache& cache) {
          return std::find(resting.begin(), resting.end(), &cache) != resting.end();
        },
        false);
  }
}

}  // namespace nofrag
