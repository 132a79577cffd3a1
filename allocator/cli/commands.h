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
#include "config/option_table.h"
#include "config/options.h"
#include "trace/trace.h"

namespace nofrag {

int run_cli(int argc, const char* const* argv);

inline constexpr std::string_view kDefaultDevice = "sim:h100-80g";
inline constexpr std::string_view kDefaultAllocators = "nofrag,torch-native,torch-expandable";

struct ReplayArguments {
  std::vector<std::string> traces;
  std::optional<std::string>
      allocators;  // none: kDefaultAllocators, as far as the device can run them
  std::optional<std::string> device;
  std::optional<std::string> capacity;
  bool min_capacity = false;
  std::string conf;
  std::string format = "auto";
  std::optional<std::uint64_t> trace_device;
  std::string json;
  std::string html;     // also a page of it
  std::string compare;  // JSON of an earlier replay
  double speed = 0;     // 0: as fast as it goes
  double stream_lag_us = 500;
  bool quiet = false;
};
ExitCode run_replay(const ReplayArguments& arguments);
// Writes the page and no table. A run out of memory is what the page shows, and no failure.
ExitCode run_report(const ReplayArguments& arguments);

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
  std::optional<std::string> metrics;
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
  std::optional<std::uint64_t> trace_device;
};
ExitCode run_explain(const ExplainArguments& arguments);

struct TopArguments {
  bool once = false;
  bool json = false;
  double interval = 1;
};
ExitCode run_top(const TopArguments& arguments);

// Shared by the commands: the values of --format and --to.
TraceFormat parse_input_format(std::string_view text);
TraceFormat parse_output_format(std::string_view text);

struct GivenOptions {
  Options options;
  std::string driver_source;    // where `driver:` was given: "NOFRAG_CONF", "--conf" or nowhere
  std::string limit_source;     // the same of `limit:`
  std::string fraction_source;  // and of `memory_fraction:`
  std::vector<OptionSource> sources;

  [[nodiscard]] OptionSet set() const {
    OptionSet all;
    for (const OptionSource& source : sources) {
      all |= source.given;
    }
    return all;
  }
};
// The options of nofrag that the environment (NOFRAG_CONF) and, over it, `conf` (--conf) give.
GivenOptions nofrag_options(const std::string& conf);
// With confirm_conf:true every option and where it came from, on stderr; else nothing.
void confirm_options(const GivenOptions& given);
// Too low a limit lets nofrag start and then refuses every allocation: what is wrong and what to write instead; else
// empty.
std::string limit_warning(const Options& options, const DeviceInfo& device);
// The device that --device names, else the one of `driver:`, else the simulated one.
DeviceTarget choose_device(const std::optional<std::string>& device, const GivenOptions& given);
// Throws UsageError, in the name of `source`, where a text of options has a problem.
void check_conf(std::string_view source, const std::string& conf);
// Those of `device` alone, if one is asked for; UsageError where the file has no such device.
std::vector<Trace> only_device(std::vector<Trace> traces,
                               std::optional<std::uint64_t> device,
                               const std::string& path);
// What the file lacks, on stderr.
void print_warnings(const std::vector<Trace>& traces, const std::string& path);
// The traces of a file that have events, one a device, or that of `device` alone. Throws InputError, or UsageError
// where the file has no such device. What the file lacks goes to stderr.
std::vector<Trace> load_or_throw(const std::string& path,
                                 TraceFormat format,
                                 std::optional<std::uint64_t> device);
// "t.pickle", or "t.pickle, device 1" where the file holds several.
std::string describe_trace(const std::string& path, const Trace& trace, std::size_t traces);
// A file that a command writes, "-" for standard output, empty for none; and the option that named it.
enum class OutputKind : unsigned char { kJson, kPage, kTrace };
struct OutputPath {
  std::string option;
  std::string path;
  OutputKind kind = OutputKind::kJson;
};
// Throws UsageError where an output is one of the inputs ("-": standard input) or another output, or is there
// and of another kind.
void refuse_overwriting(const std::vector<std::string>& inputs,
                        const std::vector<OutputPath>& outputs);
// Writes to a file, as OutputFile does, or to standard output for "-".
void write_output(const std::string& path, std::string_view text);
// "nofrag: MESSAGE" on stderr, in one line whatever names are in it, and a text as it is. Where stderr cannot be
// written nobody reads it, and neither what the command does nor its exit code depends on that.
void say(std::string_view message);
void print_to_stderr(const std::string& text);
// "unknown WHAT 'name'; did you mean 'x'? Known: ..."
[[nodiscard]] std::string unknown_name(std::string_view what,
                                       std::string_view name,
                                       const std::vector<std::string_view>& known);

}  // namespace nofrag
