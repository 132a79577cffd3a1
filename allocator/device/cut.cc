// Cuts: an idle handle that a block would only partly use is given back and created again at the same
// addresses in two or three parts, with boundaries where the block begins and ends. So that a small block
// does not tie up a large handle when memory is short, while every block still lands at the address it
// would have had: moving blocks elsewhere to save handles costs more memory than it saves
// (docs/decisions/0005-alias-arena.md).

#include <algorithm>

#include "device/device_impl.h"

namespace nofrag {
namespace {

// A smaller block ties up little beside it for long, and there are too many of them.
constexpr Bytes kSmallestCutFor = 4 * kMiB;
// What a cut must set free: granules, and this part of the block's size.
constexpr std::uint64_t kLeastGranules = 2;
constexpr std::uint64_t kLeastPart = 50;
// Several streams leave more free ends: half of their cuts are kept for those that set this much free.
constexpr Bytes kLargeExcess = 16 * kMiB;

}  // namespace

// Called whenever reserved or a limit changed.
void DeviceAllocator::Impl::note_reserved() {
  const bool was = tight;
  tight = 2 * physical.peak_reserved() >= capacity();
  caching.stale = true;
  if (tight != was) {
    set_caching();
  }
}

// How many cuts there may have been for one more that sets `excess` free.
std::uint64_t DeviceAllocator::Impl::cut_budget(Bytes excess) const {
  if (100 * physical.reserved() >= 99 * capacity() && tuning.cuts > 0) {
    return tuning.cuts_at_the_brim;
  }
  return streams.several() && excess < kLargeExcess ? tuning.cuts / 2 : tuning.cuts;
}

// Known to be done, after asking once. Never waits: a cut is not worth a stall.
bool DeviceAllocator::Impl::ask_done(const Handle& handle) {
  for (const Mapping* m = handle.mappings; m != nullptr; m = m->next) {
    m->last_uses.all_of([this](StreamClock& clock, Tick tick) {
      if (!clock.done(tick)) {
        streams.mark_up_to(clock, tick).ignore();
        streams.poll(clock);
      }
      return true;
    });
  }
  return known_done(handle);
}

// Cuts the idle handles that the placement would leave mostly free. True if anything may have changed
// there: a free block that was found before may be another one now.
bool DeviceAllocator::Impl::cut_under(const Placement& placement, Pool& pool) {
  if (placement.size < kSmallestCutFor || !pool.lends() || filling_pool() ||
      cuts >= cut_budget(kNoLimit)) {
    return false;
  }
  std::vector<Handle*> partly;
  RangeHeap::for_each_mapping(
      *placement.region, placement.address, placement.end(), [&](Mapping& mapping) {
        Handle& handle = *mapping.handle;
        const Bytes covered =
            std::min(mapping.end(), placement.end()) - std::max(mapping.address, placement.address);
        const Bytes excess = handle.physical.size - covered;
        if (handle.movable() && excess >= kLeastGranules * info.granularity &&
            kLeastPart * excess >= placement.size && cuts + partly.size() < cut_budget(excess) &&
            ask_done(handle)) {
          partly.push_back(&handle);
        }
      });
  if (partly.empty()) {
    return false;
  }
  if (streams.several()) {
    settle();  // what is done is clean, like what is created now: they merge
  }
  for (Handle* handle : partly) {
    cut(placement, pool, handle);
  }
  return true;
}

void DeviceAllocator::Impl::cut(const Placement& placement, Pool& pool, Handle* handle) {
  Region& region = *placement.region;
  const Mapping* mapping = handle->in(region);
  const VirtAddr from = mapping->address;
  const VirtAddr to = mapping->end();
  const Result<PhysicalHandle> unmapped = unmap_idle(handle);
  if (!unmapped.ok()) {
    return;
  }
  give_back(unmapped.value());
  ++cuts;
  const VirtAddr base = region.range.address;
  const Bytes start = placement.address - base;
  const Bytes end = start + placement.size;
  // The granule that the block shares with whatever comes next is a handle of its own.
  const VirtAddr edges[] = {base + round_down(start, info.granularity),
                            base + round_down(end, info.granularity),
                            base + round_up(end, info.granularity),
                            to};
  VirtAddr at = from;
  for (const VirtAddr edge : edges) {
    if (edge <= at || edge > to) {
      continue;
    }
    const Result<PhysicalHandle> made = create(edge - at);
    if (!made.ok()) {
      break;  // what is left stays without memory: the request finds it missing
    }
    map_pieces(pool, region, at, {{made.value(), nullptr}}).ignore();
    at = edge;
  }
}

// After a cut: the block at the place that was chosen for it, or nullptr if it could not be backed.
Block* DeviceAllocator::Impl::take_cut(Pool& pool,
                                       const Placement& placement,
                                       Bytes requested,
                                       StreamClock& clock) {
  Fill fill{pool, clock, ++fills};
  // A mapping that failed and could not be undone has taken its place.
  const bool backed =
      RangeHeap::open(placement) && back(fill, placement).ok() && RangeHeap::open(placement);
  Block* block = backed ? pool.heap.take(placement, requested, clock) : nullptr;
  drop_emptied_views();
  return block;
}

}  // namespace nofrag
