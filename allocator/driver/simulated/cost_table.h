// CostTable: what each driver call costs, as a function of its size, in modelled microseconds.
//
// Owns: the points of one device file (sim/*.json). Layer: driver. Pure arithmetic: the same
// question always has the same answer, so that replays can be compared to the last digit.
// Units: Bytes of ONE handle or allocation; microseconds. Between points linear, before the first
// point its value, after the last the line through the last two. Calls that cover several mappings
// (set_access, unmap) pay call_overhead_us once and the rest of each mapping's cost.
// Invariants: points ascend strictly by bytes (the loader refuses others).
// Threads: immutable after loading. Cost: O(log points).
#pragma once

#include <array>
#include <vector>

#include "driver/driver.h"

namespace nofrag {

struct CostPoint {
  Bytes bytes;
  double microseconds = 0;
};

struct CallCost {
  std::vector<CostPoint> points;  // one point = a constant; none = free of charge
  double call_overhead_us = 0;    // saved by every mapping after the first of one call
  double failure_us = 0;          // a refused call; 0 = what the call would have cost
  double peer_mapping_us = 0;     // set_access for a device that does not own the memory, a mapping

  [[nodiscard]] double microseconds(Bytes size) const;
  // Of one more mapping of `size` in a call that already has one.
  [[nodiscard]] double further_mapping(Bytes size) const;
};

class CostTable {
 public:
  [[nodiscard]] const CallCost& operator[](DriverCall call) const {
    return costs_[static_cast<std::size_t>(call)];
  }
  CallCost& operator[](DriverCall call) { return costs_[static_cast<std::size_t>(call)]; }

 private:
  std::array<CallCost, kDriverCallCount> costs_;
};

}  // namespace nofrag
