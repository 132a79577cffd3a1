// Captures: which streams are being captured into a graph, as far as calls told us.
//
// Owns: the list of streams whose capture was begun and not ended (observe_hooks.cc). Layer: preload.
// While anything is captured: what is allocated comes from the driver (a graph keeps its addresses), what is
// freed is kept aside, and nothing waits, which a capture would not survive. Threads: any.
// Failure: a capture that nobody ended is found to be over when the driver is asked. Cost: one load while
// nothing is captured.
#pragma once

#include "driver/real/driver_api.h"

namespace nofrag::preload {

[[nodiscard]] bool any_capture();
// The device's primary context ends, and with it what was captured on its streams.
void forget_captures(int device);
// Of the context that a captured stream belongs to; -1: not one of ours, or its capture was not seen to begin.
[[nodiscard]] int capture_device(CUstream stream);
// Of one stream. A stream that cannot be asked counts as captured: the driver knows better than we.
[[nodiscard]] bool is_capturing(CUstream stream);

}  // namespace nofrag::preload
