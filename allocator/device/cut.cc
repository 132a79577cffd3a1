// Cuts: an idle handle that a block would only partly use goes back to the driver, and what the block
// needs is created at the same addresses. So that a small block does not tie up a large handle when
// memory is short, while every block still lands at the address it would have had.

#include <algorithm>
#include <cstdlib>

#include "device/device_impl.h"

namespace nofrag {

// Called when reserved or a limit changed.
void DeviceAllocator::Impl::note_reserved() {
  static const double ct = getenv("CT") ? atof(getenv("CT")) : 0.5;
  const Bytes capacity = std::min(physical.limit(), info.total_memory);
  tight = static_cast<double>(physical.peak_reserved().count()) >= ct * static_cast<double>(capacity.count());
}

// Gives back the idle handles under the placement that it would leave mostly free. True if there were any.
bool DeviceAllocator::Impl::cut_under(const Placement& placement, Pool& pool) {
  static const double credit = getenv("CC") ? atof(getenv("CC")) : 150, rate = getenv("CR") ? atof(getenv("CR")) : 0.001;
  static const unsigned long cm = getenv("CM") ? strtoul(getenv("CM"), nullptr, 10) : 2;
  static const double rx = getenv("CX") ? atof(getenv("CX")) : 0.1;
  static const double pe = getenv("PE") ? atof(getenv("PE")) : 0.98, cpe = getenv("CPE") ? atof(getenv("CPE")) : 600;
  const bool brim = static_cast<double>(physical.reserved().count()) >= pe * static_cast<double>(std::min(physical.limit(), info.total_memory).count());
  if (!pool.lends() || static_cast<double>(cuts) > (brim ? cpe : credit) + rate * static_cast<double>(allocations)) {
    return false;
  }
  static const double cs = getenv("CS") ? atof(getenv("CS")) : 0;
  if (placement.size.mib() < cs) { return false; }
  static const double wp = getenv("WP") ? atof(getenv("WP")) : 0.8;
  const Bytes capacity = std::min(physical.limit(), info.total_memory);
  const bool waits = static_cast<double>(physical.reserved().count()) >= wp * static_cast<double>(capacity.count()) && !filling_pool();
  const auto finished = [&](const Handle& handle) {
    if (known_done(handle)) {
      return true;
    }
    if (filling_pool()) {
      return false;
    }
    for (const Mapping* m = handle.mappings; m != nullptr; m = m->next) {
      m->last_uses.all_of([&](StreamClock& clock, Tick tick) {
        streams.mark_up_to(clock, tick).ignore();
        streams.poll(clock);
        return true;
      });
    }
    return known_done(handle) || (waits && wait_for_handle(handle).ok());
  };
  std::vector<Handle*> partly;
  RangeHeap::for_each_mapping(*placement.region, placement.address, placement.end(), [&](Mapping& mapping) {
    Handle& handle = *mapping.handle;
    if (!handle.movable()) {
      return;
    }
    const Bytes used = std::min(mapping.end(), placement.end()) - std::max(mapping.address, placement.address);
    const Bytes excess = handle.physical.size - used;
    if (excess >= cm * info.granularity && static_cast<double>(excess.count()) >= rx * static_cast<double>(placement.size.count()) && finished(handle)) {
      partly.push_back(&handle);
    }
  });
  if (!partly.empty() && streams.several() && !filling_pool()) {
    settle();
  }
  bool any = false;
  static const unsigned long ck = getenv("CK") ? strtoul(getenv("CK"), nullptr, 10) : 2;
  for (Handle* handle : partly) {
    Mapping* mapping = handle->in(*placement.region);
    Region& region = *placement.region;
    const VirtAddr from = mapping->address;
    const VirtAddr to = mapping->end();
    const Result<PhysicalHandle> unmapped = unmap_idle(handle);
    if (!unmapped.ok()) {
      continue;
    }
    give_back(unmapped.value());
    ++cuts;
    any = true;
    // The same addresses again, with boundaries where the block begins and ends.
    const VirtAddr base = region.range.address;
    std::vector<VirtAddr> edges;
    const VirtAddr begin = base + round_down(placement.address - base, info.granularity);
    const VirtAddr last = base + round_down(placement.end() - base, info.granularity);
    const VirtAddr end = base + round_up(placement.end() - base, info.granularity);
    edges.push_back(from);
    const auto edge = [&](VirtAddr at) {
      if (at > edges.back() && at < to) {
        edges.push_back(at);
      }
    };
    edge(begin);
    if (placement.size > 2 * info.granularity) {
      edge(last);
    }
    edge(end);
    if (ck > 0 && end < to) {
      const Bytes step = ck * round_up(placement.size, info.granularity);
      for (VirtAddr at = std::max(end, from) + step; at < to; at = at + step) {
        edge(at);
      }
    }
    edges.push_back(to);
    for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
      const Result<PhysicalHandle> made = create(edges[i + 1] - edges[i]);
      if (!made.ok()) {
        break;
      }
      map_pieces(pool, region, edges[i], {{made.value(), nullptr}}).ignore();
    }
  }
  return any;
}

// After a cut: what is missing under the placement is created, to the granule.
Block* DeviceAllocator::Impl::take_cut(Pool& pool, const Placement& placement, Bytes requested, StreamClock& clock) {
  Fill fill{pool, clock, ++fills};
  const bool backed = back(fill, placement).ok();
  Block* block = backed ? pool.heap.take(placement, requested, clock) : nullptr;
  drop_emptied_views();
  return block;
}

}  // namespace nofrag
