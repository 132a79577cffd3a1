// What the allocator says about itself: statistics, the out-of-memory report, the invariant walk.

#include <algorithm>

#include "config/human_bytes.h"
#include "device/device_impl.h"

namespace nofrag {
namespace {

// What is free in a pinned handle serves only where it is.
void note_pinned(const Handle& handle, DeviceStats* s) {
  const Bytes size = handle.physical.size;
  s->pinned += size;
  if (handle.idle()) {
    s->mapped_in_use += size;
    s->free_handles -= size;
    s->stranded += size;
  }
}

// The free back of one handle and the free front of another that give most together.
class BestEnds {
 public:
  void add(const Handle& handle, const RangeHeap::Ends& ends) {
    backs_.add(handle, ends.back);
    fronts_.add(handle, ends.front);
  }
  [[nodiscard]] Bytes sum() const {
    Bytes most;
    for (const End& back : backs_.best) {
      for (const End& front : fronts_.best) {
        const bool apart = back.handle == nullptr || back.handle != front.handle;
        most = std::max(most, apart ? back.free + front.free : Bytes(0));
      }
    }
    return most;
  }

 private:
  struct End {
    const Handle* handle = nullptr;
    Bytes free;
  };
  // Two are enough: at most one of them shares its handle with the end it is paired with.
  struct Side {
    End best[2];
    void add(const Handle& handle, Bytes free) {
      if (free > best[0].free) {
        best[1] = best[0];
        best[0] = {&handle, free};
      } else if (free > best[1].free) {
        best[1] = {&handle, free};
      }
    }
  };
  Side backs_;
  Side fronts_;
};

// With many threads their counters are added up for the peaks only every so many calls under the lock.
constexpr std::uint32_t kCallsAPeak = 64;

}  // namespace

// Between two calls under the lock live memory was highest when least was kept. With several threads the least of
// each counts, with many the most and the least of a while, so that a peak may be too high by what they keep.
void DeviceAllocator::Impl::note_high() {
  caching.high_live = caching.few_threads() ? live_bytes : std::max(caching.high_live, live_bytes);
  caching.high_allocated = caching.few_threads()
                               ? live_bytes + pending_bytes
                               : std::max(caching.high_allocated, live_bytes + pending_bytes);
}

void DeviceAllocator::Impl::note_peak() {
  note_high();
  // To add up what all threads keep takes a look at each.
  if (caching.few_threads() || caching.calls % kCallsAPeak == 0) {
    take_peak();
  }
}

void DeviceAllocator::Impl::take_peak() {
  if (caching.high_live > peak_live || caching.high_allocated > peak_allocated) {
    peak_live = std::max(peak_live, caching.without_least_kept(caching.high_live));
    peak_allocated = std::max(peak_allocated, caching.without_least_kept(caching.high_allocated));
  }
  caching.high_live = live_bytes;
  caching.high_allocated = live_bytes + pending_bytes;
  if (ThreadCache* cache = ThreadCache::mine(caching.rules.allocator)) {
    cache->note_least();
  }
}

// A block was allocated.
void DeviceAllocator::Impl::note_grown() {
  if (!caching.few_threads()) {
    note_high();
  } else if (live_bytes > peak_live || live_bytes + pending_bytes > peak_allocated) {
    const Bytes used = live_bytes - std::min(live_bytes, caching.kept());
    peak_live = std::max(peak_live, used);
    peak_allocated = std::max(peak_allocated, used + pending_bytes);
  }
}

void DeviceAllocator::Impl::reset_peaks() {
  const Caching::Caches closed = caching.close_doors([](const ThreadCache&) { return true; });
  for (ThreadCache* cache : closed) {
    cache->note_least();
  }
  caching.own.least_kept_bytes.set(caching.own.kept_bytes.get());
  caching.high_live = live_bytes;
  caching.high_allocated = live_bytes + pending_bytes;
  peak_live = caching.without_least_kept(caching.high_live);
  peak_allocated = caching.without_least_kept(caching.high_allocated);
  physical.reset_peak();
  Caching::open_doors(closed);
}

DeviceStats DeviceAllocator::Impl::stats_locked(bool walk) const {
  DeviceStats s;
  s.kept = std::min(caching.kept(), live_bytes);
  s.live = live_bytes - s.kept;
  const std::int64_t requested = requested_bytes + caching.sum(&ThreadCounters::requested_bytes);
  // Threads that go on meanwhile may be counted half.
  s.requested =
      std::min(s.live, Bytes(static_cast<std::uint64_t>(std::max(requested, std::int64_t{0}))));
  s.pending = pending_bytes;
  s.allocated = s.live + pending_bytes;
  s.reserved = physical.reserved();
  s.limit = physical.limit();
  const Bytes high = caching.few_threads() ? live_bytes : std::max(caching.high_live, live_bytes);
  const Bytes high_all = caching.few_threads()
                             ? live_bytes + pending_bytes
                             : std::max(caching.high_allocated, live_bytes + pending_bytes);
  s.peak_live = std::max(peak_live, caching.without_least_kept(high));
  s.peak_allocated = std::max(peak_allocated, caching.without_least_kept(high_all));
  s.peak_reserved = physical.peak_reserved();
  s.live_blocks =
      live_blocks -
      std::min(live_blocks,
               static_cast<std::uint64_t>(std::max(caching.kept_blocks(), std::int64_t{0})));
  const std::uint64_t from_caches = caching.count(&ThreadCounters::allocations);
  s.allocations = allocations + from_caches;
  s.frees = frees + caching.count(&ThreadCounters::frees);
  s.failed_allocations = failures;
  s.pools = pools.size();
  s.rungs = rungs;
  s.rungs[static_cast<std::size_t>(Rung::kOwnFree)] += from_caches;
  s.mapped_in_use = virtual_memory ? Bytes(0) : physical.reserved();
  Bytes mapped;
  Bytes used;
  for (const auto& [key, pool] : pools) {
    s.mapped_in_use += pool.heap.mapped_in_use();
    mapped += pool.heap.mapped();
    used += pool.heap.used();
    s.largest_free_run = std::max(s.largest_free_run, pool.heap.largest_free_run());
  }
  s.free_handles = context.idle_bytes + physical.spare_bytes();
  s.stranded = mapped - context.idle_bytes - used;
  if (walk) {
    walk_handles(&s);
  }
  return s;
}

// What only a walk over every handle can tell.
void DeviceAllocator::Impl::walk_handles(DeviceStats* s) const {
  BestEnds best;
  for (const auto& [key, pool] : pools) {
    for (const Handle* handle : pool.heap.handles()) {
      if (handle->pins != 0) {
        note_pinned(*handle, s);
        continue;
      }
      if (handle->idle()) {
        continue;
      }
      const RangeHeap::Ends ends = pool.heap.free_ends(*handle);
      s->free_ends += ends.front + ends.back;
      s->stranded -= ends.front + ends.back;
      if (&pool == default_pool) {
        best.add(*handle, ends);
      }
    }
  }
  s->composable = best.sum();
}

void DeviceAllocator::Impl::note_failure(Bytes requested, StreamId stream, Error error) {
  ++failures;
  count_rung(Rung::kFailed, requested);
  last_report.requested = requested;
  last_report.stats = stats_locked();
  last_report.stream = stream;
  last_report.limit_reached = error.code == Errc::kLimit;
  const Result<MemoryInfo> memory = driver.memory_info(device);
  last_report.driver_free = memory.ok() ? memory.value().free : Bytes(0);
  last_report.driver_total = memory.ok() ? memory.value().total : info.total_memory;
  // For recordings: which limit of ours refused it, and how many whole MiB the driver still had, plus 1.
  constexpr std::uint64_t kMostMib = UINT32_MAX - 1;
  const std::uint64_t free_mib = std::min(last_report.driver_free / kMiB, kMostMib);
  const std::uint64_t limit = std::max<std::uint64_t>(physical.limit().count(), 1);
  emit(EventKind::kOutOfMemory,
       VirtAddr(last_report.limit_reached ? limit : 0),
       requested,
       stream,
       memory.ok() ? static_cast<std::uint32_t>(free_mib + 1) : 0);
}

// What threads do meanwhile would not add up: their doors are closed.
void DeviceAllocator::Impl::check_blocks() const {
  const Caching::Caches closed = caching.close_doors([](const ThreadCache&) { return true; });
  Bytes live;
  Bytes kept;
  Bytes rounded;
  std::int64_t requested = 0;
  std::int64_t kept_blocks = 0;
  blocks.for_each([&](const Block* block) {
    NOFRAG_CHECK(block->state == BlockState::kLive, "a block in the address map is not live");
    live += block->size;
    rounded += Bytes(block->rounded);
    requested += static_cast<std::int64_t>(block->requested.count());
    if (block->kept.load(std::memory_order_relaxed)) {
      kept += block->size;
      ++kept_blocks;
    }
  });
  NOFRAG_CHECK(live == live_bytes, "live bytes differ from the blocks");
  NOFRAG_CHECK(rounded == caching.rounded, "what classes round up differs from the blocks");
  NOFRAG_CHECK(kept == caching.kept() && kept_blocks == caching.kept_blocks(),
               "what threads keep differs from the blocks");
  NOFRAG_CHECK(requested == requested_bytes + caching.sum(&ThreadCounters::requested_bytes),
               "requested bytes differ from the blocks");
  Caching::open_doors(closed);
}

void DeviceAllocator::Impl::check_locked() const {
  const DeviceStats s = stats_locked();
  NOFRAG_CHECK(s.requested <= s.live, "requested > live");
  NOFRAG_CHECK(s.allocated <= s.mapped_in_use, "allocated > mapped in use");
  NOFRAG_CHECK(s.mapped_in_use <= s.reserved, "mapped in use > reserved");
  NOFRAG_CHECK(live_blocks == blocks.size(), "live blocks differ from the address map");
  streams.check();
  Bytes mapped;
  for (const auto& [key, pool] : pools) {
    pool.heap.check();
    mapped += pool.heap.mapped();
  }
  if (virtual_memory) {
    NOFRAG_CHECK(mapped + physical.spare_bytes() == s.reserved,
                 "reserved differs from the handles");
  }
  check_blocks();
  Bytes pending;
  const auto with_uses =
      std::count_if(waiting.begin(), waiting.end(), [](const auto& uses) { return !uses.empty(); });
  NOFRAG_CHECK(static_cast<std::size_t>(with_uses) == awaited.size(), "awaited streams miscounted");
  for (const auto& uses : waiting) {
    for (const StreamUse* use : uses) {
      NOFRAG_CHECK(use->block->state == BlockState::kPending, "a waiting block is not pending");
      // A block waits once a stream: count it at its first use.
      pending += use == use->block->uses ? use->block->size : Bytes(0);
    }
  }
  NOFRAG_CHECK(pending <= s.pending, "pending bytes differ from the waiting blocks");
  check_pins();
}

DeviceStats DeviceAllocator::gauges() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats_locked(false);
}

std::vector<HeldSize> DeviceAllocator::held_sizes(std::size_t most) const {
  std::map<Bytes, HeldSize> by_size;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->blocks.for_each([&](const Block* block) {
      if (!block->kept.load(std::memory_order_relaxed)) {
        HeldSize& held = by_size[block->size];
        held.size = block->size;
        ++held.blocks;
      }
    });
  }
  std::vector<HeldSize> all;
  all.reserve(by_size.size());
  for (const auto& [size, held] : by_size) {
    all.push_back(held);
  }
  std::sort(all.begin(), all.end(), [](const HeldSize& a, const HeldSize& b) {
    return a.size * a.blocks > b.size * b.blocks;
  });
  all.resize(std::min(all.size(), most));
  return all;
}

Timeline DeviceAllocator::timeline() const {
  const std::lock_guard lock(impl_->mutex);
  return timeline_;
}

// In GiB at most: the program reads these numbers back (explain), and two decimals of a TiB would be too coarse for it.
std::string DeviceAllocator::last_oom_message() const {
  const OomReport r = last_oom();
  const DeviceStats& s = r.stats;
  std::string text = "out of memory on device " + std::to_string(device().value()) +
                     ": tried to allocate " + torch_bytes(r.requested) + ". ";
  if (r.limit_reached) {
    text += "The limit of " + torch_bytes(s.limit) + " is reached. ";
  }
  const std::string pinned = s.pinned.is_zero() ? "" : " or in pinned ones";
  // A request that is refused at once leaves threads what they keep.
  const std::string kept = s.kept.is_zero() ? "" : torch_bytes(s.kept) + " kept by threads, ";
  text += "nofrag holds " + torch_bytes(s.reserved) + " from the driver: " + torch_bytes(s.live) +
          " live, " + torch_bytes(s.pending) + " waiting for streams, " + kept +
          torch_bytes(s.free_handles) + " free in whole handles, up to " +
          torch_bytes(s.composable) + " more at the ends of used ones, " + torch_bytes(s.stranded) +
          " in the middle of used ones" + pinned + ", out of reach. The driver has " +
          torch_bytes(r.driver_free) + " of " + torch_bytes(r.driver_total) + " free.";
  return text;
}

// What is there already is told first.
void DeviceAllocator::set_event_sink(EventSink* sink) {
  const std::unique_lock<RankedMutex> lock(impl_->mutex);
  Impl& s = *impl_;
  // Doors are closed meanwhile: from now on no thread is inside the old sink.
  s.stop_caching();
  s.sink = sink;
  // Caches stay closed until all is told: a block that a thread gives up meanwhile would be told of too late.
  if (sink != nullptr) {
    if (const Bytes reserved = s.physical.reserved(); !reserved.is_zero()) {
      s.emit(EventKind::kCreate, VirtAddr{}, reserved, StreamId{});
    }
    s.blocks.for_each(
        [&s](const Block* block) { s.emit(EventKind::kExisting, *block, block->clock->stream); });
  }
  s.set_caching();
}

}  // namespace nofrag
