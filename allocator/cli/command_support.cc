#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "base/nearest_name.h"
#include "cli/commands.h"
#include "cli/output_file.h"
#include "cli/printable.h"
#include "config/human_bytes.h"
#include "config/parser.h"
#include "runtime/environment.h"
#include "trace/load_traces.h"

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

// What plain driver allocations are made in at least.
constexpr Bytes kLeastPlain{512};

// In millionths of the device, rounded up.
double least_fraction(Bytes total, Bytes least) {
  constexpr double kParts = 1e6;
  const double exact = static_cast<double>(least.count()) / static_cast<double>(total.count());
  return std::min(1.0, std::ceil(exact * kParts) / kParts);
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
  if (text == "torch-snapshot") {
    return TraceFormat::kTorch;  // as --to calls it
  }
  return parse_trace_format("--format",
                            text,
                            {TraceFormat::kAuto,
                             TraceFormat::kNofrag,
                             TraceFormat::kCsv,
                             TraceFormat::kTorch,
                             TraceFormat::kKineto,
                             TraceFormat::kTimeline,
                             TraceFormat::kRmm,
                             TraceFormat::kNsys,
                             TraceFormat::kUmpire,
                             TraceFormat::kMinimalloc});
}

TraceFormat parse_output_format(std::string_view text) {
  const std::pair<std::string_view, TraceFormat> known[] = {
      {"nofrag", TraceFormat::kNofrag},
      {"csv", TraceFormat::kCsv},
      {"torch-snapshot", TraceFormat::kTorch},
      {"perfetto", TraceFormat::kPerfetto},
      {"minimalloc", TraceFormat::kMinimalloc},
  };
  std::vector<std::string_view> names;
  for (const auto& [name, format] : known) {
    if (text == name) {
      return format;
    }
    names.push_back(name);
  }
  throw UsageError(fmt::format("--to: {}", unknown_name("trace format", text, names)));
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
    if (set[static_cast<std::size_t>(OptionId::k_limit)]) {
      given.limit_source = source;
    }
    if (set[static_cast<std::size_t>(OptionId::k_memory_fraction)]) {
      given.fraction_source = source;
    }
    given.sources.push_back({source, set});
  }
  return given;
}

void confirm_options(const GivenOptions& given) {
  if (given.options.confirm_conf) {
    print_to_stderr("nofrag: options in use\n" + dump_options(given.options, given.sources));
  }
}

std::string limit_warning(const Options& options, const DeviceInfo& device) {
  const Bytes total = device.total_memory;
  const bool virtual_memory = device.virtual_memory && options.backend != Backend::kPlain;
  const Bytes least = virtual_memory ? device.granularity : kLeastPlain;
  std::string warning;
  if (options.limit < least) {
    warning = fmt::format(
        "limit:{} is less than the {} that nofrag takes at least; write limit:{} or more, "
        "or leave it out",
        format_bytes(options.limit),
        human_bytes(least),
        format_bytes(least));
  }
  const auto share = Bytes(
      static_cast<std::uint64_t>(static_cast<double>(total.count()) * options.memory_fraction));
  if (options.memory_fraction < 1.0 && share < least) {
    warning += fmt::format(
        "{}memory_fraction:{} of this device is {}, less than the {} that nofrag takes at "
        "least; write memory_fraction:{} or more, or leave it out",
        warning.empty() ? "" : "; ",
        format_number(options.memory_fraction),
        human_bytes(share),
        human_bytes(least),
        format_number(least_fraction(total, least)));
  }
  return warning;
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

void check_conf(std::string_view source, const std::string& conf) {
  Options options;
  std::vector<std::string> problems;
  if (!parse_options(conf, &options, &problems)) {
    throw UsageError(fmt::format("{}: {}", source, fmt::join(problems, "; ")));
  }
}

std::vector<Trace> only_device(std::vector<Trace> traces,
                               std::optional<std::uint64_t> device,
                               const std::string& path) {
  if (!device) {
    return traces;
  }
  std::vector<std::string> known;
  std::vector<Trace> chosen;
  for (Trace& trace : traces) {
    known.push_back(std::to_string(trace.device));
    if (trace.device == *device) {
      chosen.push_back(std::move(trace));
    }
  }
  if (chosen.empty()) {
    throw UsageError(fmt::format("--trace-device {}: {} has events of {} {}",
                                 *device,
                                 path,
                                 known.size() == 1 ? "device" : "the devices",
                                 fmt::join(known, ", ")));
  }
  return chosen;
}

void print_warnings(const std::vector<Trace>& traces, const std::string& path) {
  for (const Trace& trace : traces) {
    for (const std::string& note : trace.warnings) {
      say(fmt::format("note: {}: {}", describe_trace(path, trace, traces.size()), note));
    }
  }
}

std::vector<Trace> load_or_throw(const std::string& path,
                                 TraceFormat format,
                                 std::optional<std::uint64_t> device) {
  std::vector<Trace> traces;
  if (const std::optional<TraceError> error = load_traces(path, format, &traces)) {
    throw InputError(error->message());
  }
  traces = only_device(std::move(traces), device, path);
  // Of a device whose first request failed there is nothing to play.
  std::erase_if(traces, [](const Trace& trace) { return trace.events.empty(); });
  if (traces.empty()) {
    throw InputError(path +
                     ": no allocation succeeded in this recording, so there is nothing to play; "
                     "nofrag explain says why the first failed");
  }
  print_warnings(traces, path);
  return traces;
}

std::string describe_trace(const std::string& path, const Trace& trace, std::size_t traces) {
  if (traces == 1) {
    return path;
  }
  return trace.device_name.empty() ? fmt::format("{}, device {}", path, trace.device)
                                   : fmt::format("{}, {}", path, trace.device_name);
}

void write_output(const std::string& path, std::string_view text) {
  OutputFile output(path);
  if (!output.write(text)) {
    const std::string what = path == "-" ? "standard output" : path;
    throw RunError(what + ": could not be written (" + std::strerror(errno) + ")");
  }
  output.finish();
}

void say(std::string_view message) {
  print_to_stderr(fmt::format("nofrag: {}\n", printable(message)));
}

void print_to_stderr(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace nofrag
