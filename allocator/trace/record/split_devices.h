// split_by_device: a recording of several devices as one trace a device, because each has an allocator of its own.
//
// Owns: nothing. Layer: trace. Units: as in trace.h. Invariants: every event, note and thread is in the trace of
// its device, in its order; times stay those of the whole recording; marks are in all.
// Threads: none. Failure: none; a trace that is no recording, or of one device, comes back as it is.
// Cost: a copy of the events.
#pragma once

#include <vector>

#include "trace/trace.h"

namespace nofrag {

// The devices in ascending order; at least one trace. Devices without an allocation have none.
std::vector<Trace> split_by_device(Trace trace);

}  // namespace nofrag
