// Ended: blocks of cuMemAllocAsync that were live when their context ended.
//
// The driver's own belong to the device's pool: they outlive the context, and each is freed once after it. Ours end
// with the context, and their addresses are kept from everyone (Process::Addresses::kKept), so that a late free
// cannot mean another block; here is remembered which of them may still be freed.
// Owns: the set of their addresses, for good; no more than were live, less with every free. Layer: preload.
// Threads: any, a lock of its own, taken last. Failure: none. Cost: one load while the set is empty.
// Fork: not to be asked in a child, where another thread may have held the lock.
#pragma once

#include "driver/real/driver_api.h"

namespace nofrag::preload {

// The device's blocks are about to go: remembers those of cuMemAllocAsync (OwnBlock::async in memory.h) that the
// program has not freed. Were there any? pre: the gate is held alone; the courier is there, and what is kept aside.
[[nodiscard]] bool note_ended(int device);
// One that was not freed yet.
[[nodiscard]] bool is_ended(CUdeviceptr pointer);
// Frees it; false for any other pointer, and for all but the first of those who free the same one.
[[nodiscard]] bool free_ended(CUdeviceptr pointer);

}  // namespace nofrag::preload
