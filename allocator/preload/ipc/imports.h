// Imports: blocks of other preloaded processes that are mapped here.
//
// Owns: the list of what cuIpcOpenMemHandle mapped, for each device, and its mappings (import_hooks.cc). Layer: preload.
// Invariants: an import is in the list from its first opening until its last closing has unmapped it, or until its
// context ends; what has left the list and could not be unmapped yet is nobody's, and is tried again.
// Threads: any. Opening and closing hold the gate shared (devices.h), also while they wait for the device, so no
// context ends in the middle of one; the list has a lock of its own, taken after the gate and never held while
// waiting for the device. Failure: CUresults; pointers that are in no import are the driver's to answer for.
// Cost of imported_range: one load while nothing is imported.
#pragma once

#include <cstdint>

#include "driver/real/driver_api.h"

namespace nofrag::preload {

struct ImportedRange {
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
  int device = -1;  // which it was opened for: it has access
};
// The imported block that holds `pointer`; size 0: none does.
[[nodiscard]] ImportedRange imported_range(CUdeviceptr pointer);

// Another GPU may use what was and will be imported for `device`, and one imported block: as plain memory it would be
// everybody's. False: there is no such block, or the driver refuses. pre: the gate is held.
void share_imports(int device, int user);
bool share_import(CUdeviceptr pointer, int user);

// The device's primary context is about to end, and its imports with it, however often they were opened: unmapped
// when its work is done. What cannot be waited for or unmapped is gone for the program, and left for
// unmap_ended_imports. pre: the gate is held alone.
void forget_imports(int device);
// The context has ended, and its work with it. pre: as above.
void unmap_ended_imports(int device);

}  // namespace nofrag::preload
