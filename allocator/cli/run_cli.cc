#include <cstdio>
#include <exception>
#include <new>

#include <fmt/format.h>

#include <nofrag/version.h>

#include "base/nearest_name.h"
#include "cli/commands.h"
#include "cli/usage.h"

namespace nofrag {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  nofrag replay bench/traces/gpt_varlen.nofrag\n"
    "  nofrag replay trace.csv.gz --capacity 1.05x --min-capacity --json result.json\n"
    "  nofrag convert trace.csv.gz --to nofrag trace.nofrag\n"
    "  nofrag doctor\n"
    "  nofrag explain < oom.log\n"
    "  nofrag top --once --json\n"
    "  nofrag explain trace.nofrag --capacity 24GiB --json -\n"
    "\n"
    "Exit codes: 0 done; 4 a replay ended out of memory; 2 bad usage or configuration;\n"
    "3 an unreadable or corrupt trace; 1 anything else that failed.";

// The parser takes an empty value for one that was not given, and would go on with the default.
std::string not_empty(const std::string& value) {
  return value.empty() ? "its value is empty" : "";
}

// --name, and not --name=value: whoever gives a value means something else.
void add_switch(CLI::App* command, const char* name, bool* value, const char* doc) {
  command->add_flag(name, *value, doc)->disable_flag_override();
}

void add_replay(CLI::App& app, ReplayArguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "replay", "Play recorded allocations through allocators and compare what each would hold");
  command->add_option("TRACE", arguments.traces, "Trace files (csv, csv.gz, nofrag); - is stdin")
      ->required();
  command
      ->add_option("--allocator",
                   arguments.allocators,
                   "Comma-separated: nofrag, torch-native, torch-expandable, driver")
      ->capture_default_str();
  command->add_option(
      "--device",
      arguments.device,
      fmt::format("sim:NAME, sim:FILE.json or cuda:N (default: what driver: says in "
                  "--conf or NOFRAG_CONF, else {})",
                  kDefaultDevice));
  command->add_option("--capacity",
                      arguments.capacity,
                      "Memory of the device: 24GiB, 500MiB, 24469569536B, or 1.02x = times the "
                      "trace's peak live bytes (default: the device's own)");
  add_switch(command,
             "--min-capacity",
             &arguments.min_capacity,
             "Also find the smallest capacity at which each allocator completes");
  command->add_option("--conf",
                      arguments.conf,
                      "nofrag's options, key:value,key:value; stronger than those in NOFRAG_CONF");
  command->add_option("--format", arguments.format, "auto, csv or nofrag")->capture_default_str();
  command
      ->add_option("--json", arguments.json, "Also write the results as JSON; - is stdout, alone")
      ->check(not_empty);
  command
      ->add_option("--stream-lag",
                   arguments.stream_lag_us,
                   "Simulated devices: microseconds until work queued on a stream is done")
      ->check(not_empty)
      ->capture_default_str();
  add_switch(command, "--quiet", &arguments.quiet, "No table and no progress");
}

void add_convert(CLI::App& app, ConvertArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("convert", "Rewrite a trace in another format, losslessly");
  command->add_option("IN", arguments.input, "Trace to read; - is stdin")->required();
  command->add_option("--to", arguments.to, "csv or nofrag")->required();
  command
      ->add_option(
          "OUT", arguments.output, "File to write, packed with gzip if it ends in .gz; - is stdout")
      ->required();
  command->add_option("--format", arguments.format, "Format of IN: auto, csv or nofrag")
      ->capture_default_str();
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
  command->add_option("--capacity",
                      arguments.capacity,
                      "Traces: memory of the device, as in replay (default: the H100's 80 GB)");
  command
      ->add_option(
          "--allocator", arguments.allocator, "Traces: the allocator that ran out of memory")
      ->capture_default_str();
  command->add_option("--conf", arguments.conf, "Traces: nofrag's options, key:value,key:value");
  command->add_option("--format", arguments.format, "auto (a trace or a text), csv or nofrag")
      ->capture_default_str();
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
  throw UsageError(unknown_name(what, name, views));
}

struct CommandLine {
  CLI::App app{"nofrag: how much GPU memory a job really needs, and what allocators make of it",
               "nofrag"};
  ReplayArguments replay;
  ConvertArguments convert;
  DoctorArguments doctor;
  ExplainArguments explain;
  TopArguments top;

  CommandLine() {
    app.set_version_flag("--version", "nofrag " NOFRAG_VERSION_STRING);
    app.footer(kExamples);
    app.require_subcommand(0, 1);
    app.allow_extras();
    add_replay(app, replay);
    add_convert(app, convert);
    add_doctor(app, doctor);
    add_explain(app, explain);
    add_top(app, top);
    for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
      command->allow_extras();
    }
  }

  ExitCode run() {
    if (app.got_subcommand("replay")) {
      return run_replay(replay);
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
    if (app.got_subcommand("top")) {
      return run_top(top);
    }
    throw UsageError("no command; try 'nofrag --help'");
  }
};

ExitCode run_or_throw(int argc, const char* const* argv) {
  CommandLine line;
  try {
    line.app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    // A mistyped option is the likelier reason for a missing one: say that first.
    refuse_unknown(line.app);
    throw UsageError(usage_message(line.app, error));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      line.app.exit(error);  // --help and --version
      return ExitCode::kOk;
    }
    throw UsageError(usage_message(line.app, error));
  }
  refuse_unknown(line.app);
  return line.run();
}

int report(ExitCode code, const char* what) {
  fmt::print(stderr, "nofrag: {}\n", what);
  return static_cast<int>(code);
}

}  // namespace

int run_cli(int argc, const char* const* argv) {
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
