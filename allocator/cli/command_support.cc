#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "base/nearest_name.h"
#include "cli/commands.h"
#include "config/parser.h"
#include "runtime/environment.h"
#include "trace/load_trace.h"

namespace nofrag {

std::string unknown_name(std::string_view what,
                         std::string_view name,
                         const std::vector<std::string_view>& known) {
  std::string text = fmt::format("unknown {} '{}'", what, name);
  const std::string_view nearest = nearest_name(name, known);
  if (!nearest.empty()) {
    text += fmt::format("; did you mean '{}'?", nearest);
  }
  return text + fmt::format(" (known: {})", fmt::join(known, ", "));
}

TraceFormat parse_trace_format(std::string_view text, std::string_view what) {
  for (const TraceFormat format : {TraceFormat::kAuto, TraceFormat::kCsv, TraceFormat::kNofrag}) {
    if (text == to_string(format)) {
      return format;
    }
  }
  throw UsageError(
      fmt::format("{}: {}", what, unknown_name("trace format", text, {"auto", "csv", "nofrag"})));
}

Options nofrag_options(const std::string& conf) {
  Options options;
  const std::pair<const char*, std::string> sources[] = {
      {"NOFRAG_CONF", environment("NOFRAG_CONF")}, {"--conf", conf}};
  for (const auto& [source, text] : sources) {
    std::vector<std::string> problems;
    if (!parse_options(text, &options, &problems)) {
      throw UsageError(fmt::format("{}: {}", source, fmt::join(problems, "; ")));
    }
  }
  return options;
}

Trace load_or_throw(const std::string& path, TraceFormat format) {
  Trace trace;
  if (const std::optional<TraceError> error = load_trace(path, format, &trace)) {
    throw InputError(error->message());
  }
  return trace;
}

void write_output(const std::string& path, std::string_view text) {
  if (path == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
        std::fflush(stdout) != 0) {
      throw RunError("standard output cannot be written");
    }
    return;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"),
                                                             &std::fclose);
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    throw UsageError(path + ": cannot be written (" + std::strerror(errno) + ")");
  }
}

}  // namespace nofrag
