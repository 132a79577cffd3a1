// Importers: one function a foreign format.
//
// Owns: nothing. Layer: trace. Each reads what `input` gives (gzip is unpacked already) and makes a trace a
// device; `name` stands in messages. A source that lacks what a trace needs is refused, or its traces carry
// notes that say what is missing (trace.h). Formats: docs/trace-format.md. Threads: none. Failure: the
// error, with a line, a byte or a row, what stands there and what was expected; *traces is untouched.
// Cost: one pass; those that must see the whole file (torch, nsys) hold it in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trace/byte_source.h"
#include "trace/importers/event_list.h"
#include "trace/trace.h"

namespace nofrag {

using ImportError = std::optional<TraceError>;

ImportError import_torch_snapshot(ByteWindow& input, const std::string& name, std::vector<Trace>* traces);
ImportError import_kineto(ByteWindow& input, const std::string& name, std::vector<Trace>* traces);
ImportError import_torch_timeline(ByteWindow& input, const std::string& name, std::vector<Trace>* traces);
ImportError import_rmm(ByteWindow& input, const std::string& name, std::vector<Trace>* traces);
ImportError import_nsys(ByteWindow& input, const std::string& name, std::vector<Trace>* traces);
ImportError import_umpire(ByteWindow& input, const std::string& name, std::vector<Trace>* traces);
ImportError import_minimalloc(ByteWindow& input, const std::string& name, std::vector<Trace>* traces);

// Everything that is left of the input.
ImportError read_all(ByteWindow& input, std::string* bytes);

// Errors of each kind of place.
TraceError error_at_line(const std::string& name, std::uint64_t line, std::string found, std::string expected);
TraceError error_at_byte(const std::string& name, std::uint64_t byte, std::string found, std::string expected);
TraceError error_at_row(const std::string& name, std::uint64_t row, std::string found, std::string expected);

// "1 event", "3 events".
std::string counted(std::uint64_t count, const char* one, const char* many);

// A whole number in decimal, or in hexadecimal with 0x.
std::optional<std::uint64_t> parse_unsigned(std::string_view text);

// A block that lives in [begin, end), for formats that list lifetimes. At equal times what ends ends first.
struct Lifetime {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // kNeverEnds: live at the end
  std::uint64_t size = 0;
  std::uint64_t id = 0;
  std::uint64_t place = 0;
};
inline constexpr std::uint64_t kNeverEnds = UINT64_MAX;
// Ids must be different. False with the problem where a trace cannot be made of them.
bool trace_of_lifetimes(std::vector<Lifetime> lifetimes,
                        TraceFormat format,
                        Trace* trace,
                        EventList::Problem* problem);

}  // namespace nofrag
