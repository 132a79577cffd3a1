// Exporters: a trace in other tools' formats.
//
// Owns: nothing. Layer: trace. Each gives the file piece by piece to `sink`, which returns false to stop.
// What a format cannot carry is in docs/trace-format.md; nothing is left out that is not said there. Units:
// as in trace.h. Threads: none. Failure: false when a sink says so. Cost: one pass; the torch snapshot also
// places every block (O(log live blocks) an event).
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "trace/trace.h"

namespace nofrag {

using ExportSink = std::function<bool(std::string_view)>;
// A sink gets pieces of about this many bytes.
inline constexpr std::size_t kExportPiece = std::size_t{1} << 20;

// What torch.cuda.memory._dump_snapshot writes, for PyTorch's memory_viz and the tools around it. All devices.
// Addresses are made up (a best fit in one segment a device); ids are not carried.
bool export_torch_snapshot(const std::vector<Trace>& traces, const ExportSink& sink);

// Chrome's trace format, as Perfetto reads it: counters of live bytes and blocks, and what marks there are.
bool export_perfetto(const std::vector<Trace>& traces, const ExportSink& sink);

// Do the times of this trace order its events as MiniMalloc's lifetimes do? Else their numbers are used.
bool times_order_events(const Trace& trace);
// A buffer a line. No streams; what is never freed ends after the last event.
bool export_minimalloc(const Trace& trace, const ExportSink& sink);

}  // namespace nofrag
