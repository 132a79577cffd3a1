#include "trace/load_trace.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <nofrag/trace_format.h>

#include "trace/byte_source.h"
#include "trace/csv_format.h"
#include "trace/packed_format.h"

namespace nofrag {
namespace {

constexpr std::size_t kWindow = std::size_t{1} << 20;
constexpr std::size_t kSmallWindow = std::size_t{1} << 12;

std::optional<TraceError> load(std::unique_ptr<ByteSource> source,
                               std::size_t window,
                               const std::string& path,
                               TraceFormat format,
                               Trace* trace) {
  const std::string name = path == "-" ? "(standard input)" : path;
  ByteWindow input(unpack_if_gzip(std::move(source), name, window), window);
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
  return load(open_file_source(path), kWindow, path, format, trace);
}

std::optional<TraceError> load_trace_from_memory(std::string_view bytes,
                                                 const std::string& name,
                                                 TraceFormat format,
                                                 Trace* trace) {
  const std::size_t window = std::clamp(bytes.size(), kSmallWindow, kWindow);
  return load(open_memory_source(bytes), window, name, format, trace);
}

}  // namespace nofrag
