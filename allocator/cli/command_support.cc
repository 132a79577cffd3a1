#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>

#include <fmt/format.h>

#include "base/nearest_name.h"
#include "cli/commands.h"
#include "config/parser.h"
#include "runtime/environment.h"
#include "trace/load_trace.h"

namespace nofrag {
namespace {

TraceFormat parse_trace_format(std::string_view what,
                               std::string_view text,
                               std::initializer_list<TraceFormat> accepted) {
  std::vector<std::string_view> known;
  for (const TraceFormat format : accepted) {
    if (text == to_string(format)) {
      return format;
    }
    known.push_back(to_string(format));
  }
  throw UsageError(fmt::format("{}: {}", what, unknown_name("trace format", text, known)));
}

}  // namespace

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

TraceFormat parse_input_format(std::string_view text) {
  return parse_trace_format(
      "--format", text, {TraceFormat::kAuto, TraceFormat::kCsv, TraceFormat::kNofrag});
}

TraceFormat parse_output_format(std::string_view text) {
  return parse_trace_format("--to", text, {TraceFormat::kCsv, TraceFormat::kNofrag});
}

GivenOptions nofrag_options(const std::string& conf) {
  GivenOptions given;
  const std::pair<const char*, std::string> sources[] = {
      {"NOFRAG_CONF", environment("NOFRAG_CONF")}, {"--conf", conf}};
  for (const auto& [source, text] : sources) {
    std::vector<std::string> problems;
    OptionSet set;
    if (!parse_options(text, &given.options, &problems, &set)) {
      throw UsageError(fmt::format("{}: {}", source, fmt::join(problems, "; ")));
    }
    if (set[static_cast<std::size_t>(OptionId::k_driver)]) {
      given.driver_source = source;
    }
  }
  return given;
}

DeviceTarget choose_device(const std::optional<std::string>& device, const GivenOptions& given) {
  if (device) {
    return DeviceTarget::parse(*device);
  }
  if (!given.driver_source.empty()) {
    return DeviceTarget::of_driver(given.options.driver, given.driver_source);
  }
  return DeviceTarget::parse(kDefaultDevice);
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
