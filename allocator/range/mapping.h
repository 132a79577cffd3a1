// Transactional mapping: handles become reachable all together or not at all.
//
// Owns: nothing. Layer: range. Units: addresses and sizes in whole granules.
// Threads: none (the device lock). Failure: map_handles undoes exactly what it did. If the driver
// refuses even the undo, the handles that stay mapped are reported in `stuck` (counted from the
// first): their addresses must never be used again and their memory cannot be given back.
// Cost: one map a handle and one set_access over all; unmap_handle one call.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "base/units.h"
#include "driver/driver.h"
#include "physical/physical_memory.h"

namespace nofrag {

struct MapOutcome {
  Status status;
  std::size_t stuck = 0;
};

// Maps `handles` one after the other from `address` on and lets `device` and its `peers` read and write them.
MapOutcome map_handles(Driver& driver,
                       DeviceOrdinal device,
                       VirtAddr address,
                       std::span<const PhysicalHandle> handles,
                       std::span<const DeviceOrdinal> peers = {});

}  // namespace nofrag
