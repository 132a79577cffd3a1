// Backing: physical memory under a placement, from the cheapest source that does not hold more than
// the job needs: new handles while reserved stays near the peak of live memory, else idle handles
// moved here, else new ones up to the limit, else (under pressure) idle ones that must be waited
// for.

#include <algorithm>

#include "device/device_impl.h"
#include "range/mapping.h"

namespace nofrag {
namespace {

// How many idle handles a search without pressure asks about, longest idle first: what freed last
// is done last, so after a few dozen that still run the rest run too. Under pressure all are looked
// at.
constexpr int kIdleScan = 64;

}  // namespace

bool DeviceAllocator::Impl::within_soft_limit(Bytes more, Bytes request) const {
  const Bytes allocated = live_bytes + pending_bytes;
  const Bytes peak = std::max(peak_allocated, allocated + request);
  // Up to one full handle more whatever the slack, so that a small job does not grow granule by
  // granule; but never more than the job itself: one of a megabyte must not hold sixteen.
  const Bytes floor = std::min(handle_size, peak);
  const auto share =
      Bytes(static_cast<std::uint64_t>(static_cast<double>(peak.count()) * options.reserve_slack));
  const Bytes slack = std::max(floor, share);
  return physical.reserved() + more <= round_up(peak + slack, info.granularity);
}

// Half-sized handles once half of what there is is taken: near the end finer pieces leave less free
// memory pinned beside live blocks, and far from it coarse ones cost half the calls.
Bytes DeviceAllocator::Impl::growth_size() const {
  const Bytes capacity = std::min(physical.limit(), info.total_memory);
  const Bytes half = round_up(Bytes(handle_size.count() / 2), info.granularity);
  return physical.reserved() + physical.reserved() >= capacity ? half : handle_size;
}

Status DeviceAllocator::Impl::back(Pool& pool,
                                   const Placement& placement,
                                   bool pressure,
                                   Rung* highest) {
  for (const Gap& gap : pool.heap.gaps(placement)) {
    if (const Status filled = fill_gap(pool, placement, gap, pressure, highest); !filled.ok()) {
      return filled;  // gaps filled before stay: mapped, free and counted
    }
  }
  return {};
}

Status DeviceAllocator::Impl::fill_gap(
    Pool& pool, const Placement& placement, Gap gap, bool pressure, Rung* highest) {
  std::vector<PhysicalHandle> pieces;
  const auto give_back = [&](std::size_t from) {
    for (std::size_t i = from; i < pieces.size(); ++i) {
      emit(EventKind::kRelease, VirtAddr{}, pieces[i].size, StreamId{});
      physical.release(pieces[i]);
    }
  };
  Bytes filled;
  while (filled < gap.range.size) {
    const Result<Obtained> piece =
        obtain(pool, placement, gap.range.size - filled, gap.room_after, pressure);
    if (!piece.ok()) {
      give_back(0);
      return piece.error();
    }
    pieces.push_back(piece.value().physical);
    filled += piece.value().physical.size;
    *highest = std::max(*highest, piece.value().rung);
  }
  const MapOutcome outcome = map_handles(driver, device, gap.range.address, pieces);
  VirtAddr address = gap.range.address;
  const std::size_t kept = outcome.status.ok() ? pieces.size() : outcome.stuck;
  for (std::size_t i = 0; i < kept; ++i) {
    if (outcome.status.ok()) {
      pool.heap.attach(*placement.region, address, pieces[i]);
      emit(EventKind::kMap, address, pieces[i].size, StreamId{});
    } else {
      pool.heap.attach_lost(*placement.region, address, pieces[i]);
    }
    address = address + pieces[i].size;
  }
  give_back(kept);
  return outcome.status;
}

// One handle of at most `want` bytes, or somewhat more when a full-sized one fits into `room`
// beyond: growth in full handles leaves fewer, larger pieces.
Result<DeviceAllocator::Impl::Obtained> DeviceAllocator::Impl::obtain(
    Pool& pool, const Placement& placement, Bytes want, Bytes room, bool pressure) {
  const Bytes full = growth_size();
  const Bytes exact = std::min(want, full);
  if (want < full && want + room >= full && within_soft_limit(full, placement.size)) {
    if (const Result<PhysicalHandle> made = create(full); made.ok()) {
      return Obtained{made.value(), Rung::kGrow};
    }
  }
  if (within_soft_limit(exact, placement.size)) {
    if (const Result<PhysicalHandle> made = create(exact); made.ok()) {
      return Obtained{made.value(), Rung::kGrow};
    }
  }
  if (Result<Obtained> reused = reuse_idle(pool, placement, want, false); reused.ok()) {
    return reused;
  }
  const Result<PhysicalHandle> made = create(exact);
  if (made.ok()) {
    return Obtained{made.value(), Rung::kGrow};
  }
  if (pressure) {
    if (Result<Obtained> reused = reuse_idle(pool, placement, want, true); reused.ok()) {
      return reused;
    }
    // Whatever is left of the limit or the device, granule by granule.
    if (exact > info.granularity) {
      if (const Result<PhysicalHandle> rest = create(info.granularity); rest.ok()) {
        return Obtained{rest.value(), Rung::kGrow};
      }
    }
  }
  return made.error();
}

Result<PhysicalHandle> DeviceAllocator::Impl::create(Bytes size) {
  const Result<PhysicalHandle> made = physical.create(size);
  if (made.ok()) {
    emit(EventKind::kCreate, VirtAddr{}, size, StreamId{});
  }
  return made;
}

// An idle handle moved here whole if it fits, else given back to the driver to make room for a new
// one of the size needed: physical memory is fungible through the driver.
Result<DeviceAllocator::Impl::Obtained> DeviceAllocator::Impl::reuse_idle(
    Pool& pool, const Placement& placement, Bytes want, bool pressure) {
  const Bytes exact = std::min(want, growth_size());
  std::uint64_t after = 0;
  for (;;) {
    Rung rung = Rung::kOwnMappable;
    Handle* idle = pick_idle(pool, placement, pressure, after, &rung);
    if (idle == nullptr) {
      return Errc::kOutOfMemory;
    }
    after = idle->idle_since;
    // One that cannot be waited for (a capture) or unmapped stays; the next may do.
    if (!wait_for_handle(*idle).ok()) {
      continue;
    }
    const Result<PhysicalHandle> unmapped = unmap_idle(idle);
    if (!unmapped.ok()) {
      continue;
    }
    if (unmapped.value().size <= want) {
      return Obtained{unmapped.value(), rung};
    }
    emit(EventKind::kRelease, VirtAddr{}, unmapped.value().size, StreamId{});
    physical.release(unmapped.value());
    const Result<PhysicalHandle> made = create(exact);
    if (made.ok()) {
      return Obtained{made.value(), rung};
    }
    // Only want of memory is a reason to give up more.
    if (made.code() != Errc::kOutOfMemory && made.code() != Errc::kLimit) {
      return made.error();
    }
  }
}

// The handle idle for longest whose work is done; with `may_wait` one whose work can be waited for.
// Never one under the placement itself, and only those that became idle later than `after`.
Handle* DeviceAllocator::Impl::pick_idle(
    Pool& pool, const Placement& placement, bool may_wait, std::uint64_t after, Rung* rung) {
  Handle* best = nullptr;
  for (auto& [key, lender] : pools) {
    if (&lender != &pool && !lender.lends()) {
      continue;
    }
    int asked = 0;
    for (Handle* handle = lender.heap.first_idle();
         handle != nullptr && (may_wait || asked < kIdleScan);
         handle = handle->next_idle) {
      if (best != nullptr && handle->idle_since >= best->idle_since) {
        break;
      }
      if (handle->idle_since <= after) {
        continue;
      }
      if (handle->region == placement.region && handle->address < placement.end() &&
          placement.address < handle->end()) {
        continue;
      }
      // A private pool that is in use may hold work of graphs: its own handles stay where they are.
      if (lender.is_private() && !lender.lends()) {
        break;
      }
      ++asked;
      if (!(may_wait && !filling_pool()) && !handle_done(*handle)) {
        continue;
      }
      best = handle;
      *rung = &lender == &pool ? Rung::kOwnMappable : Rung::kOtherPools;
    }
  }
  return best;
}

Result<PhysicalHandle> DeviceAllocator::Impl::unmap_idle(Handle* handle) {
  const VirtAddr address = handle->address;
  const Bytes size = handle->physical.size;
  if (const Status unmapped = driver.unmap(address, size); !unmapped.ok()) {
    return unmapped.error();
  }
  emit(EventKind::kUnmap, address, size, StreamId{});
  return handle->region->heap->detach(handle);
}

}  // namespace nofrag
