// Blocks that lie in one handle, to be exported or registered as one: what is free within one handle, or
// a handle made for the block. Making room for it gives back idle handles, nothing else: no composition
// and no alias can help.

#include <algorithm>

#include "device/device_impl.h"

namespace nofrag {
namespace {

// How many handles under the free run found are looked at.
constexpr int kHandlesLookedAt = 16;

}  // namespace

Result<Block*> DeviceAllocator::Impl::climb_single(Pool& pool,
                                                   Bytes requested,
                                                   StreamClock& clock) {
  const Bytes size = round_up(requested + guard, kBlockUnit);
  if (!virtual_memory) {
    return allocate_plain(size, requested, clock);
  }
  if (Block* hit = reuse_single(pool, size, requested, clock)) {
    return hit;
  }
  if (round_up(size, info.granularity) > info.total_memory) {
    return Errc::kOutOfMemory;
  }
  if (size > std::max(physical.limit(), physical.reserved())) {
    return Errc::kLimit;
  }
  const bool emptied = empty_caches();  // rare requests, for large blocks
  const bool may_settle = !filling_pool() && (streams.several() || pending_bytes > Bytes(0));
  if (may_settle) {
    settle();
  }
  if (emptied || may_settle) {
    if (Block* hit = reuse_single(pool, size, requested, clock)) {
      return hit;
    }
  }
  if (Result<Block*> served = serve_single(pool, size, requested, clock, false); served.ok()) {
    return served;
  }
  retry_refused();
  if (!filling_pool()) {
    settle_released_pools();
    settle_pending(true);
    settle();
    if (Block* hit = reuse_single(pool, size, requested, clock)) {
      return hit;
    }
  }
  return serve_single(pool, size, requested, clock, true);
}

// The free run that the heap would take, if a handle under it holds as much.
Block* DeviceAllocator::Impl::reuse_single(Pool& pool,
                                           Bytes size,
                                           Bytes requested,
                                           StreamClock& clock) {
  const Block* free = pool.heap.find_free(size, clock);
  if (free == nullptr) {
    return nullptr;
  }
  VirtAddr at = free->address;
  for (int looked_at = 0; looked_at < kHandlesLookedAt && at + size <= free->end(); ++looked_at) {
    const VirtAddr end = RangeHeap::mapping_at(*free->region, at)->end();
    if (at + size <= end) {
      count_rung(Rung::kOwnFree, size);
      return pool.heap.take({free->region, at, size, Bytes(0)}, requested, clock);
    }
    at = end;
  }
  return nullptr;
}

Result<Block*> DeviceAllocator::Impl::serve_single(
    Pool& pool, Bytes size, Bytes requested, StreamClock& clock, bool wait) {
  Fill fill{pool, clock, ++fills};
  fill.wait = wait && !filling_pool();
  fill.cross = fill.wait && !pool.is_private();
  Result<Block*> served = reuse_idle(fill, size, requested);
  if (!served.ok()) {
    served = create_single(fill, size, requested);
  }
  drop_emptied_views();
  return served;
}

// The front of the smallest idle handle of the pool that is large enough.
Result<Block*> DeviceAllocator::Impl::reuse_idle(Fill& fill, Bytes size, Bytes requested) {
  const Handle* best = nullptr;
  for (const Handle* handle : supply(fill).own) {
    if (handle->physical.size >= size &&
        (best == nullptr || handle->physical.size < best->physical.size) &&
        may_use(*handle, Bytes(0), size, fill.clock, fill.cross)) {
      best = handle;
    }
  }
  if (best == nullptr) {
    return Errc::kOutOfMemory;
  }
  const Mapping& mapping = best->shown();
  return take(fill, {mapping.region, mapping.address, size, Bytes(0)}, requested);
}

Result<Block*> DeviceAllocator::Impl::create_single(Fill& fill, Bytes size, Bytes requested) {
  const Bytes whole = round_up(size, info.granularity);
  const Result<PhysicalHandle> made = create_making_room(fill, whole);
  if (!made.ok()) {
    return made.error();
  }
  const Result<Placement> place = window(fill, whole, RangeHeap::Scope::kUnbacked);
  if (!place.ok()) {
    give_back(made.value());
    return place.error();
  }
  Region& region = *place.value().region;
  const VirtAddr address = place.value().address;
  const Status mapped = map_pieces(fill.pool, region, address, {{made.value(), nullptr}});
  if (!mapped.ok()) {
    return mapped.error();
  }
  fill.highest = std::max(fill.highest, Rung::kGrow);
  return take(fill, {&region, address, size, Bytes(0)}, requested);
}

// A new handle, for which idle ones are given back one by one as long as it takes.
Result<PhysicalHandle> DeviceAllocator::Impl::create_making_room(Fill& fill, Bytes size) {
  Result<PhysicalHandle> made = create(size);
  const auto wants_memory = [&made] {
    return made.code() == Errc::kOutOfMemory || made.code() == Errc::kLimit;
  };
  const auto give_up = [&](const std::vector<Handle*>& idle, Rung rung) {
    for (Handle* handle : idle) {
      if (made.ok() || !wants_memory()) {
        return;
      }
      if (!(fill.wait ? wait_for_handle(*handle).ok() : known_done(*handle))) {
        continue;
      }
      if (const Result<PhysicalHandle> unmapped = unmap_idle(handle); unmapped.ok()) {
        give_back(unmapped.value());
        made = create(size);
        fill.highest = std::max(fill.highest, rung);
      }
    }
  };
  // Nothing is given up for what our limit refuses all the same.
  Bytes idle;
  const Supply& found = supply(fill);
  for (const std::vector<Handle*>* list : {&found.own, &found.others}) {
    for (const Handle* handle : *list) {
      idle += list == &found.own && !fill.pool.lends() ? Bytes(0) : handle->physical.size;
    }
  }
  if (made.code() == Errc::kLimit && physical.reserved() + size > physical.limit() + idle) {
    return made;
  }
  // A private pool that is in use may hold work of graphs: its own handles stay where they are.
  if (fill.pool.lends()) {
    give_up(found.own, Rung::kOwnMappable);
  }
  give_up(found.others, Rung::kOtherPools);
  return made;
}

}  // namespace nofrag
