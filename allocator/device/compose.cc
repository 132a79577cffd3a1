// Composition: a view at fresh addresses, made of [free back of a handle][whole idle handles][free front
// of a handle], all of which stay mapped where they are. Nothing is unmapped, so nothing waits for the
// GPU; and whatever the layout, what is free at the ends of handles serves.

#include <algorithm>

#include "device/device_impl.h"

namespace nofrag {
namespace {

// Without pressure, how many handles are looked at for free ends, and how much must be free there to be
// worth a mapping.
constexpr std::size_t kEndsLookedAt = 1024;
constexpr Bytes kWorthAMapping = 2 * kMiB;

}  // namespace

// Free backs and fronts of handles in use, the longest backs and the shortest fronts first.
void DeviceAllocator::Impl::free_ends(const Fill& fill, bool thorough, std::vector<End>* backs,
                                      std::vector<End>* fronts) const {
  const std::vector<Handle*>& handles = fill.pool.heap.handles();
  std::size_t looked_at = 0;
  for (Handle* handle : handles) {
    const Bytes least = thorough ? FreeIndex::kUnit : kWorthAMapping;
    if (handle->idle() || handle->physical.size - handle->used < least) {
      continue;
    }
    if (!thorough && ++looked_at > kEndsLookedAt) {
      break;
    }
    const RangeHeap::Ends ends = fill.pool.heap.free_ends(*handle);
    const Bytes size = handle->physical.size;
    if (ends.back >= least && may_use(*handle, size - ends.back, size, fill.clock, fill.cross)) {
      backs->push_back({handle, ends.back});
    }
    if (ends.front >= least && may_use(*handle, Bytes(0), ends.front, fill.clock, fill.cross)) {
      fronts->push_back({handle, ends.front});
    }
  }
  const auto shorter = [](const End& a, const End& b) { return a.free < b.free; };
  std::stable_sort(backs->rbegin(), backs->rend(), shorter);
  std::stable_sort(fronts->begin(), fronts->end(), shorter);
}

// What a view of `size` bytes would be made of, and what is missing.
DeviceAllocator::Impl::Composition DeviceAllocator::Impl::plan_composition(Fill& fill,
                                                                           Bytes size,
                                                                           bool thorough) {
  Composition best;
  std::vector<End> backs;
  std::vector<End> fronts;
  free_ends(fill, thorough, &backs, &fronts);
  std::vector<Handle*> wholes;
  for (Handle* handle : supply(fill).own) {
    if (handle != nullptr && handle->chosen != fill.id &&
        may_use(*handle, Bytes(0), handle->physical.size, fill.clock, fill.cross)) {
      wholes.push_back(handle);
    }
  }
  // Larger ones first: fewer mappings. Among equals those whose own addresses are highest: requests
  // look for the lowest, so what is high stays free for longest.
  std::stable_sort(wholes.begin(), wholes.end(), [](const Handle* a, const Handle* b) {
    return a->physical.size != b->physical.size ? a->physical.size > b->physical.size
                                                : a->first_address() > b->first_address();
  });
  const auto addressable = [&](Handle* handle) {
    return can_alias(fill.pool, *handle, fill.wait);
  };
  for (const End& back : backs) {
    if (back.free < size && addressable(back.handle)) {
      best.head = back.handle;
      best.head_free = back.free;
      break;
    }
  }
  Bytes left = size - best.head_free;
  const auto front_for = [&](Bytes least) {
    auto end = std::lower_bound(fronts.begin(), fronts.end(), least,
                                [](const End& a, Bytes b) { return a.free < b; });
    while (end != fronts.end() && (end->handle == best.head || !addressable(end->handle))) {
      ++end;
    }
    return end;
  };
  std::size_t next = 0;
  while (!left.is_zero()) {
    if (const auto front = front_for(left); front != fronts.end()) {
      best.tail = front->handle;
      left = Bytes(0);
      break;
    }
    while (next < wholes.size() && !addressable(wholes[next])) {
      ++next;
    }
    if (next == wholes.size()) {
      break;
    }
    // The last one need not be large.
    std::size_t pick = next;
    while (pick + 1 < wholes.size() && wholes[pick + 1]->physical.size >= left) {
      ++pick;
    }
    if (pick != next && !addressable(wholes[pick])) {
      pick = next;
    }
    Handle* whole = wholes[pick];
    wholes.erase(wholes.begin() + static_cast<std::ptrdiff_t>(pick));
    best.wholes.push_back(whole);
    left = left > whole->physical.size ? left - whole->physical.size : Bytes(0);
  }
  // Not enough: the longest front cuts down what has to be had elsewhere.
  if (!left.is_zero() && !fronts.empty()) {
    for (auto front = fronts.rbegin(); front != fronts.rend(); ++front) {
      const Bytes rest = round_up(left - std::min(left, front->free), info.granularity);
      if (rest >= round_up(left, info.granularity)) {
        break;
      }
      if (front->handle != best.head && addressable(front->handle)) {
        best.tail = front->handle;
        left = rest;
        break;
      }
    }
  }
  best.missing = round_up(left, info.granularity);
  return best;
}

// Maps the composition at fresh addresses. What it misses is obtained first.
Result<Placement> DeviceAllocator::Impl::compose(Fill& fill, Bytes size, const Composition& plan) {
  Bytes total = plan.missing;
  std::vector<Piece> pieces;
  Status roomy;
  const auto choose = [&](Handle* handle) {
    handle->chosen = fill.id;
    total += handle->physical.size;
    if (roomy.ok()) {
      roomy = make_room(fill.pool, *handle, fill.wait);
    }
  };
  if (plan.head != nullptr) {
    choose(plan.head);
    pieces.push_back({plan.head->physical, plan.head});
  }
  for (Handle* handle : plan.wholes) {
    choose(handle);
    pieces.push_back({handle->physical, handle});
  }
  if (plan.tail != nullptr) {
    choose(plan.tail);
  }
  if (!roomy.ok()) {
    return roomy.error();
  }
  const Result<AddressRange> range = space.take_region(
      round_up(total + std::max(Bytes(total.count() / 2), kViewRoom), info.granularity));
  if (!range.ok()) {
    return range.error();
  }
  Region& view = fill.pool.heap.add_region(range.value(), false);
  note_emptied(view);  // if nothing comes of it
  Placement placement{&view, range.value().address, size, Bytes(0)};
  for (Bytes missing = plan.missing; !missing.is_zero();) {
    const Result<Piece> piece = obtain(fill, placement, missing, Bytes(0));
    if (!piece.ok()) {
      for (const Piece& had : pieces) {
        if (had.alias == nullptr) {
          give_back(had.physical);
        }
      }
      return piece.error();
    }
    pieces.push_back(piece.value());
    missing -= piece.value().physical.size;
  }
  if (plan.tail != nullptr) {
    pieces.push_back({plan.tail->physical, plan.tail});
  }
  if (const Status mapped = map_pieces(fill.pool, view, view.range.address, pieces); !mapped.ok()) {
    return mapped.error();
  }
  fill.highest = std::max(fill.highest, Rung::kOwnMappable);
  if (plan.head != nullptr) {
    placement.address = placement.address + (plan.head->physical.size - plan.head_free);
  }
  return placement;
}

}  // namespace nofrag
