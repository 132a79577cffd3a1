// Reclaim: freed blocks on their way to free memory, idle handles on their way back to the driver,
// released pools on their way out.

#include <algorithm>
#include <utility>

#include "device/device_impl.h"
#include "heap/fetch_ahead.h"

namespace nofrag {
namespace {

// Freed bytes after which a marker pays. On a busy GPU a record and its capture query cost about 3 us,
// a query 2.7 (bench/results): 16 markers for each turnover of the peak tell closely enough how far
// the GPU has come. While there is plenty hardly anything is unmapped, so next to nobody asks: there 4 do, and a
// training step that the host paces is 0.2 % shorter. Several streams wait for one another's memory, so there
// markers come early.
constexpr std::uint64_t kMarksPerTurnover = 16;
constexpr std::uint64_t kMarksPerTurnoverOfPlenty = 4;
constexpr std::uint64_t kMarksPerTurnoverSeveral = 24;
constexpr Bytes kMarkBytesOneStream = 64 * kMiB;
constexpr Bytes kMarkBytesSeveral = 16 * kMiB;
// And not more often than every few frees, unless they are huge: a loop that frees one large block
// over and over has nothing to learn from a marker each.
constexpr std::uint32_t kFewestFreesOneStream = 8;
constexpr Bytes kAlwaysWorthIt = kGiB;
// Markers are asked about when somebody needs memory. If nobody ever does, this many may wait.
constexpr std::size_t kUnaskedMarkers = 256;
// Released pools that nobody trims: more are not kept.
constexpr std::size_t kReleasedPoolsKept = 64;

}  // namespace

// Several streams: once this much was freed it pays to ask how far they are. Where memory runs short, always.
Bytes DeviceAllocator::Impl::worth_settling() const {
  return tight ? Bytes(0) : Bytes(peak_live.count() / kMarksPerTurnoverSeveral);
}

void DeviceAllocator::Impl::maybe_mark(StreamClock& clock, Bytes freed) {
  streams.note_freed(clock, freed);
  const bool several = streams.several();
  const std::uint64_t marks = tight ? kMarksPerTurnover : kMarksPerTurnoverOfPlenty;
  const Bytes enough = several ? std::max(kMarkBytesSeveral, worth_settling())
                               : std::max(kMarkBytesOneStream, Bytes(peak_live.count() / marks));
  const bool often = !several && clock.frees_since_marker < kFewestFreesOneStream &&
                     clock.freed_since_marker < kAlwaysWorthIt;
  if (clock.freed_since_marker < enough || often || filling_pool() || clock.retired) {
    return;
  }
  // A refused marker (a capture) is asked for again at the next free; nothing relies on it until
  // then.
  if (streams.mark(clock).ok() && clock.markers.size() > kUnaskedMarkers) {
    streams.poll(clock);
  }
}

// No stream but its own may still touch the block (or all others are done).
void DeviceAllocator::Impl::finish_free(Block* block) {
  StreamClock& clock = *block->clock;
  const Tick tick = block->state == BlockState::kPending ? block->tick : clock.stamp();
  const Bytes size = block->size;
  const bool waited_for = block->state == BlockState::kPending;
  emit(EventKind::kFreeCompleted, *block, clock.stream, waited_for ? 1 : 0);
  if (waited_for) {
    tell(MemoryEvent::Kind::kFreeCompleted, physical, block->address, size);
  }
  if (virtual_memory) {
    if (size > KeptBlocks::kLargestBinned) {
      std::atomic<std::uint64_t>& epoch = caching.rules.epoch;
      epoch.store(epoch.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    block->region->heap->free(block, tick);
    freed_since_settled += size;
    maybe_mark(clock, size);
    return;
  }
  flush_deferred_plain();
  // A private pool's blocks may belong to a captured graph: they outlive their free until the
  // release.
  if (block->pool->is_private() && !block->pool->settled) {
    block->pool->kept.push_back(block);
  } else {
    free_plain(block);
  }
}

// Gives a chain of kept blocks to the heap. True if there was one.
bool DeviceAllocator::Impl::release_kept(Block* chain) {
  const bool any = chain != nullptr;
  for (std::size_t n = 0; chain != nullptr; ++n) {
    if (n % kFetchedAhead == 0) {
      fetch_ahead(chain, [this](VirtAddr address) { blocks.expect(address); });
    }
    Block* block = chain;
    chain = std::exchange(block->next_kept, nullptr);
    caching.own.kept_bytes.add(-static_cast<std::int64_t>(block->size.count()));
    ++caching.taken_back;
    caching.rounded -= Bytes(std::exchange(block->rounded, 0));
    block->previous_dirty = nullptr;
    block->next_dirty = nullptr;
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

// Work on this stream uses the live block. False if that was known.
bool DeviceAllocator::Impl::note_use(Block* block, StreamClock& clock) {
  if (block->clock == &clock) {
    return false;
  }
  for (const StreamUse* use = block->uses; use != nullptr; use = use->next) {
    if (use->clock == &clock) {
      return false;
    }
  }
  StreamUse* use = context.stream_uses.make();
  NOFRAG_CHECK(use != nullptr, "no host memory for a stream use");
  use->clock = &clock;
  use->block = block;
  use->next = block->uses;
  block->uses = use;
  block->keepable = false;
  return true;
}

// The block was used on other streams: it stays allocated until they are done with it. The events
// are recorded now, so that later work on those streams does not hold the block up.
void DeviceAllocator::Impl::defer_free(Block* block) {
  block->state = BlockState::kPending;
  freed_since_settled += block->size;
  block->tick = block->clock->stamp();
  pending_bytes += block->size;
  tell(MemoryEvent::Kind::kFreeDeferred, physical, block->address, block->size);
  for (StreamUse* use = block->uses; use != nullptr; use = use->next) {
    use->tick = use->clock->stamp();
    if (!filling_pool()) {
      // Refused (a capture): settle_pending() asks again.
      streams.mark_up_to(*use->clock, use->tick).ignore();
    }
    ++block->open_uses;
    if (waiting.size() <= use->clock->index) {
      waiting.resize(use->clock->index + 1);
    }
    if (waiting[use->clock->index].empty()) {
      awaited.push_back(use->clock);
    }
    waiting[use->clock->index].push_back(use);
  }
}

// Pending blocks whose streams are done become free. With `wait` the host waits for them.
bool DeviceAllocator::Impl::settle_pending(bool wait) {
  bool any = false;
  if (pending_bytes.is_zero()) {
    return any;
  }
  std::erase_if(awaited, [&](StreamClock* awaited_clock) {
    StreamClock& clock = *awaited_clock;
    std::vector<StreamUse*>& uses = waiting[clock.index];
    const Tick newest = uses.back()->tick;
    if (wait) {
      streams.wait_host(clock, newest).ignore();  // what is not done stays pending
    } else {
      streams.mark_up_to(clock, newest).ignore();
      streams.poll(clock);
    }
    std::size_t finished = 0;
    while (finished < uses.size() && clock.done(uses[finished]->tick)) {
      Block* block = uses[finished]->block;
      ++finished;
      if (--block->open_uses > 0) {
        continue;
      }
      any = true;
      pending_bytes -= block->size;
      StreamUse* use = block->uses;
      block->uses = nullptr;
      // Only the list below still names these nodes, and only up to `finished`.
      while (use != nullptr) {
        StreamUse* next = use->next;
        context.stream_uses.destroy(use);
        use = next;
      }
      finish_free(block);
    }
    uses.erase(uses.begin(), uses.begin() + static_cast<std::ptrdiff_t>(finished));
    return uses.empty();
  });
  return any;
}

// Takes in what other streams have finished meanwhile.
void DeviceAllocator::Impl::settle() {
  freed_since_settled = Bytes(0);
  settle_pending(false);
  if (!streams.several()) {
    return;
  }
  streams.mark_freed();
  streams.for_each_active([this](StreamClock& clock) {
    streams.poll(clock);
    if (clock.taken_in != clock.completed) {
      clock.taken_in = clock.completed;
      default_pool->heap.clean_done(clock);  // in private pools nothing is ever done
    }
  });
}

// A released private pool may still be touched by graph replays that were launched before, on
// streams that no marker names. One wait for the whole device settles it.
void DeviceAllocator::Impl::settle_released_pools() {
  if (filling_pool()) {
    return;
  }
  bool unsettled = false;
  for (const auto& [key, pool] : pools) {
    unsettled |= pool.is_private() && pool.use_count == 0 && !pool.settled;
  }
  if (!unsettled || !streams.wait_device_idle().ok()) {
    return;
  }
  for (auto& [key, pool] : pools) {
    if (pool.is_private() && pool.use_count == 0) {
      pool.settled = true;
      pool.heap.clean_all();
      for (Block* block : pool.kept) {
        free_plain(block);
      }
      pool.kept.clear();
    }
  }
}

void DeviceAllocator::Impl::drop_empty_pools() {
  for (auto it = pools.begin(); it != pools.end();) {
    Pool& pool = it->second;
    const bool gone = pool.is_private() && pool.use_count == 0 && pool.live_blocks == 0 &&
                      pool.settled && pool.heap.mapped().is_zero();
    if (!gone) {
      ++it;
      continue;
    }
    for (const auto& region : pool.heap.regions()) {
      space.return_region(region->range);
    }
    it = pools.erase(it);
  }
}

// Called where a pool begins, the one moment at which no capture is under way: pools that nobody will use
// again go, with their idle handles, before they pile up.
void DeviceAllocator::Impl::drop_released_pools() {
  std::size_t released = 0;
  for (const auto& [key, pool] : pools) {
    released += pool.is_private() && pool.use_count == 0 && pool.live_blocks == 0 ? 1U : 0U;
  }
  if (released < kReleasedPoolsKept || filling_pool()) {
    return;
  }
  settle_released_pools();
  for (auto& [key, pool] : pools) {
    if (pool.is_private()) {
      release_idle(pool, Bytes(0));
    }
  }
  drop_emptied_views();
  drop_empty_pools();
}

Bytes DeviceAllocator::Impl::trim_locked(Bytes keep) {
  const Bytes before = physical.reserved();
  empty_caches();
  if (!virtual_memory) {
    flush_deferred_plain();
    settle_released_pools();
    drop_empty_pools();
    return before - physical.reserved();
  }
  static_cast<void>(physical.look());  // others may have gone
  note_reserved();
  settle_pending(false);
  settle_released_pools();
  retry_refused();
  streams.poll_all();
  release_idle(keep);
  if (physical.reserved() > keep && pending_bytes > Bytes(0) && !filling_pool()) {
    settle_pending(true);
    release_idle(keep);
  }
  drop_emptied_views();
  drop_empty_pools();
  return before - physical.reserved();
}

// Gives idle handles back, those idle for longest first in each pool, while more than `keep` is
// reserved.
void DeviceAllocator::Impl::release_idle(Bytes keep) {
  for (auto& [key, pool] : pools) {
    release_idle(pool, keep);
  }
}

void DeviceAllocator::Impl::release_idle(Pool& pool, Bytes keep) {
  if (!pool.lends()) {
    return;
  }
  for (Handle* handle = pool.heap.first_idle(); handle != nullptr && physical.reserved() > keep;) {
    Handle* next = handle->next_idle;
    // While a pool is filled a capture may be under way: nothing is waited for. A stream that cannot
    // be waited for keeps its handle.
    if (handle->pins == 0 &&
        (filling_pool() ? known_done(*handle) : wait_for_handle(*handle).ok())) {
      if (const Result<PhysicalHandle> unmapped = unmap_idle(handle); unmapped.ok()) {
        give_back(unmapped.value());
      }
    }
    handle = next;
  }
}

// What the driver refused to undo or take back earlier is offered to it again.
void DeviceAllocator::Impl::retry_refused() {
  for (auto& [key, pool] : pools) {
    const std::vector<Handle*> lost = pool.heap.lost();
    for (Handle* handle : lost) {
      if (unmap(handle->mappings).ok()) {
        give_back(pool.heap.detach_lost(handle));
      }
    }
    const std::vector<Mapping*> stuck = pool.heap.stuck();
    for (Mapping* mapping : stuck) {
      if (unmap(mapping).ok()) {
        pool.heap.drop(mapping);
      }
    }
  }
  physical.release_spares();
  note_reserved();
}

// The driver waits for the device before it frees: nothing can still touch the block. While a pool
// is being filled a capture may be under way, in which frees are not allowed.
void DeviceAllocator::Impl::free_plain(Block* block) {
  if (filling_pool()) {
    deferred_plain.push_back(block);
    return;
  }
  // Told before: a tool must not hear of it when the driver, and with it the tool, has forgotten the memory.
  emit(EventKind::kUnmap, block->address, block->size, StreamId{});
  if (!driver.free(device, block->address).ok()) {
    emit(EventKind::kMap, block->address, block->size, StreamId{});
    deferred_plain.push_back(block);
    return;
  }
  emit(EventKind::kRelease, VirtAddr{}, block->size, StreamId{});
  physical.uncharge(block->size);
  tell_plain(*block, false);
  context.blocks.destroy(block);
}

void DeviceAllocator::Impl::flush_deferred_plain() {
  std::vector<Block*> deferred;
  deferred.swap(deferred_plain);
  for (Block* block : deferred) {
    free_plain(block);
  }
}

Bytes DeviceAllocator::trim(Bytes keep) {
  Impl& s = *impl_;
  const std::unique_lock<RankedMutex> lock(s.mutex);
  s.emit(EventKind::kTrim, VirtAddr{}, keep, StreamId{});
  const Bytes given_back = s.trim_locked(keep);
  NOFRAG_EXPENSIVE(s.check_locked());
  return given_back;
}

}  // namespace nofrag
