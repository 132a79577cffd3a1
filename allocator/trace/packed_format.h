// The packed nofrag trace format: reader and writer.
//
// Owns: nothing. Layer: trace. Format: include/nofrag/trace_format.h, docs/trace-format.md.
// The reader trusts nothing: every header carries its CRC, every payload its checksum, every number
// is bounded before it is used, and the events pass TraceBuilder like those of any format. A torn
// tail, a foreign file or a version newer than ours is refused with the byte offset and what was
// expected there. Threads: none. Failure: the reader returns an error and the trace stays
// untouched; the writer returns false when a sink does. Cost: one pass; a few million events a
// second to read.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "trace/byte_source.h"
#include "trace/trace.h"

namespace nofrag {

// Does this start like a packed trace?
bool looks_packed(std::string_view first_bytes);

// `path` is the name used in messages.
std::optional<TraceError> read_packed(ByteWindow& input, const std::string& path, Trace* trace);

struct PackedOptions {
  std::uint32_t events_per_block = 65536;
  int zstd_level = 19;
};

// Gives the file piece by piece to `sink`, which returns false to stop.
bool write_packed(const Trace& trace,
                  const PackedOptions& options,
                  const std::function<bool(std::string_view)>& sink);

}  // namespace nofrag
