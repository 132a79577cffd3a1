#include "trace/load_trace.h"

#include <memory>
#include <utility>

#include <nofrag/trace_format.h>

#include "trace/byte_source.h"
#include "trace/csv_format.h"
#include "trace/packed_format.h"

namespace nofrag {
namespace {

std::optional<TraceError> load(std::unique_ptr<ByteSource> source,
                               const std::string& path,
                               TraceFormat format,
                               Trace* trace) {
  const std::string name = path == "-" ? "(standard input)" : path;
  ByteWindow input(unpack_if_gzip(std::move(source), name));
  const bool packed = looks_packed(input.fill(NOFRAG_TRACE_MAGIC_BYTES));
  if (format == TraceFormat::kCsv && packed) {
    TraceError error;
    error.path = name;
    error.line = 1;
    error.found = "a packed nofrag trace";
    error.expected = "csv, as --format says";
    return error;
  }
  if (packed || format == TraceFormat::kNofrag) {
    return read_packed(input, name, trace);
  }
  return read_csv(input, name, trace);
}

}  // namespace

std::optional<TraceError> load_trace(const std::string& path, TraceFormat format, Trace* trace) {
  return load(open_file_source(path), path, format, trace);
}

std::optional<TraceError> load_trace_from_memory(std::string_view bytes,
                                                 const std::string& name,
                                                 TraceFormat format,
                                                 Trace* trace) {
  return load(open_memory_source(bytes), name, format, trace);
}

}  // namespace nofrag
