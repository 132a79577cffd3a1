// Capacity: what --capacity says, and the search behind --min-capacity.
//
// Layer: cli. Units: bytes. Threads: none. Failure: parse throws UsageError; the search gives
// nothing when no capacity within its bounds completes. Cost: a search makes about 20 runs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"

namespace nofrag {

class Capacity {
 public:
  // Of the largest device that can be simulated.
  static constexpr Bytes kMost = 16384 * kGiB;

  // "24469569536B", "24469569536", "24GiB", "500MiB" or "1.02x" (times the trace's peak live).
  static Capacity parse(std::string_view text);

  // Multiples are rounded up to a granule; bytes are taken as they are. UsageError above kMost.
  [[nodiscard]] Bytes resolve(Bytes peak_live, Bytes granule) const;

 private:
  std::optional<Bytes> bytes_;
  long double times_live_ = 0;
};

struct CapacitySearch {
  Bytes peak_live;
  Bytes granule;
  Bytes known_enough;  // a run without limits held this much; 0 = not known
  Bytes most;          // never try more
};

// The lowest capacity on a grid that starts at peak live and steps by 0.1 % of it (at least one
// granule) at which `completes` says yes. More memory can make an allocator fail where less did
// not (it decides differently), so the answer of the bisection is probed further down: eight grid
// points must fail in a row before it counts.
std::optional<Bytes> find_min_capacity(const CapacitySearch& search,
                                       const std::function<bool(Bytes)>& completes);

}  // namespace nofrag
