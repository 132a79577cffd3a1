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
constexpr Bytes kWorthAMapping = RangeHeap::kLongEnd;
// Addresses kept behind a view: half of it, or this, but no more than this part of the device's memory.
constexpr Bytes kViewRoom = 256 * kMiB;
constexpr std::uint64_t kRoomShare = 64;
// A request up to this size leaves free ends alone while nothing presses: it would only break them up.
constexpr Bytes kSmall = 16 * kMiB;

// A view is mended for requests of this size that would take as many mappings, if it takes at most this share
// of them.
constexpr Bytes kWorthMending = 64 * kMiB;
constexpr std::size_t kWorthAMend = 4;
constexpr double kMendShare = 0.7;

// Which of the handles are not mapped in the region, the largest first.
std::vector<std::size_t> unmapped_in(const Region& region, const std::vector<Handle*>& handles) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (handles[i] != nullptr && handles[i]->in(region) == nullptr) {
      order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&handles](std::size_t a, std::size_t b) {
    return handles[a]->physical.size > handles[b]->physical.size;
  });
  return order;
}

// Which back gives most together with a front of another handle; backs.size() if a front alone does.
std::size_t best_back(const std::vector<End>& backs, const std::vector<End>& fronts) {
  Bytes best;
  std::size_t chosen = backs.size();
  // backs[2] and lower ones cannot win: at most one of the first two shares its handle with a front.
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, backs.size()}) {
    if (i > backs.size()) {
      continue;
    }
    const Handle* handle = i < backs.size() ? backs[i].handle : nullptr;
    Bytes sum = i < backs.size() ? backs[i].free : Bytes(0);
    for (auto front = fronts.rbegin(); front != fronts.rend(); ++front) {
      if (front->handle != handle) {
        sum += front->free;
        break;
      }
    }
    if (sum > best) {
      best = sum;
      chosen = i;
    }
  }
  return chosen;
}

}  // namespace

// Free backs and fronts of handles in use, the longest backs and the shortest fronts first.
void DeviceAllocator::Impl::free_ends(const Fill& fill,
                                      Bytes least,
                                      std::vector<End>* backs,
                                      std::vector<End>* fronts) {
  RangeHeap& heap = fill.pool.heap;
  const bool long_ones = least >= kWorthAMapping;
  const std::vector<Handle*>& handles = long_ones ? heap.perhaps_long_ends() : heap.handles();
  std::vector<Handle*> short_ones;
  std::size_t looked_at = 0;
  for (Handle* handle : handles) {
    if (handle->idle() || handle->pins != 0) {
      continue;
    }
    const Bytes size = handle->physical.size;
    const bool room = size - handle->used >= least;
    if (room && long_ones && ++looked_at > kEndsLookedAt) {
      break;
    }
    const RangeHeap::Ends ends = room ? heap.free_ends(*handle) : RangeHeap::Ends{};
    if (ends.back < least && ends.front < least) {
      short_ones.push_back(handle);
      continue;
    }
    if (!can_alias(fill.pool, *handle, fill.wait)) {
      continue;
    }
    if (ends.back >= least && may_use(*handle, size - ends.back, size, fill.clock, fill.cross)) {
      backs->push_back({handle, ends.back});
    }
    if (ends.front >= least && may_use(*handle, Bytes(0), ends.front, fill.clock, fill.cross)) {
      fronts->push_back({handle, ends.front});
    }
  }
  for (Handle* handle : short_ones) {
    if (long_ones) {
      heap.note_short_ends(*handle);  // not looked at again until something is freed there
    }
  }
  const auto shorter = [](const End& a, const End& b) { return a.free < b.free; };
  std::stable_sort(backs->rbegin(), backs->rend(), shorter);
  std::stable_sort(fronts->begin(), fronts->end(), shorter);
}

// Idle handles that may be mapped once more, in the order in which they should be used.
std::vector<Handle*> DeviceAllocator::Impl::free_wholes(Fill& fill) {
  std::vector<Handle*> wholes;
  for (Handle* handle : supply(fill).own) {
    if (handle != nullptr && handle->chosen != fill.id &&
        may_use(*handle, Bytes(0), handle->physical.size, fill.clock, fill.cross) &&
        can_alias(fill.pool, *handle, fill.wait)) {
      wholes.push_back(handle);
    }
  }
  // Larger ones first: fewer mappings. Among equals those whose own addresses are highest: requests
  // look for the lowest, so what is high stays free for longest.
  std::stable_sort(wholes.begin(), wholes.end(), [](const Handle* a, const Handle* b) {
    return a->physical.size != b->physical.size ? a->physical.size > b->physical.size
                                                : a->first_address() > b->first_address();
  });
  return wholes;
}

// What a view of `size` bytes would be made of, and what is missing. `thorough`: the two ends that give
// most together, whatever they are, so that nothing smaller could be missing.
Composition DeviceAllocator::Impl::plan_composition(Fill& fill, Bytes size, bool thorough) {
  std::vector<End> backs;
  std::vector<End> fronts;
  if (thorough || size > kSmall) {
    free_ends(fill, thorough ? FreeIndex::kUnit : kWorthAMapping, &backs, &fronts);
  }
  const End none;
  std::size_t head = thorough ? best_back(backs, fronts) : 0;
  while (!thorough && head < backs.size() && backs[head].free >= size) {
    ++head;
  }
  Composition plan;
  const End& back = head < backs.size() ? backs[head] : none;
  plan.head = back.handle;
  plan.head_free = back.free;
  // The shortest front that holds at least this much, or the longest of all.
  const auto front_for = [&](Bytes least) -> const End& {
    auto end = std::lower_bound(
        fronts.begin(), fronts.end(), least, [](const End& a, Bytes b) { return a.free < b; });
    while (end != fronts.end() && end->handle == plan.head) {
      ++end;
    }
    while (end == fronts.end() || end->handle == plan.head) {
      if (end == fronts.begin()) {
        return none;
      }
      --end;
    }
    return *end;
  };
  std::vector<Handle*> wholes = free_wholes(fill);
  Bytes left = size - std::min(size, plan.head_free);
  std::size_t next = 0;
  while (!left.is_zero()) {
    const End& front = front_for(left);
    if (front.free >= left || next == wholes.size()) {
      plan.tail = front.handle;
      left -= std::min(left, front.free);
      break;
    }
    // The last one need not be large.
    std::size_t pick = next;
    while (pick + 1 < wholes.size() && wholes[pick + 1]->physical.size >= left) {
      ++pick;
    }
    // Where memory may run short, what is missing is rather made than taken from a much larger handle.
    if (!thorough && tight && wholes[pick]->physical.size >= left + kMuchTooLarge &&
        physical.reserved() + round_up(left, info.granularity) <= capacity()) {
      break;
    }
    std::swap(wholes[pick], wholes[next]);
    plan.wholes.push_back(wholes[next++]);
    left -= std::min(left, plan.wholes.back()->physical.size);
  }
  plan.missing = round_up(left, info.granularity);
  return plan;
}

// A view that is there already, mended, if that takes clearly fewer mappings than `instead`: a giant block that
// comes again and again finds most of the last one's view free.
std::optional<Mend> DeviceAllocator::Impl::plan_mend(Fill& fill, Bytes size, std::size_t instead) {
  // Once memory may run short a mend costs more capacity than its calls are worth (decision 0005).
  if (!fill.may_mend || tight || size < kWorthMending || instead < kWorthAMend || !fill.cross ||
      !streams.several() || !fill.pool.lends()) {
    return std::nullopt;
  }
  Bytes idle;
  std::size_t count = 0;
  for (const Handle* handle : supply(fill).own) {
    if (handle != nullptr && can_alias(fill.pool, *handle, fill.wait)) {
      idle += handle->physical.size;
      ++count;
    }
  }
  if (count == 0) {
    return std::nullopt;
  }
  const double most = kMendShare * static_cast<double>(instead);
  const MendRequest request{size, Bytes(idle.count() / count), idle, most};
  return find_mend(fill.pool.heap, request);
}

// Where it fails half-way, less is mapped in the view than before, and nobody's memory is touched.
Result<Placement> DeviceAllocator::Impl::carry_out(Fill& fill, const Mend& plan) {
  const Work work(sink, "nofrag: mend");
  const Placement& placement = plan.placement;
  for (Mapping* mapping : plan.in_the_way) {
    if (const Status unmapped = unmap(mapping); !unmapped.ok()) {
      return unmapped.error();
    }
    fill.pool.heap.drop(mapping);
  }
  // Idle handles that are not mapped in the view yet, larger ones first.
  std::vector<Handle*>& own = supply(fill).own;
  std::vector<std::size_t> order = unmapped_in(*placement.region, own);
  for (const Gap& gap : fill.pool.heap.gaps(placement)) {
    Bytes left = gap.range.size;
    std::vector<Piece> pieces;
    for (const std::size_t i : order) {
      Handle* handle = own[i];
      if (handle != nullptr && handle->chosen != fill.id && handle->physical.size <= left &&
          make_room(fill.pool, *handle, fill.wait).ok()) {
        handle->chosen = fill.id;
        own[i] = nullptr;
        pieces.push_back({handle->physical, handle});
        left -= handle->physical.size;
      }
    }
    while (!left.is_zero()) {
      const Result<Piece> piece = obtain(fill, placement, left, gap.room_after);
      if (!piece.ok()) {
        give_back(pieces);
        return piece.error();
      }
      pieces.push_back(piece.value());
      left -= std::min(left, piece.value().physical.size);
    }
    if (const Status mapped = map_pieces(fill.pool, *placement.region, gap.range.address, pieces);
        !mapped.ok()) {
      return mapped.error();
    }
  }
  // Nothing above takes anything from under the window. If it did, the request would be planned anew, and the process
  // not be ended by the check in take().
  if (!RangeHeap::open(placement) || !fill.pool.heap.gaps(placement).empty()) {
    return Errc::kNotReady;
  }
  fill.highest = std::max(fill.highest, Rung::kOwnMappable);
  return placement;
}

// Addresses for a view: with room behind it, so that it can be extended, while there are plenty.
Result<AddressRange> DeviceAllocator::Impl::take_view(const Fill& fill, Bytes size) {
  const Bytes room = std::max(Bytes(size.count() / 2),
                              std::min(kViewRoom, Bytes(info.total_memory.count() / kRoomShare)));
  return take_addresses(fill, round_up(size + room, info.granularity), size);
}

// Maps the composition at fresh addresses. What it misses is obtained first.
Result<Placement> DeviceAllocator::Impl::compose(Fill& fill, Bytes size, const Composition& plan) {
  const Work work(sink, "nofrag: compose");
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
  const Result<AddressRange> range = take_view(fill, total);
  if (!range.ok()) {
    return range.error();
  }
  Region& view = fill.pool.heap.add_region(range.value(), false);
  note_emptied(view);  // if nothing comes of it
  Placement placement{&view, range.value().address, size, Bytes(0)};
  for (Bytes missing = plan.missing; !missing.is_zero();) {
    const Result<Piece> piece = obtain(fill, placement, missing, Bytes(0));
    if (!piece.ok()) {
      give_back(pieces);
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
  emit(EventKind::kCompose,
       view.range.address,
       size,
       StreamId{},
       static_cast<std::uint32_t>(pieces.size()));
  if (plan.head != nullptr) {
    placement.address = placement.address + (plan.head->physical.size - plan.head_free);
  }
  return placement;
}

}  // namespace nofrag
