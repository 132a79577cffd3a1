// One allocation, from the hit to the failure: the rungs of the out-of-memory ladder in their
// order. docs/design.md walks one request through this file.

#include <algorithm>
#include <optional>

#include "device/device_impl.h"

namespace nofrag {
namespace {

// Several streams: a request of this size first asks how far the streams have come.
constexpr Bytes kWorthSettling = kMiB;
// Several streams: a request of this size that no free run holds may use what other streams are not done
// with, behind a device-side wait.
constexpr Bytes kWorthWaiting = 16 * kMiB;
// What moving a handle counts against mapping it at one more address: it unmaps too, and takes memory
// from where the next step of a job will look for it.
constexpr double kMoveCost = 2.0;

// A stream may not be asked who it is while it is captured, so its clock is not the one that it has at other times.
// What it gave up in the pool then is its own all the same: to a capture, what it warmed up with, once that is done
// (the graph can be launched on any stream); to what the pool is `filled` with after a capture, what the graph has for
// its own use (who fills a pool keeps its graphs from running meanwhile: nofrag.h).
Block* freed_around_capture(
    Pool& pool, bool filled, const Streams& streams, Bytes size, const StreamClock& clock) {
  const StreamClock* other = pool.is_private() ? streams.around_capture(clock) : nullptr;
  Block* free = other != nullptr ? pool.heap.find_free(size, *other) : nullptr;
  const bool usable = free != nullptr && free->clock == other &&
                      (other->captured ? filled : other->done(free->tick));
  return usable ? free : nullptr;
}

}  // namespace

// The innermost pool being filled whose filter accepts the stream, else the default pool.
Pool& DeviceAllocator::Impl::route(std::unique_lock<RankedMutex>& lock, StreamId stream) {
  const Routes asked = routes;
  for (const auto& route : asked) {
    route->asking.fetch_add(1, std::memory_order_relaxed);
  }
  lock.unlock();
  PoolKey chosen;
  for (auto it = asked.rbegin(); it != asked.rend(); ++it) {
    if (!(*it)->filter || (*it)->filter(stream)) {
      chosen = (*it)->pool;
      break;
    }
  }
  for (const auto& route : asked) {
    route->asking.fetch_sub(1, std::memory_order_release);
  }
  lock.lock();
  // Ended and released by another thread meanwhile: nobody's capture any more.
  const auto found = pools.find(chosen);
  const bool usable =
      found != pools.end() && (!found->second.is_private() || found->second.use_count > 0);
  return usable ? found->second : *default_pool;
}

void DeviceAllocator::Impl::count_rung(Rung rung, Bytes size) {
  ++rungs[static_cast<std::size_t>(rung)];
  emit(EventKind::kRung, VirtAddr{}, size, StreamId{}, static_cast<std::uint32_t>(rung));
}

// More than all that is not live and `more` together: no layout, wait or release could ever serve it.
bool DeviceAllocator::Impl::hopeless(Bytes size, Bytes more) const {
  const auto beyond = [&](Bytes kept) {
    return size > physical.reserved() - (live_bytes - std::min(live_bytes, kept)) + more;
  };
  // What threads do meanwhile must not be the reason.
  return beyond(caching.kept()) && beyond(caching.kept_exactly());
}

Result<Block*> DeviceAllocator::Impl::climb(Pool& pool, Bytes requested, StreamClock& clock) {
  const Bytes size = round_up(requested + guard, kBlockUnit);
  if (!virtual_memory) {
    return allocate_plain(size, requested, clock);
  }
  const bool keepable = size <= KeptBlocks::kLargestBinned && !pool.is_private() && caching.serve();
  if (keepable || size > KeptBlocks::kLargestBinned) {
    note_missed(size);
  }
  // A request that a cache will serve next time.
  const bool for_cache = keepable && !may_run_short();
  const Bytes whole = keepable ? size_for_cache(size) : size;
  Result<Block*> block = climb_with(pool, whole, requested, clock, for_cache);
  const bool short_of_memory = block.code() == Errc::kOutOfMemory || block.code() == Errc::kLimit;
  // Nothing is refused for what only later requests would have used. (Memory may be short long before `tight`
  // says so: others hold the device's.)
  if (short_of_memory && whole != size) {
    return climb_with(pool, size, requested, clock, false);
  }
  if (block.ok() && whole != size) {
    block.value()->rounded = static_cast<std::uint32_t>((whole - size).count());
    caching.rounded += whole - size;
  }
  return block;
}

Result<Block*> DeviceAllocator::Impl::climb_with(
    Pool& pool, Bytes size, Bytes requested, StreamClock& clock, bool for_cache) {
  // With several streams what one has finished serves all, and merges with what is beside it.
  if (size >= kWorthSettling && streams.several() && !filling_pool() &&
      freed_since_settled >= worth_settling()) {
    settle();
  }
  if (size > KeptBlocks::kLargestBinned) {
    empty_for_large();
  }
  if (Block* free = pool.heap.find_free(size, clock)) {
    const Placement placement{free->region, free->address, size, Bytes(0)};
    if (!tight || !cut_under(placement, pool)) [[likely]] {
      ++rungs[static_cast<std::size_t>(Rung::kOwnFree)];
      return pool.heap.take_front(free, size, requested, clock);
    }
    if (Block* block = take_cut(pool, placement, requested, clock)) {
      count_rung(Rung::kGrow, size);
      return block;
    }
  }
  // What this thread keeps is free, and goes before anything that costs; but while there is plenty, not for a
  // request that a cache will serve next time. What streams are done with may fit.
  if (Block* hit = hit_after(pool, !for_cache && empty_own_cache(), size, requested, clock)) {
    return hit;
  }
  // More than there can ever be: refused before anything is moved for it.
  if (size > info.total_memory) {
    return Errc::kOutOfMemory;
  }
  if (size > std::max(physical.limit(), physical.reserved())) {
    return Errc::kLimit;
  }
  // Others may give back what they hold, so that is not looked at here.
  const Bytes most = std::min(physical.limit(), info.total_memory);
  if (hopeless(size, most - std::min(most, physical.reserved()))) {
    return physical.limit() < info.total_memory ? Errc::kLimit : Errc::kOutOfMemory;
  }
  const Result<Block*> easy = place(pool, size, requested, clock, Effort::kEasy);
  if (easy.ok()) {
    return easy;
  }
  // What other threads keep is free too, but to take it stops them: only memory that runs short is worth it.
  if (empty_caches()) {
    if (Block* hit = hit_after(pool, true, size, requested, clock)) {
      return hit;
    }
  }
  // Nor is anything waited for or taken apart in vain where others have what is missing.
  const Result<MemoryInfo> memory = physical.look();
  note_reserved();  // others may have come or gone
  if (memory.ok() && hopeless(size, memory.value().free)) {
    return easy.error();
  }
  // Under pressure: other streams' memory behind device-side waits, idle memory behind host waits.
  if (Result<Block*> placed = place(pool, size, requested, clock, Effort::kPressure); placed.ok()) {
    return placed;
  }
  return last_resort(pool, size, requested, clock);
}

// A free run, if there may be one now: after caches were emptied, or with what streams are done with.
Block* DeviceAllocator::Impl::hit_after(
    Pool& pool, bool emptied, Bytes size, Bytes requested, StreamClock& clock) {
  const bool may_settle = !filling_pool() && (streams.several() || pending_bytes > Bytes(0));
  if (may_settle) {
    settle();
  }
  Block* hit = emptied || may_settle ? pool.heap.allocate(size, requested, clock) : nullptr;
  const bool filled = std::any_of(
      routes.begin(), routes.end(), [&pool](const auto& route) { return route->pool == pool.key; });
  if (Block* free =
          hit == nullptr ? freed_around_capture(pool, filled, streams, size, clock) : nullptr) {
    hit = pool.heap.take_front(free, size, requested, clock);
  }
  if (hit != nullptr) {
    count_rung(Rung::kOwnFree, size);
  }
  return hit;
}

Result<Block*> DeviceAllocator::Impl::last_resort(Pool& pool,
                                                  Bytes size,
                                                  Bytes requested,
                                                  StreamClock& clock) {
  retry_refused();
  if (!filling_pool()) {
    // Memory that only pending work or a released pool keeps back, behind a host wait.
    settle_released_pools();
    settle_pending(true);
    settle();
    if (Block* hit = pool.heap.allocate(size, requested, clock)) {
      count_rung(Rung::kDeviceWait, size);
      return hit;
    }
  }
  if (Result<Block*> placed = place(pool, size, requested, clock, Effort::kPressure); placed.ok()) {
    return placed;
  }
  return place(pool, size, requested, clock, Effort::kLast);
}

Result<Block*> DeviceAllocator::Impl::place(
    Pool& pool, Bytes size, Bytes requested, StreamClock& clock, Effort effort) {
  const bool may_wait = effort != Effort::kEasy && !filling_pool();
  // A private pool's memory never changes streams (range_heap.h); elsewhere pressure allows it. A large
  // request does not wait for pressure: making the stream wait costs less than mapping or growing.
  const bool may_cross = !filling_pool() && !pool.is_private();
  const bool cross = may_cross && (may_wait || (size >= kWorthWaiting && streams.several()));
  bool may_mend = true;
  const auto attempt = [&](bool across) -> Result<Block*> {
    Fill fill{pool, clock, ++fills};
    fill.may_mend = may_mend;
    fill.wait = may_wait;
    fill.cross = across;
    const Result<Placement> placement = find_place(fill, size, effort);
    Result<Block*> taken = placement.ok() ? take(fill, placement.value(), requested)
                                          : Result<Block*>(placement.error());
    drop_emptied_views();
    may_mend = fill.may_mend;
    return taken;
  };
  Result<Block*> taken = attempt(cross);
  if (!taken.ok() && !may_mend) {
    taken = attempt(cross);  // planned anew: a mend that fails half-way has changed what is mapped
  }
  if (!taken.ok() && cross && !may_wait) {
    taken = attempt(false);  // a stream that no event can be had of
  }
  return taken;
}

// A backed place for the request: the window that misses least, or a composition.
Result<Placement> DeviceAllocator::Impl::find_place(Fill& fill, Bytes size, Effort effort) {
  if (effort == Effort::kLast) {
    return compose(fill, size, plan_composition(fill, size, true));
  }
  const auto scope = fill.cross ? RangeHeap::Scope::kAny : RangeHeap::Scope::kUsable;
  Result<Placement> found = window(fill, size, scope);
  if (!found.ok()) {
    return found.error();
  }
  if (tight && cut_under(found.value(), fill.pool)) {
    found = window(fill, size, scope);  // what misses how much is another matter now
    if (!found.ok()) {
      return found.error();
    }
  }
  const Bytes missing = found.value().missing;
  if (missing.is_zero() || within_soft_limit(missing, size)) {
    return backed_place(fill, found.value());
  }
  Composition plan;
  const bool composing = composing_pays(fill, found.value(), &plan);
  const std::size_t composed = plan.pieces() + plan.missing / growth_size(size);
  const std::size_t mapped = missing / growth_size(size) + 1;
  const std::size_t instead = composing ? composed : std::min(composed, mapped);
  if (const std::optional<Mend> mend = plan_mend(fill, size, instead)) {
    fill.may_mend = false;
    return carry_out(fill, *mend);
  }
  if (composing) {
    return compose(fill, size, plan);
  }
  return backed_place(fill, found.value());
}

Result<Placement> DeviceAllocator::Impl::backed_place(Fill& fill, const Placement& placement) {
  if (const Status backed = back(fill, placement); !backed.ok()) {
    return backed.error();
  }
  return placement;
}

// Which costs less: first in new memory, then in driver calls?
bool DeviceAllocator::Impl::composing_pays(Fill& fill, const Placement& found, Composition* plan) {
  Bytes can_alias;
  Bytes can_move;
  for (const Handle* handle : supply(fill).own) {
    const Mapping* here = handle->in(*found.region);
    const Bytes size = handle->physical.size;
    if (here == nullptr && may_use(*handle, Bytes(0), size, fill.clock, fill.cross)) {
      can_alias += size;
    } else if (fill.pool.lends() && (here == nullptr || !found.covers(*here)) &&
               known_done(*handle)) {
      can_move += size;
    }
  }
  for (const Handle* handle : supply(fill).others) {
    can_move += known_done(*handle) ? handle->physical.size : Bytes(0);
  }
  const Bytes aliased = std::min(can_alias, found.missing);
  const Bytes moved = std::min(can_move, found.missing - aliased);
  const Bytes grown = found.missing - aliased - moved;
  *plan = plan_composition(fill, found.size, false);
  if (plan->missing != grown) {
    return plan->missing < grown;
  }
  // In mappings; a move unmaps too, and takes memory from where the next step will look for it.
  const double window_cost =
      static_cast<double>(aliased.count()) + kMoveCost * static_cast<double>(moved.count());
  return static_cast<double>(plan->pieces()) *
             static_cast<double>(growth_size(found.size).count()) <=
         window_cost;
}

// The place that misses the fewest bytes; in a new region if no stretch of addresses is long enough.
Result<Placement> DeviceAllocator::Impl::window(const Fill& fill,
                                                Bytes size,
                                                RangeHeap::Scope scope) {
  RangeHeap& heap = fill.pool.heap;
  if (const auto found = heap.find_placement(size, fill.clock, scope); found.has_value()) {
    return *found;
  }
  const Result<AddressRange> range = take_home(fill, size);
  if (!range.ok()) {
    return range.error();
  }
  heap.add_region(range.value(), true);
  const std::optional<Placement> found = heap.find_placement(size, fill.clock, scope);
  NOFRAG_CHECK(found.has_value(), "a fresh region is too short for the request it was made for");
  return *found;
}

// The stream waits for what others still do there, and the block is the caller's.
Result<Block*> DeviceAllocator::Impl::take(Fill& fill,
                                           const Placement& placement,
                                           Bytes requested) {
  Status waited;
  bool foreign = false;
  fill.pool.heap.for_each_foreign(placement, fill.clock, [&](StreamClock& other, Tick tick) {
    // Elsewhere a mark may name more than the bytes' own last work, and a wait too many does no harm.
    NOFRAG_ASSERT(!fill.pool.is_private(), "a graph's memory was chosen for another stream");
    foreign = true;
    if (waited.ok()) {
      waited = streams.wait_device(fill.clock, other, tick);
      if (!waited.ok() && fill.wait) {
        waited = streams.wait_host(other, tick);
      }
    }
  });
  if (!waited.ok()) {
    return waited.error();
  }
  if (foreign) {
    fill.highest = std::max(fill.highest, Rung::kDeviceWait);
  }
  count_rung(fill.highest, placement.size);
  return fill.pool.heap.take(placement, requested, fill.clock);
}

Result<VirtAddr> DeviceAllocator::Impl::take_plain(Bytes size) {
  if (!physical.fits_limit(size)) {
    return Errc::kLimit;
  }
  const Result<VirtAddr> address = driver.malloc(device, size);
  if (address.ok()) {
    physical.charge(size);
  }
  return address;
}

Result<Block*> DeviceAllocator::Impl::allocate_plain(Bytes size,
                                                     Bytes requested,
                                                     StreamClock& clock) {
  Result<VirtAddr> address = take_plain(size);
  if (!address.ok() && !filling_pool()) {
    // What released pools kept back and what the driver would not free before.
    settle_released_pools();
    flush_deferred_plain();
    address = take_plain(size);
  }
  if (!address.ok()) {
    return address.error();
  }
  Block* block = context.blocks.make();
  NOFRAG_CHECK(block != nullptr, "no host memory for a block");
  block->address = address.value();
  block->size = size;
  block->state = BlockState::kLive;
  block->clock = &clock;
  block->requested = requested;
  emit(EventKind::kCreate, VirtAddr{}, size, StreamId{});
  emit(EventKind::kMap, block->address, size, StreamId{});
  tell_plain(*block, true);
  count_rung(Rung::kGrow, size);
  return block;
}

}  // namespace nofrag
