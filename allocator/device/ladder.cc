// One allocation, from the hit to the failure: the rungs of the out-of-memory ladder in their
// order. docs/design.md walks one request through this file.

#include <algorithm>

#include "device/device_impl.h"

namespace nofrag {

// The innermost pool being filled whose filter accepts the stream, else the default pool.
Pool& DeviceAllocator::Impl::route(std::unique_lock<RankedMutex>& lock, StreamId stream) {
  if (routes.empty()) {
    return *default_pool;
  }
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

Result<Block*> DeviceAllocator::Impl::climb(Pool& pool, Bytes requested, StreamClock& clock) {
  const Bytes size = round_up(requested, kBlockUnit);
  if (!virtual_memory) {
    return allocate_plain(size, requested, clock);
  }
  if (Block* hit = pool.heap.allocate(size, requested, clock)) {
    ++rungs[static_cast<std::size_t>(Rung::kOwnFree)];
    return hit;
  }
  // What other streams are done with may fit now.
  if (!filling_pool() && (streams.several() || pending_bytes > Bytes(0))) {
    settle();
    if (Block* hit = pool.heap.allocate(size, requested, clock)) {
      count_rung(Rung::kOwnFree, size);
      return hit;
    }
  }
  // More than there can ever be: refused before anything is moved for it.
  if (size > info.total_memory) {
    return Errc::kOutOfMemory;
  }
  if (size > std::max(physical.limit(), physical.reserved())) {
    return Errc::kLimit;
  }
  if (Result<Block*> placed = place(pool, size, requested, clock, Effort::kEasy); placed.ok()) {
    return placed;
  }
  // Under pressure: other streams' memory behind device-side waits, idle memory behind host waits.
  if (Result<Block*> placed = place(pool, size, requested, clock, Effort::kPressure); placed.ok()) {
    return placed;
  }
  return last_resort(pool, size, requested, clock);
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
  return place(pool, size, requested, clock, Effort::kFresh);
}

// Finds the place that misses the fewest bytes, backs it and takes it.
Result<Block*> DeviceAllocator::Impl::place(
    Pool& pool, Bytes size, Bytes requested, StreamClock& clock, Effort effort) {
  const bool pressure = effort != Effort::kEasy;
  // A private pool's memory never changes streams (range_heap.h); elsewhere pressure allows it.
  auto scope = pressure && !pool.is_private() && !filling_pool() ? RangeHeap::Scope::kAny
                                                                 : RangeHeap::Scope::kUsable;
  if (effort == Effort::kFresh) {
    scope = RangeHeap::Scope::kUnbacked;
  }
  std::optional<Placement> found = pool.heap.find_placement(size, clock, scope);
  if (!found.has_value()) {
    // No stretch of addresses is long enough: the heap needs a region.
    // Twice the memory for the default pool, so that scattered survivors never use up its
    // addresses; private pools are many and mostly small.
    const Bytes usual =
        pool.is_private() ? Bytes(info.total_memory.count() / 8) : info.total_memory * 2;
    const Bytes region_size = round_up(std::max(usual, size), info.granularity);
    const Result<AddressRange> region = space.take_region(region_size);
    if (!region.ok()) {
      return region.error();
    }
    pool.heap.add_region(region.value());
    found = pool.heap.find_placement(size, clock, scope);
    NOFRAG_CHECK(found.has_value(), "a fresh region is too short for the request it was made for");
  }
  const Placement placement = *found;
  Rung highest = Rung::kOwnFree;
  if (!placement.missing.is_zero()) {
    if (const Status backed = back(pool, placement, pressure, &highest); !backed.ok()) {
      return backed.error();
    }
  }
  Status waited;
  bool foreign = false;
  pool.heap.for_each_foreign(placement, clock, [&](StreamClock& other, Tick tick) {
    foreign = true;
    if (waited.ok()) {
      waited = streams.wait_device(clock, other, tick);
      if (!waited.ok()) {
        waited = streams.wait_host(other, tick);
      }
    }
  });
  if (!waited.ok()) {
    return waited.error();
  }
  if (foreign) {
    highest = std::max(highest, Rung::kDeviceWait);
  }
  count_rung(highest, size);
  return pool.heap.take(placement, requested, clock);
}

Result<VirtAddr> DeviceAllocator::Impl::take_plain(Bytes size) {
  if (const Status charged = physical.charge(size); !charged.ok()) {
    return charged.error();
  }
  const Result<VirtAddr> address = driver.malloc(device, size);
  if (!address.ok()) {
    physical.uncharge(size);
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
  count_rung(Rung::kGrow, size);
  return block;
}

}  // namespace nofrag
