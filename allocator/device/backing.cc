// Backing: physical memory under the gaps of a placement, from the cheapest source that does not hold
// more than the job needs: new handles while reserved stays near the peak of live memory, else idle
// handles mapped here too, else idle ones moved here, else new ones up to the limit, else (under
// pressure) idle ones that must be waited for or are given back and created again in the size needed.

#include <algorithm>

#include "device/device_impl.h"
#include "range/mapping.h"

namespace nofrag {
namespace {

// How many handles a large request is made of, where their size is free to choose.
constexpr std::uint64_t kHandlesARequest = 4;
// Once half is taken: the most that one handle may be of all there is, under small and large requests.
constexpr std::uint64_t kSmallestShare = 1024;
constexpr std::uint64_t kLargestShare = 256;
// While there is plenty: the most that one of the largest is, unless it would be as large anyway.
constexpr std::uint64_t kFirstShare = 500;
// Below a twenty-fifth of what there is, memory does not run short soon.
constexpr std::uint64_t kFarFromFullShare = 25;
// What a small job may hold beside its peak: a share of the device less the second part of the peak, at most the first.
constexpr std::uint64_t kSmallJobPart = 3;
constexpr std::uint64_t kSmallJobFades = 64;

// A job of changing sizes composes all the time, and where it takes a hundredth of the device each time costs as much
// as in a large job, to save next to nothing of it. So a small job may hold more; the larger it is, the less.
Bytes small_job_slack(const Tuning& tuning, Bytes capacity, Bytes peak) {
  if (tuning.small_job_share == 0) {
    return {};
  }
  const Bytes most(capacity.count() / tuning.small_job_share);
  const Bytes fades(peak.count() / kSmallJobFades);
  return fades < most ? std::min(most - fades, Bytes(peak.count() / kSmallJobPart)) : Bytes{};
}

// What may be held beside the peak, as a part of it.
double slack_of(const Tuning& tuning, bool several, Bytes reserved, Bytes capacity) {
  if (several || capacity.is_zero()) {
    return tuning.slack;
  }
  const double taken =
      static_cast<double>(reserved.count()) / static_cast<double>(capacity.count());
  return std::max(tuning.slack, std::min(tuning.slack_by_share * taken, tuning.most_slack));
}

}  // namespace

// What this process can have, by the driver's last word on what others hold: how near the end of it we are
// decides how memory is laid out.
Bytes DeviceAllocator::Impl::capacity() const {
  return std::min(physical.limit(),
                  info.total_memory - std::min(info.total_memory, physical.others()));
}

bool DeviceAllocator::Impl::within_soft_limit(Bytes more, Bytes request) const {
  const Bytes allocated = live_bytes + pending_bytes;
  const Bytes peak = std::max(peak_allocated, allocated + request);
  // Up to one handle more whatever the slack, so that a small job does not grow granule by granule; but
  // never more than the job itself: one of a megabyte must not hold sixteen.
  const Bytes floor = std::min(tuning.handle, peak);
  const double part = slack_of(tuning, streams.several(), physical.reserved(), capacity());
  const auto share = Bytes(static_cast<std::uint64_t>(static_cast<double>(peak.count()) * part));
  const Bytes slack = std::max({floor, share, small_job_slack(tuning, capacity(), peak)});
  return physical.reserved() + more <= round_up(peak + slack, info.granularity);
}

// A large request is made of fewer, larger handles; all are smaller the nearer the end of what there is:
// far from it coarse ones cost few calls, near it finer ones leave less free memory beside live blocks.
// Several streams share less of what is free, so there the finer ones come sooner.
Bytes DeviceAllocator::Impl::growth_size(Bytes request) const {
  const Bytes reserved = physical.reserved();
  const bool half = 2 * reserved >= capacity();
  const bool end = 100 * reserved >= 85 * capacity();
  const bool several = streams.several();
  const bool at_first = (several ? 4 : 8) * reserved < capacity();
  const std::uint64_t coarser = several && at_first ? tuning.coarser : 1;
  const std::uint64_t coarsest = several ? tuning.at_first_several : tuning.at_first;
  const auto part = [this](Bytes size, std::uint64_t divisor) {
    return round_up(Bytes(size.count() / divisor), info.granularity);
  };
  Bytes least = part(coarser * tuning.handle, end ? 4 : half && !several ? 2 : 1);
  Bytes most = part(coarser * tuning.largest, !half ? 1 : !several ? 2 : end ? 8 : 4);
  if (at_first) {
    most = std::max(most, std::min(coarsest * tuning.largest, part(capacity(), kFirstShare)));
  }
  if (half) {
    // On a small device, or under a small limit, each handle is a larger part of what there is.
    least = std::min(least, part(capacity(), kSmallestShare));
    most = std::min(most, part(capacity(), kLargestShare));
  }
  return std::clamp(
      round_down(Bytes(request.count() / kHandlesARequest), least), least, std::max(least, most));
}

// Should a request get just the granules it needs? Where memory may run short, while that stays cheap.
bool DeviceAllocator::Impl::exactly() const {
  return tight || (kFarFromFullShare * physical.reserved() >= capacity() &&
                   exact_handles < tuning.exact_handles);
}

Result<PhysicalHandle> DeviceAllocator::Impl::create(Bytes size) {
  const Work work(sink, "nofrag: create");
  const Result<PhysicalHandle> made = physical.create(size);
  if (made.ok()) {
    emit(EventKind::kCreate, VirtAddr{}, size, StreamId{});
    tell(MemoryEvent::Kind::kCreated, physical, VirtAddr{}, size, made.value().id);
    exact_handles += size < tuning.handle ? 1U : 0U;
  }
  note_reserved();  // also when it failed: others hold more than they did
  return made;
}

void DeviceAllocator::Impl::give_back(PhysicalHandle handle) {
  emit(EventKind::kRelease, VirtAddr{}, handle.size, StreamId{});
  physical.release(handle);
  tell(MemoryEvent::Kind::kReleased, physical, VirtAddr{}, handle.size, handle.id);
  note_reserved();
}

// Pieces that are mapped nowhere yet. Aliases stay where they are.
void DeviceAllocator::Impl::give_back(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    if (piece.alias == nullptr) {
      give_back(piece.physical);
    }
  }
}

Status DeviceAllocator::Impl::back(Fill& fill, const Placement& placement) {
  for (const Gap& gap : fill.pool.heap.gaps(placement)) {
    if (const Status filled = fill_gap(fill, placement, gap); !filled.ok()) {
      return filled;  // gaps filled before stay: mapped, free and counted
    }
  }
  return {};
}

Status DeviceAllocator::Impl::fill_gap(Fill& fill, const Placement& placement, Gap gap) {
  std::vector<Piece> pieces;
  Bytes filled;
  while (filled < gap.range.size) {
    const Result<Piece> piece = obtain(fill, placement, gap.range.size - filled, gap.room_after);
    if (!piece.ok()) {
      give_back(pieces);
      return piece.error();
    }
    pieces.push_back(piece.value());
    filled += piece.value().physical.size;
  }
  return map_pieces(fill.pool, *placement.region, gap.range.address, pieces);
}

// Maps the pieces one after the other from `address` on, all or none; what is not mapped goes back.
Status DeviceAllocator::Impl::map_pieces(Pool& pool,
                                         Region& region,
                                         VirtAddr address,
                                         const std::vector<Piece>& pieces) {
  std::vector<PhysicalHandle> handles;
  handles.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    handles.push_back(piece.physical);
  }
  const MapOutcome outcome = map_handles(driver, device, address, handles, peers);
  const std::size_t kept = outcome.status.ok() ? pieces.size() : outcome.stuck;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (i >= kept) {
      if (piece.alias == nullptr) {
        give_back(piece.physical);
      }
    } else if (outcome.status.ok()) {
      if (piece.alias == nullptr) {
        pool.heap.attach(region, address, piece.physical);
      } else {
        pool.heap.alias(region, address, piece.alias);
      }
      emit(EventKind::kMap, address, piece.physical.size, StreamId{});
    } else if (piece.alias == nullptr) {
      pool.heap.attach_lost(region, address, piece.physical);
    } else {
      pool.heap.alias_stuck(region, address, piece.alias);
    }
    if (i < kept) {
      tell(MemoryEvent::Kind::kMapped,
           physical,
           address,
           piece.physical.size,
           piece.physical.id,
           piece.alias == nullptr);
    }
    address = address + piece.physical.size;
  }
  return outcome.status;
}

// One handle of at most `want` bytes, or more where the addresses behind the gap have `room` for it.
Result<Piece> DeviceAllocator::Impl::obtain(Fill& fill,
                                            const Placement& placement,
                                            Bytes want,
                                            Bytes room) {
  const Bytes full = growth_size(placement.size);
  Bytes exact = std::min(want, full);
  // The granule that the block shares with whatever comes next is a handle of its own.
  const Bytes end = (placement.address - placement.region->range.address) + placement.size;
  if (tight && exact == want && want > info.granularity && placement.size > 2 * info.granularity &&
      !(end % info.granularity).is_zero()) {
    exact = want - info.granularity;
  }
  const auto grown = [&fill](PhysicalHandle physical_handle) {
    fill.highest = std::max(fill.highest, Rung::kGrow);
    return Piece{physical_handle, nullptr};
  };
  if (!exactly() && want < full && want + room >= full && within_soft_limit(full, placement.size)) {
    if (const Result<PhysicalHandle> made = create(full); made.ok()) {
      return grown(made.value());
    }
  }
  if (within_soft_limit(exact, placement.size)) {
    if (const Result<PhysicalHandle> made = create(exact); made.ok()) {
      return grown(made.value());
    }
  }
  if (Result<Piece> aliased = alias_idle(fill, placement, want, room); aliased.ok()) {
    return aliased;
  }
  if (Result<Piece> moved = move_idle(fill, placement, want, false); moved.ok()) {
    return moved;
  }
  const Result<PhysicalHandle> made = create(exact);
  if (made.ok()) {
    return grown(made.value());
  }
  if (fill.wait) {
    if (Result<Piece> moved = move_idle(fill, placement, want, true); moved.ok()) {
      return moved;
    }
    // Whatever is left of the limit or the device, granule by granule.
    if (exact > info.granularity) {
      if (const Result<PhysicalHandle> rest = create(info.granularity); rest.ok()) {
        return grown(rest.value());
      }
    }
  }
  return made.error();
}

// An idle handle of the same heap, mapped here beside where it is: nothing is unmapped, so nothing
// waits for the GPU.
Result<Piece> DeviceAllocator::Impl::alias_idle(Fill& fill,
                                                const Placement& placement,
                                                Bytes want,
                                                Bytes room) {
  std::vector<Handle*>& own = supply(fill).own;
  for (std::size_t& i = fill.next_alias; i < own.size(); ++i) {
    Handle* handle = own[i];
    if (handle == nullptr || handle->chosen == fill.id ||
        handle->physical.size > want + (tight ? std::min(room, kMuchTooLarge) : room) ||
        handle->in(*placement.region) != nullptr ||
        !may_use(*handle, Bytes(0), handle->physical.size, fill.clock, fill.cross) ||
        !make_room(fill.pool, *handle, fill.wait).ok()) {
      continue;
    }
    handle->chosen = fill.id;
    own[i++] = nullptr;
    fill.highest = std::max(fill.highest, Rung::kOwnMappable);
    return Piece{handle->physical, handle};
  }
  return Errc::kOutOfMemory;
}

// An idle handle moved here whole if it fits, else given back to the driver to make room for a new
// one of the size needed: physical memory is fungible through the driver.
Result<Piece> DeviceAllocator::Impl::move_idle(Fill& fill,
                                               const Placement& placement,
                                               Bytes want,
                                               bool wait) {
  Supply& idle = supply(fill);
  const auto from = [&](std::vector<Handle*>& list, std::size_t& next, Rung rung) -> Result<Piece> {
    while (next < list.size()) {
      Handle*& entry = list[next++];
      Handle* handle = entry;
      if (handle == nullptr || handle->chosen == fill.id ||
          (handle->in(*placement.region) != nullptr &&
           placement.covers(*handle->in(*placement.region))) ||
          !(wait ? wait_for_handle(*handle).ok() : known_done(*handle))) {
        continue;
      }
      // One that the driver will not unmap stays; the next may do.
      const Result<PhysicalHandle> unmapped = unmap_idle(handle);
      if (!unmapped.ok()) {
        continue;
      }
      entry = nullptr;
      fill.highest = std::max(fill.highest, rung);
      if (unmapped.value().size <= want) {
        return Piece{unmapped.value(), nullptr};
      }
      give_back(unmapped.value());
      const Result<PhysicalHandle> made = create(std::min(want, growth_size(placement.size)));
      if (made.ok()) {
        return Piece{made.value(), nullptr};
      }
      // Only want of memory is a reason to give up more.
      if (made.code() != Errc::kOutOfMemory && made.code() != Errc::kLimit) {
        return made.error();
      }
    }
    return Errc::kOutOfMemory;
  };
  // A private pool that is in use may hold work of graphs: its own handles stay where they are.
  if (fill.pool.lends()) {
    std::size_t& next = wait ? fill.next_waited : fill.next_move;
    if (Result<Piece> own = from(idle.own, next, Rung::kOwnMappable); own.ok()) {
      return own;
    }
  }
  return from(idle.others, wait ? fill.next_other_waited : fill.next_other, Rung::kOtherPools);
}

Supply& DeviceAllocator::Impl::supply(Fill& fill) {
  if (!fill.supply.has_value()) {
    fill.supply = supply_for(fill.pool);
  }
  return *fill.supply;
}

}  // namespace nofrag
