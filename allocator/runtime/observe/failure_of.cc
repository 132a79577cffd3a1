#include "runtime/observe/failure_of.h"

#include <algorithm>

namespace nofrag {
namespace {

// To a window: which of its allocations a pause lay between is not known.
std::vector<std::uint64_t> pauses_of(const Timeline& timeline) {
  std::vector<std::uint64_t> pauses;
  std::uint64_t before = 0;
  for (const Stretch& window : timeline.windows()) {
    pauses.insert(pauses.end(), window.pauses - before, window.allocations);
    before = window.pauses;
  }
  return pauses;
}

}  // namespace

Failure failure_of(const OomReport& report,
                   const DeviceAllocator& device,
                   const Timeline* timeline) {
  constexpr std::size_t kHolders = 8;
  const DeviceStats& s = report.stats;
  Failure f;
  f.source = "nofrag";
  f.remapping = device.uses_virtual_memory();
  f.requested = report.requested;
  f.capacity = report.driver_total;
  if (s.limit < report.driver_total) {
    f.limit = s.limit;
  }
  f.limit_reached = report.limit_reached;
  f.live = s.live;
  f.pending = s.pending;
  f.stranded = s.stranded;
  f.cached = s.reserved - std::min(s.reserved, s.live);
  f.reachable = std::min(*f.cached, s.free_handles + s.composable + s.kept + s.pending);
  if (f.remapping) {
    f.beside_live = *f.cached - *f.reachable;
  }
  f.driver_free = report.driver_free;
  f.timeline = timeline;
  if (timeline != nullptr) {
    f.pauses = pauses_of(*timeline);
  }
  for (const HeldSize& held : device.held_sizes(kHolders)) {
    f.holders.push_back({held.size, held.blocks, held.size * held.blocks});
  }
  return f;
}

Bytes capacity_of(const DeviceStats& stats,
                  const DeviceInfo& info,
                  std::optional<Bytes> driver_free) {
  const Bytes most = driver_free ? stats.reserved + *driver_free : info.total_memory;
  return std::min({most, stats.limit, info.total_memory});
}

}  // namespace nofrag
