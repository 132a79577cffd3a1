#include "trace/load_traces.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <nofrag/trace_format.h>

#include "trace/byte_source.h"
#include "trace/csv_format.h"
#include "trace/importers/importer.h"
#include "trace/packed_format.h"
#include "trace/record/split_devices.h"
#include "trace/symbols/call_sites.h"

namespace nofrag {
namespace {

constexpr std::size_t kWindow = std::size_t{1} << 20;
constexpr std::size_t kSmallWindow = std::size_t{1} << 12;
constexpr std::size_t kLookedAt = std::size_t{1} << 16;

constexpr const char* kKnown =
    "a nofrag trace, csv (time_us,op,id,size,stream), a PyTorch snapshot, a torch.profiler trace "
    "or memory "
    "timeline, an RMM log, an Nsight Systems SQLite export, an Umpire replay log or a MiniMalloc "
    "instance";

// `word` as one of the comma-separated words of `line`.
bool has_column(std::string_view line, std::string_view word) {
  while (true) {
    const std::size_t end = line.find(',');
    if (line.substr(0, end) == word) {
      return true;
    }
    if (end == std::string_view::npos) {
      return false;
    }
    line.remove_prefix(end + 1);
  }
}

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

TraceFormat recognise_text(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  std::string_view line = text.substr(0, text.find('\n'));
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  if (line == kCsvHeader) {
    return TraceFormat::kCsv;
  }
  if (line.starts_with("Thread,Time,Action,Pointer")) {
    return TraceFormat::kRmm;
  }
  if (has_column(line, "size") &&
      (has_column(line, "lower") || has_column(line, "start") || has_column(line, "begin")) &&
      (has_column(line, "upper") || has_column(line, "end"))) {
    return TraceFormat::kMinimalloc;
  }
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos) {
    return TraceFormat::kAuto;
  }
  text.remove_prefix(start);
  if (text[0] == '{') {
    line = text.substr(0, text.find('\n'));
    const bool umpire =
        holds(line, "\"kind\"") && holds(line, "\"event\"") && holds(line, "\"payload\"");
    const bool new_umpire = holds(line, "\"category\"") && holds(line, "\"timestamp\"") &&
                            holds(line, "\"tags\"") && !holds(line, "traceEvents");
    return umpire || new_umpire ? TraceFormat::kUmpire : TraceFormat::kKineto;
  }
  if (text[0] == '[') {
    const std::size_t next = text.find_first_not_of(" \t\r\n", 1);
    return next != std::string_view::npos && text[next] == '{' ? TraceFormat::kKineto
                                                               : TraceFormat::kTimeline;
  }
  return TraceFormat::kAuto;
}

TraceError mismatch(const std::string& name, TraceFormat asked, TraceFormat is) {
  TraceError error;
  error.path = name;
  error.offset = 0;
  error.found = "a file of the format " + std::string(to_string(is));
  error.expected = std::string(to_string(asked)) + ", as --format says";
  return error;
}

std::optional<TraceError> read_own(ByteWindow& input,
                                   const std::string& name,
                                   TraceFormat format,
                                   std::vector<Trace>* traces) {
  Trace trace;
  std::optional<TraceError> error = format == TraceFormat::kNofrag
                                        ? read_packed(input, name, &trace)
                                        : read_csv(input, name, &trace);
  if (!error) {
    *traces = split_by_device(std::move(trace));
    name_call_sites(traces);
  }
  return error;
}

std::optional<TraceError> read_as(ByteWindow& input,
                                  const std::string& name,
                                  TraceFormat format,
                                  std::vector<Trace>* traces) {
  switch (format) {
    case TraceFormat::kTorch:
      return import_torch_snapshot(input, name, traces);
    case TraceFormat::kKineto:
      return import_kineto(input, name, traces);
    case TraceFormat::kTimeline:
      return import_torch_timeline(input, name, traces);
    case TraceFormat::kRmm:
      return import_rmm(input, name, traces);
    case TraceFormat::kNsys:
      return import_nsys(input, name, traces);
    case TraceFormat::kUmpire:
      return import_umpire(input, name, traces);
    case TraceFormat::kMinimalloc:
      return import_minimalloc(input, name, traces);
    default:
      return read_own(input, name, format, traces);
  }
}

std::optional<TraceError> load(std::unique_ptr<ByteSource> source,
                               std::size_t window,
                               const std::string& path,
                               TraceFormat asked,
                               std::vector<Trace>* traces) {
  const std::string name = path == "-" ? "(standard input)" : path;
  ByteWindow input(unpack_if_gzip(std::move(source), name, window), window);
  const std::string_view first = input.fill(std::min(window, kLookedAt));
  const TraceFormat is = recognise_trace(first);
  if (asked != TraceFormat::kAuto) {
    // What is not recognised may be a damaged file of the kind that was asked for; its reader says where.
    return is == TraceFormat::kAuto || is == asked ? read_as(input, name, asked, traces)
                                                   : mismatch(name, asked, is);
  }
  if (is != TraceFormat::kAuto) {
    return read_as(input, name, is, traces);
  }
  if (input.source_error()) {
    return input.source_error();
  }
  const bool binary = first.substr(0, 512).find('\0') != std::string_view::npos;
  const std::string found =
      first.empty() ? "an empty file" : quoted_for_message(first.substr(0, first.find('\n')));
  const std::string header = binary ? "" : csv_header_problem(first.substr(0, first.find('\n')));
  return binary ? error_at_byte(name, 0, found, kKnown)
                : error_at_line(name, 1, found, header.empty() ? kKnown : header);
}

}  // namespace

TraceFormat recognise_trace(std::string_view first_bytes) {
  if (looks_packed(first_bytes.substr(0, NOFRAG_TRACE_MAGIC_BYTES))) {
    return TraceFormat::kNofrag;
  }
  if (first_bytes.starts_with("SQLite format 3")) {
    return TraceFormat::kNsys;
  }
  if (first_bytes.size() > 1 && first_bytes[0] == '\x80' && first_bytes[1] >= 2 &&
      first_bytes[1] <= 5) {
    return TraceFormat::kTorch;
  }
  return recognise_text(first_bytes);
}

std::optional<TraceError> load_traces(const std::string& path,
                                      TraceFormat format,
                                      std::vector<Trace>* traces) {
  return load(open_file_source(path), kWindow, path, format, traces);
}

std::optional<TraceError> load_traces_from_memory(std::string_view bytes,
                                                  const std::string& name,
                                                  TraceFormat format,
                                                  std::vector<Trace>* traces) {
  const std::size_t window = std::clamp(bytes.size(), kSmallWindow, kWindow);
  return load(open_memory_source(bytes), window, name, format, traces);
}

}  // namespace nofrag
