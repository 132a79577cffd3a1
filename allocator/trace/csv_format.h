// The csv trace format: one event a line, `time_us,op,id,size,stream`.
//
// Layer: trace. Format: docs/trace-format.md. Lines end in LF or CRLF; a byte order mark is
// tolerated; numbers are plain decimal. Everything that contradicts itself is refused with its
// line. Threads: none. Failure: the reader returns an error and the trace stays untouched.
// Cost: one pass, no copy of the text; several million events a second.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "trace/byte_source.h"
#include "trace/trace.h"

namespace nofrag {

inline constexpr std::string_view kCsvHeader = "time_us,op,id,size,stream";

// `path` is the name used in messages.
std::optional<TraceError> read_csv(ByteWindow& input, const std::string& path, Trace* trace);

// What a first line lacks that was meant for the header: "the header '...': there is no column 'size' (the nearest is
// 'bytes')". Empty: it is the header of something else.
std::string csv_header_problem(std::string_view line);

// Lines for events [first, last), without the header; appended to `text`.
void append_csv(const Trace& trace, std::size_t first, std::size_t last, std::string* text);

}  // namespace nofrag
