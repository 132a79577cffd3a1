// load_trace: any supported file to a Trace.
//
// Layer: trace. The format is told by content, not by name: gzip is unpacked, the packed format is
// known by its first bytes, everything else must be csv. A format that is asked for by name must be
// what the file holds. Threads: none. Failure: the error, with path and place; *trace is untouched.
// Cost: one pass over the file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "trace/trace.h"

namespace nofrag {

// "-" reads standard input.
std::optional<TraceError> load_trace(const std::string& path, TraceFormat format, Trace* trace);

// The same from bytes; `name` stands in messages.
std::optional<TraceError> load_trace_from_memory(std::string_view bytes,
                                                 const std::string& name,
                                                 TraceFormat format,
                                                 Trace* trace);

}  // namespace nofrag
