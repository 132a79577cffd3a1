// The commands of the program `nofrag`, callable without a process of their own.
//
// Layer: cli. run_cli parses the arguments and runs one command; output goes where the command
// line says. Threads: none. Failure: every error ends as one line on stderr and an exit code
// (errors.h); no exception leaves run_cli. Cost: the command's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/device_target.h"
#include "cli/errors.h"
#include "config/options.h"
#include "trace/trace.h"

namespace nofrag {

int run_cli(int argc, const char* const* argv);

inline constexpr std::string_view kDefaultDevice = "sim:h100-80g";

struct ReplayArguments {
  std::vector<std::string> traces;
  std::string allocators = "nofrag,torch-native,torch-expandable";
  std::optional<std::string> device;
  std::optional<std::string> capacity;
  bool min_capacity = false;
  std::string conf;
  std::string format = "auto";
  std::optional<std::uint64_t> trace_device;
  std::string json;
  double stream_lag_us = 500;
  bool quiet = false;
};
ExitCode run_replay(const ReplayArguments& arguments);

struct ConvertArguments {
  std::string input;
  std::string output;
  std::string to;
  std::string format = "auto";
  std::optional<std::uint64_t> trace_device;
  bool force = false;
};
ExitCode run_convert(const ConvertArguments& arguments);

struct RunArguments {
  std::vector<std::string> command;
  std::string conf;
  std::string trace;
  std::optional<int> metrics;
  std::string limit;
  bool summary = false;
};
// Does not return where the command could be started: it takes this program's place.
ExitCode run_run(const RunArguments& arguments);

struct DoctorArguments {
  std::optional<std::string> device;
  std::string json;
  std::string conf;
};
ExitCode run_doctor(const DoctorArguments& arguments);

struct ExplainArguments {
  std::string input = "-";
  std::string json;
  std::optional<std::string> capacity;
  std::string allocator = "torch-native";
  std::string conf;
  std::string format = "auto";
};
ExitCode run_explain(const ExplainArguments& arguments);

// Shared by the commands: the values of --format and --to.
TraceFormat parse_input_format(std::string_view text);
TraceFormat parse_output_format(std::string_view text);

struct GivenOptions {
  Options options;
  std::string driver_source;  // where `driver:` was given: "NOFRAG_CONF", "--conf" or nowhere
};
// The options of nofrag that the environment (NOFRAG_CONF) and, over it, `conf` (--conf) give.
GivenOptions nofrag_options(const std::string& conf);
// The device that --device names, else the one of `driver:`, else the simulated one.
DeviceTarget choose_device(const std::optional<std::string>& device, const GivenOptions& given);
// The traces of a file, one a device, or that of `device` alone. Throws InputError, or UsageError where the
// file has no such device. What the file lacks goes to stderr.
std::vector<Trace> load_or_throw(const std::string& path,
                                 TraceFormat format,
                                 std::optional<std::uint64_t> device);
// "t.pickle", or "t.pickle, device 1" where the file holds several.
std::string describe_trace(const std::string& path, const Trace& trace, std::size_t traces);
// Writes to a file, or to standard output for "-".
void write_output(const std::string& path, std::string_view text);
// "unknown WHAT 'name'; did you mean 'x'? Known: ..."
[[nodiscard]] std::string unknown_name(std::string_view what,
                                       std::string_view name,
                                       const std::vector<std::string_view>& known);

}  // namespace nofrag
