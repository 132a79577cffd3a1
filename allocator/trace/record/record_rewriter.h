// write_recording: a recording that was read, as a file again: what `nofrag convert` writes of one.
//
// Owns: nothing. Layer: trace. Units: ticks become nanoseconds of the trace's clock.
// Invariants: read again it gives the same events, blocks, notes, marks, threads and sites.
// Threads: none. Failure: false when the sink says so. Cost: one pass.
#pragma once

#include <functional>
#include <string_view>

#include "trace/trace.h"

namespace nofrag {

// pre: trace.recording is there.
bool write_recording(const Trace& trace, const std::function<bool(std::string_view)>& sink);

}  // namespace nofrag
