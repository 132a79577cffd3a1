#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "cli/commands.h"
#include "trace/csv_format.h"
#include "trace/exporters/exporter.h"
#include "trace/packed_format.h"

namespace nofrag {
namespace {

constexpr std::size_t kEventsAtOnce = std::size_t{1} << 14;

// A file that appears under its name only when it is whole.
class OutputFile {
 public:
  OutputFile(const std::string& path, bool force) : path_(path) {
    if (path_ == "-") {
      file_ = stdout;
      return;
    }
    std::error_code ignored;
    if (std::filesystem::exists(path_, ignored)) {
      if (!force) {
        throw UsageError(path_ + ": exists already; --force overwrites it");
      }
      // Renaming onto a device would replace its node, and onto a link the link.
      path_ = std::filesystem::canonical(path_, ignored).string();
      if (!std::filesystem::is_regular_file(path_, ignored)) {
        throw UsageError(path + ": is not a regular file; use - for standard output");
      }
    }
    temporary_ = path_ + ".partial";
    if (path.ends_with(".gz")) {
      packed_ = gzopen(temporary_.c_str(), "wb");
    } else {
      file_ = std::fopen(temporary_.c_str(), "wb");
    }
    if (file_ == nullptr && packed_ == nullptr) {
      throw UsageError(temporary_ + ": cannot be written (" + std::strerror(errno) + ")");
    }
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    if (packed_ != nullptr) {
      gzclose(packed_);
      std::remove(temporary_.c_str());
    } else if (file_ != nullptr && file_ != stdout) {
      std::fclose(file_);
      std::remove(temporary_.c_str());
    }
  }

  [[nodiscard]] bool write(std::string_view bytes) {
    if (packed_ != nullptr) {
      return gzfwrite(bytes.data(), 1, bytes.size(), packed_) == bytes.size();
    }
    return std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size();
  }

  void finish() {
    bool written = false;
    if (packed_ != nullptr) {
      written = gzclose(std::exchange(packed_, nullptr)) == Z_OK;
    } else {
      written = std::fflush(file_) == 0;
      written = (file_ == stdout || std::fclose(std::exchange(file_, nullptr)) == 0) && written;
    }
    if (file_ != stdout) {
      written = written && std::rename(temporary_.c_str(), path_.c_str()) == 0;
      if (!written) {
        std::remove(temporary_.c_str());
      }
    }
    if (!written) {
      throw RunError(path_ + ": could not be written (" + std::strerror(errno) + ")");
    }
  }

 private:
  std::string path_;
  std::string temporary_;
  std::FILE* file_ = nullptr;
  gzFile packed_ = nullptr;  // instead of file_
};

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
        std::fprintf(stderr, "nofrag: note: times do not order the events: their numbers stand for them\n");
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
  const std::vector<Trace> traces = load_or_throw(arguments.input, from, arguments.trace_device);
  OutputFile output(arguments.output, arguments.force);
  if (!write_traces(traces, to, arguments, output)) {
    throw RunError(arguments.output + ": could not be written (" + std::strerror(errno) + ")");
  }
  output.finish();
  return ExitCode::kOk;
}

}  // namespace nofrag
