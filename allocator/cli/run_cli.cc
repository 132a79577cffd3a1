#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <sstream>

#include <fmt/format.h>

#include <nofrag/version.h>

#include "base/nearest_name.h"
#include "cli/commands.h"
#include "cli/usage.h"

namespace nofrag {
namespace {

// The parser takes an empty value for one that was not given, and would go on with the default.
std::string not_empty(const std::string& value) {
  return value.empty() ? "its value is empty" : "";
}

// (Left to itself the parser takes -1 for a very large number.)
std::string a_device(const std::string& value) {
  return value.empty() || value.find_first_not_of("0123456789") != std::string::npos
             ? "'" + value + "' is no number of a device (0, 1, ...)"
             : "";
}

// --name, and not --name=value: whoever gives a value means something else.
void add_switch(CLI::App* command, const char* name, bool* value, const char* doc) {
  command->add_flag(name, *value, doc)->disable_flag_override();
}

void add_format(CLI::App* command, std::string* format, std::optional<std::uint64_t>* device) {
  command
      ->add_option(
          "--format",
          *format,
          "auto, nofrag, csv, torch, kineto, torch-timeline, rmm, nsys, umpire or minimalloc")
      ->check(not_empty)
      ->capture_default_str();
  command
      ->add_option("--trace-device",
                   *device,
                   "Of a trace of several devices, only the events of this one (default: all)")
      ->check(a_device);
}

// What replay and report have in common: which traces, through what, on what.
void add_replay_options(CLI::App* command, ReplayArguments& arguments) {
  command
      ->add_option("TRACE",
                   arguments.traces,
                   "Trace files (csv, csv.gz, nofrag, or what --format lists); - is stdin")
      ->required();
  command
      ->add_option(
          "--allocator",
          arguments.allocators,
          fmt::format(
              "Comma-separated: nofrag, torch-native, torch-expandable, cub-caching, driver, "
              "driver-async (default: {}, less what the device cannot run)",
              kDefaultAllocators))
      ->check(not_empty);
  command
      ->add_option("--device",
                   arguments.device,
                   fmt::format("sim:NAME, sim:FILE.json or cuda:N (default: what driver: says in "
                               "--conf or NOFRAG_CONF, else {})",
                               kDefaultDevice))
      ->check(not_empty);
  command
      ->add_option("--capacity",
                   arguments.capacity,
                   "Memory of the device: 24GiB, 500MiB, 24469569536B, or 1.02x = times the "
                   "trace's peak live bytes (default: the device's own)")
      ->check(not_empty);
  add_switch(command,
             "--min-capacity",
             &arguments.min_capacity,
             "Also find the smallest capacity at which each allocator completes");
  command->add_option("--conf",
                      arguments.conf,
                      "nofrag's options, key:value,key:value; stronger than those in NOFRAG_CONF");
  add_format(command, &arguments.format, &arguments.trace_device);
  command
      ->add_option("--json", arguments.json, "Also write the results as JSON; - is stdout, alone")
      ->check(not_empty);
  command
      ->add_option("--stream-lag",
                   arguments.stream_lag_us,
                   "Simulated devices: microseconds until work queued on a stream is done")
      ->check(not_empty)
      ->capture_default_str();
}

void add_replay(CLI::App& app, ReplayArguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "replay", "Play recorded allocations through allocators and compare what each would hold");
  add_replay_options(command, arguments);
  command
      ->add_option("--compare",
                   arguments.compare,
                   "JSON of an earlier replay (--json): also says what changed since")
      ->check(not_empty);
  command
      ->add_option("--speed",
                   arguments.speed,
                   "cuda devices: keep the recorded times, times this (1 = as recorded); 0 = as "
                   "fast as it goes")
      ->check(not_empty)
      ->capture_default_str();
  command->add_option("--html", arguments.html, "Also write a page of it, as report does")
      ->check(not_empty);
  add_switch(command, "--quiet", &arguments.quiet, "No table and no progress");
}

void add_report(CLI::App& app, ReplayArguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "report",
      "The same as one HTML page: memory over time, address map, blocks, sizes, lifetimes");
  add_replay_options(command, arguments);
  command->add_option("-o,--output", arguments.html, "The page to write; - is stdout")
      ->required()
      ->check(not_empty);
  add_switch(command, "--quiet", &arguments.quiet, "No progress");
}

void add_convert(CLI::App& app, ConvertArguments& arguments) {
  CLI::App* command = app.add_subcommand("convert", "Rewrite a trace in another format");
  command->add_option("IN", arguments.input, "Trace to read; - is stdin")->required();
  command->add_option("--to", arguments.to, "nofrag, csv, torch-snapshot, perfetto or minimalloc")
      ->required();
  command
      ->add_option(
          "OUT", arguments.output, "File to write, packed with gzip if it ends in .gz; - is stdout")
      ->required();
  add_format(command, &arguments.format, &arguments.trace_device);
  add_switch(command, "--force", &arguments.force, "Overwrite OUT if it exists");
}

void add_doctor(CLI::App& app, DoctorArguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "doctor", "What this machine's driver can do, and what nofrag would use of it");
  command->add_option("--device",
                      arguments.device,
                      "Only this device: sim:NAME, sim:FILE.json or cuda:N (default: what driver: "
                      "says in --conf or NOFRAG_CONF, else all CUDA devices)");
  command->add_option("--conf",
                      arguments.conf,
                      "nofrag's options, key:value,key:value; stronger than those in NOFRAG_CONF");
  command->add_option("--json", arguments.json, "Write the findings as JSON; - is stdout, alone")
      ->check(not_empty);
}

void add_explain(CLI::App& app, ExplainArguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "explain", "Root cause of an out-of-memory failure, from its message or a trace");
  command->add_option("FILE", arguments.input, "A message, a log or a trace; - is stdin")
      ->capture_default_str();
  command->add_option("--json", arguments.json, "Write the verdict as JSON; - is stdout, alone")
      ->check(not_empty);
  command
      ->add_option("--capacity",
                   arguments.capacity,
                   "Traces: memory of the device, as in replay (default: what the trace tells of "
                   "its own failure, else the H100's 80 GB)")
      ->check(not_empty);
  command
      ->add_option(
          "--allocator", arguments.allocator, "Traces: the allocator that ran out of memory")
      ->capture_default_str();
  command->add_option("--conf", arguments.conf, "Traces: nofrag's options, key:value,key:value");
  add_format(command, &arguments.format, &arguments.trace_device);
}

// `run` takes a command behind its options, which the parser does not know of.
class RunUsage final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string name) const override {
    return "Usage: " + name +
           " [OPTION...] COMMAND [ARGUMENT...]\n\nPositionals:\n"
           "  COMMAND                     The program to start, in PATH or by its path\n"
           "  ARGUMENT...                 Everything behind it is its own, options too\n";
  }
};

void add_run(CLI::App& app, RunArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("run", "Start a program under nofrag (LD_PRELOAD), unmodified");
  // From the first word that is no option of ours on, everything is the program's.
  command->prefix_command();
  command->formatter(std::make_shared<RunUsage>());
  command->add_option("--conf",
                      arguments.conf,
                      "nofrag's options, key:value,key:value; stronger than those in NOFRAG_CONF");
  command->add_option("--limit", arguments.limit, "Most memory to hold on each GPU: 20GiB")
      ->check(not_empty);
  command
      ->add_option("--trace",
                   arguments.trace,
                   "File to record what is allocated in; FILE,stacks=100 with call stacks")
      ->check(not_empty);
  command->add_option("--metrics",
                      arguments.metrics,
                      "Where Prometheus finds the numbers: PORT, ADDRESS:PORT, file:PATH; or off");
  add_switch(command,
             "--summary",
             &arguments.summary,
             "At exit, say in a few lines what the program needed and what was held");
}

void add_top(CLI::App& app, TopArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("top", "The nofrag processes of this user on this machine, live");
  add_switch(command, "--once", &arguments.once, "One table, and done");
  add_switch(command, "--json", &arguments.json, "Objects instead of tables");
  command->add_option("--interval", arguments.interval, "Seconds between two tables")
      ->check(not_empty)
      ->capture_default_str();
}

// Arguments that no command knows: says what each may have meant.
void refuse_unknown(const CLI::App& app) {
  const auto subcommands = app.get_subcommands();
  const CLI::App& command = subcommands.empty() ? app : *subcommands.front();
  std::vector<std::string> extras = app.remaining(true);
  std::erase(extras, "--");  // what comes behind it was taken for what it is
  if (extras.empty()) {
    return;
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  if (subcommands.empty()) {
    for (const CLI::App* other : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(other->get_name());
    }
  }
  const std::string name = extras.front().substr(0, extras.front().find('='));
  const std::vector<std::string_view> views(names.begin(), names.end());
  const bool is_option = name.size() > 1 && name[0] == '-';
  const char* what = is_option ? "option" : subcommands.empty() ? "command" : "argument";
  std::string message = unknown_name(what, name, views);
  if (command.get_name() == "convert" && (name == "-o" || name == "--output" || name == "--out")) {
    throw UsageError(message + std::string(kConvertExample));
  }
  // It is there as a file, or it is like no option of ours: those have two dashes, but for -h and -o.
  std::error_code ignored;
  const bool takes_files =
      !subcommands.empty() && command.get_name() != "top" && command.get_name() != "doctor";
  if (is_option && takes_files &&
      (name[1] != '-' || std::filesystem::exists(extras.front(), ignored))) {
    message += file_hint(extras.front());
  }
  throw UsageError(message);
}

struct CommandLine {
  CLI::App app{"nofrag: how much GPU memory a job really needs, and what allocators make of it",
               "nofrag"};
  ReplayArguments replay;
  ReplayArguments report;
  ConvertArguments convert;
  DoctorArguments doctor;
  ExplainArguments explain;
  RunArguments run_arguments;
  TopArguments top;

  CommandLine() {
    app.set_version_flag("--version", "nofrag " NOFRAG_VERSION_STRING);
    app.footer(help_footer(""));
    app.require_subcommand(0, 1);
    app.allow_extras();
    add_replay(app, replay);
    add_report(app, report);
    add_convert(app, convert);
    add_doctor(app, doctor);
    add_explain(app, explain);
    add_run(app, run_arguments);
    add_top(app, top);
    for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
      command->allow_extras();
      command->footer(help_footer(command->get_name()));
    }
  }

  // The words after `run` and its options.
  void take_command() {
    if (app.got_subcommand("run")) {
      run_arguments.command = app.get_subcommand("run")->remaining();
      if (!run_arguments.command.empty() && run_arguments.command.front().starts_with('-')) {
        refuse_unknown(app);
      }
    }
  }

  ExitCode run() {
    if (app.got_subcommand("replay")) {
      return run_replay(replay);
    }
    if (app.got_subcommand("report")) {
      return run_report(report);
    }
    if (app.got_subcommand("convert")) {
      return run_convert(convert);
    }
    if (app.got_subcommand("doctor")) {
      return run_doctor(doctor);
    }
    if (app.got_subcommand("explain")) {
      return run_explain(explain);
    }
    if (app.got_subcommand("run")) {
      return run_run(run_arguments);
    }
    if (app.got_subcommand("top")) {
      return run_top(top);
    }
    throw UsageError("no command; try 'nofrag --help'");
  }
};

const CLI::App* command_named(const CLI::App& app, std::string_view name) {
  const auto named = [name](const CLI::App* command) { return command->get_name() == name; };
  const auto found = app.get_subcommands(named);
  return found.empty() ? nullptr : found.front();
}

using Words = std::vector<const char*>;

bool is_run(const Words& words) {
  return words.size() > 1 && std::string_view(words[1]) == "run";
}

// Where a command's own options end: at `--`, and those of `run` at the command to run.
std::size_t end_of_options(const Words& words) {
  std::size_t at = 2;
  for (; at < words.size(); ++at) {
    const std::string_view word = words[at];
    if (word == "--" || (is_run(words) && !word.starts_with("--"))) {
      break;
    }
    const bool has_value =
        is_run(words) && word != "--summary" && word.find('=') == std::string_view::npos;
    at += has_value ? 1 : 0;
  }
  return std::min(at, words.size());
}

// `run -- COMMAND` is `run COMMAND`: the parser would hide from us what comes behind the mark.
Words without_mark(Words words) {
  const std::size_t end = end_of_options(words);
  if (is_run(words) && end < words.size() && std::string_view(words[end]) == "--") {
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return words;
}

// `--name=` gives an empty value. The parser would take the next word for it: a trace, and overwrite that.
Words with_empty_values(const CLI::App& app, const Words& words, std::deque<std::string>* names) {
  const CLI::App* command = command_named(app, words.size() > 1 ? words[1] : "");
  const std::size_t end = end_of_options(words);
  Words out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    out.push_back(words[i]);
    const std::string_view word = words[i];
    if (command == nullptr || i < 2 || i >= end || !word.starts_with("--") ||
        word.find('=') + 1 != word.size()) {
      continue;
    }
    std::string name(word.substr(0, word.size() - 1));
    const CLI::Option* option = command->get_option_no_throw(name);
    if (option != nullptr && option->get_expected_max() > 0) {
      out.back() = names->emplace_back(std::move(name)).c_str();
      out.push_back("");
    }
  }
  return out;
}

// A command comes first. What stands before `run` would be lost: all behind it is the program's.
void refuse_words_before_command(const CLI::App& app, const Words& words) {
  if (words.size() < 3 || command_named(app, words[1]) != nullptr ||
      app.get_option_no_throw(words[1]) != nullptr) {
    return;
  }
  for (std::size_t i = 2; i < words.size(); ++i) {
    if (const CLI::App* command = command_named(app, words[i])) {
      throw UsageError(fmt::format(
          "'{}' stands before the command '{}'; options go behind it: nofrag {} [OPTIONS] ...",
          words[1],
          command->get_name(),
          command->get_name()));
    }
  }
}

ExitCode run_or_throw(int argc, const char* const* argv) {
  CommandLine line;
  refuse_words_before_command(line.app, Words(argv, argv + argc));
  std::deque<std::string> names;
  const Words words = with_empty_values(line.app, without_mark(Words(argv, argv + argc)), &names);
  try {
    line.app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::RequiredError& error) {
    // A mistyped option is the likelier reason for a missing one: say that first.
    refuse_unknown(line.app);
    throw UsageError(usage_message(line.app, error));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      std::ostringstream text;  // --help and --version
      line.app.exit(error, text, text);
      write_output("-", text.str());
      return ExitCode::kOk;
    }
    throw UsageError(usage_message(line.app, error));
  }
  line.take_command();
  if (line.run_arguments.command.empty()) {
    refuse_unknown(line.app);
  }
  return line.run();
}

// Where stderr is closed, the first file that is opened would take its number, and get the messages. Not for what
// `nofrag run` starts, which has it closed as before.
void reserve_stderr() {
  if (::fcntl(STDERR_FILENO, F_GETFD) != -1) {
    return;
  }
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0 && nowhere != STDERR_FILENO) {
    ::dup3(nowhere, STDERR_FILENO, O_CLOEXEC);
    ::close(nowhere);
  }
}

int report(ExitCode code, const char* what) {
  say(what);
  return static_cast<int>(code);
}

}  // namespace

int run_cli(int argc, const char* const* argv) {
  reserve_stderr();
  try {
    return static_cast<int>(run_or_throw(argc, argv));
  } catch (const CliError& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::kFault, "not enough host memory");
  } catch (const std::exception& error) {
    return report(ExitCode::kFault, error.what());
  }
}

}  // namespace nofrag
