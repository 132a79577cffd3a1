// load_traces: any file that holds allocations and frees, as a trace a device.
//
// Layer: trace. The format is told by content, not by name, gzip data is unpacked; a format that is asked for
// by name must be what the file holds. load_trace.h reads our own two formats; this reads those and every
// foreign one (importers/). Threads: none. Failure: the error, with path and place; *traces is untouched.
// Cost: one pass over the file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trace/trace.h"

namespace nofrag {

// "-" reads standard input. At least one trace, in the order of their devices.
std::optional<TraceError> load_traces(const std::string& path,
                                      TraceFormat format,
                                      std::vector<Trace>* traces);

// The same from bytes; `name` stands in messages.
std::optional<TraceError> load_traces_from_memory(std::string_view bytes,
                                                  const std::string& name,
                                                  TraceFormat format,
                                                  std::vector<Trace>* traces);

// What these first bytes of a file (unpacked) are the beginning of; kAuto if nothing that is known.
TraceFormat recognise_trace(std::string_view first_bytes);

}  // namespace nofrag
