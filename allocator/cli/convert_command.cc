#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli/commands.h"
#include "cli/output_file.h"
#include "trace/csv_format.h"
#include "trace/exporters/exporter.h"
#include "trace/packed_format.h"

namespace nofrag {
namespace {

constexpr std::size_t kEventsAtOnce = std::size_t{1} << 14;

// What is there already is overwritten only if it was asked for, and if it can be replaced.
void check_output(const ConvertArguments& arguments) {
  const std::string& path = arguments.output;
  std::error_code ignored;
  if (path == "-" || !std::filesystem::exists(path, ignored)) {
    return;
  }
  if (std::filesystem::is_directory(path, ignored)) {
    throw UsageError(path + ": is a directory; name a file in it");
  }
  if (!arguments.force) {
    throw UsageError(path + ": exists already; --force overwrites it");
  }
  if (!std::filesystem::is_regular_file(path, ignored)) {
    throw UsageError(path + ": is not a regular file; use - for standard output");
  }
}

bool write_csv(const Trace& trace, OutputFile& output) {
  std::string text(kCsvHeader);
  text += '\n';
  for (std::size_t first = 0; first < trace.events.size(); first += kEventsAtOnce) {
    append_csv(trace, first, std::min(trace.events.size(), first + kEventsAtOnce), &text);
    if (!output.write(text)) {
      return false;
    }
    text.clear();
  }
  return true;
}

// The formats that hold one device's events only.
const Trace& the_one(const std::vector<Trace>& traces, const ConvertArguments& arguments) {
  if (traces.size() == 1) {
    return traces.front();
  }
  std::string devices;
  for (const Trace& trace : traces) {
    devices += (devices.empty() ? "" : ", ") + std::to_string(trace.device);
  }
  throw UsageError(arguments.input + ": has events of the devices " + devices + "; --to " +
                   arguments.to + " holds one: choose it with --trace-device");
}

bool write_traces(const std::vector<Trace>& traces,
                  TraceFormat to,
                  const ConvertArguments& arguments,
                  OutputFile& output) {
  const ExportSink sink = [&](std::string_view bytes) { return output.write(bytes); };
  switch (to) {
    case TraceFormat::kTorch:
      return export_torch_snapshot(traces, sink);
    case TraceFormat::kPerfetto:
      return export_perfetto(traces, sink);
    case TraceFormat::kMinimalloc:
      if (!times_order_events(the_one(traces, arguments))) {
        say("note: times do not order the events: their numbers stand for them");
      }
      return export_minimalloc(the_one(traces, arguments), sink);
    case TraceFormat::kCsv:
      return write_csv(the_one(traces, arguments), output);
    default:
      return write_packed(the_one(traces, arguments), {}, sink);
  }
}

}  // namespace

ExitCode run_convert(const ConvertArguments& arguments) {
  const TraceFormat to = parse_output_format(arguments.to);
  const TraceFormat from = parse_input_format(arguments.format);
  refuse_overwriting({arguments.input}, {{"OUT", arguments.output, OutputKind::kTrace}});
  check_output(arguments);
  const std::vector<Trace> traces = load_or_throw(arguments.input, from, arguments.trace_device);
  const bool pack = arguments.output.ends_with(".gz");
  OutputFile output(arguments.output,
                    pack ? OutputFile::Packing::kGzip : OutputFile::Packing::kNone);
  if (!write_traces(traces, to, arguments, output)) {
    throw RunError(arguments.output + ": could not be written (" + std::strerror(errno) + ")");
  }
  output.finish();
  return ExitCode::kOk;
}

}  // namespace nofrag
