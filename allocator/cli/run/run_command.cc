// `nofrag run`: starts a program under the preload. Only the environment is arranged; then the program takes
// the place of this one, so signals, standard streams and the exit status are its own.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/printable.h"
#include "cli/run/program_file.h"
#include "cli/run/variables.h"
#include "config/human_bytes.h"
#include "config/parser.h"
#include "runtime/environment.h"
#include "runtime/implied_options.h"
#include "runtime/tracing.h"

namespace nofrag {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libnofrag.so";
constexpr const char* kNvtxInjection = "NVTX_INJECTION64_PATH";

// Where this program lies decides where the rest is: bin/nofrag, lib/libnofrag.so, share/nofrag/python.
fs::path installation() {
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  return failed ? fs::path() : self.parent_path().parent_path();
}

fs::path find_library(const fs::path& root) {
  const std::string named = environment("NOFRAG_LIBRARY");
  const fs::path library = named.empty() ? root / "lib" / kLibrary : fs::path(named);
  std::error_code failed;
  if (named.empty() && !fs::is_regular_file(library, failed)) {
    throw UsageError(fmt::format(
        "{} was not found at {}; set NOFRAG_LIBRARY to its path", kLibrary, library.string()));
  }
  if (const std::string problem = named.empty() ? "" : library_problem(named); !problem.empty()) {
    throw UsageError("NOFRAG_LIBRARY " + problem);
  }
  fs::path absolute = fs::absolute(library);
  if (absolute.string().find_first_of(" :\n\t") != std::string::npos) {
    throw UsageError(
        fmt::format("{}: the loader takes no path with a space or colon in LD_PRELOAD; put the "
                    "library elsewhere, and "
                    "set NOFRAG_LIBRARY to its path",
                    absolute.string()));
  }
  return absolute;
}

void add_before(const char* variable, const std::string& entry) {
  const std::string before = environment(variable);
  const std::string list = ":" + before + ":";
  if (list.find(":" + entry + ":") == std::string::npos) {
    set_environment(variable, before.empty() ? entry : entry + ":" + before);
  }
}

[[noreturn]] void refuse(std::string_view source, const std::vector<std::string>& problems) {
  throw UsageError(fmt::format("{}: {}", source, fmt::join(problems, "; ")));
}

void refuse_if(std::string_view source, const std::string& problem) {
  if (!problem.empty()) {
    refuse(source, {problem});
  }
}

// For each option the source that said it last; nullptr where none did.
using SaidBy = std::array<const char*, kOptionCount>;

// Only what holds in the end: a conf is weaker than the variables and options for the trace and the metrics alone.
void check_final(const RunArguments& arguments, Options options, const SaidBy& said_by) {
  const auto source = [&said_by](OptionId option) {
    return said_by[static_cast<std::size_t>(option)];
  };
  const bool other_trace = !arguments.trace.empty() || *environment("NOFRAG_TRACE") != '\0';
  const bool other_metrics = arguments.metrics || *environment("NOFRAG_METRICS") != '\0';
  if (const char* said = source(OptionId::k_driver)) {
    static_cast<void>(DeviceTarget::of_driver(options.driver, said));
  }
  if (const char* said = source(OptionId::k_trace); said != nullptr && !other_trace) {
    refuse_if(said, later_recording_problem(options.trace));
  }
  if (const char* said = source(OptionId::k_metrics); said != nullptr && !other_metrics) {
    refuse_if(said, later_metrics_problem(options.metrics));
  }
  add_implied(&options);
  std::vector<std::string> problems;
  check_limit(options, &problems);
  if (const char* said = source(OptionId::k_limit); !problems.empty()) {
    refuse(said != nullptr ? said : "", problems);
  }
}

// NOFRAG_CONF as it was, then what the command line says, which is stronger because it comes later. What is wrong in
// any of them is found here: the program would only warn of it, and go on without.
std::string configuration(const RunArguments& arguments) {
  std::string conf = environment("NOFRAG_CONF");
  const std::pair<const char*, std::string> sources[] = {
      {"NOFRAG_CONF", conf},
      {"--conf", arguments.conf},
      {"--limit", arguments.limit.empty() ? "" : "limit:" + arguments.limit}};
  Options options;
  SaidBy said_by{};
  for (const auto& [source, text] : sources) {
    std::vector<std::string> problems;
    OptionSet set;
    if (!parse_options(text, &options, &problems, &set)) {
      refuse(source, problems);
    }
    for (std::size_t i = 0; i < kOptionCount; ++i) {
      said_by[i] = set[i] ? source : said_by[i];
    }
  }
  check_final(arguments, options, said_by);
  const auto append = [&conf](const std::string& more) {
    conf += conf.empty() || more.empty() ? more : "," + more;
  };
  append(arguments.conf);
  append(arguments.limit.empty() ? "" : "limit:" + arguments.limit);
  append(arguments.summary ? "stats:summary" : "");
  return conf;
}

// What may have been meant by a name under which no program is found.
std::string meant_by(const std::string& name) {
  std::error_code ignored;
  if (name.find('/') == std::string::npos && name.find('=') != std::string::npos) {
    return fmt::format("; variables come first: {} nofrag run ...", name);
  }
  if (!fs::is_regular_file(name, ignored)) {
    return {};
  }
  if (name.ends_with(".py")) {
    return fmt::format("; write: nofrag run python3 {}", name);
  }
  return name.find('/') == std::string::npos
             ? fmt::format("; the file of that name in this folder is ./{}", name)
             : std::string();
}

// Where it cannot be run although it is there and may be.
std::string why_not_run(int error) {
  return error == ENOENT ? "its interpreter or loader is not there" : std::strerror(error);
}

// The variables beside NOFRAG_CONF that the program will read.
void check_variables(const RunArguments& arguments) {
  Options options;
  std::vector<std::string> problems;
  const std::pair<const char*, const char*> words[] = {
      {"NOFRAG_LOG", "log"}, {"NOFRAG_STATS", "stats"}, {"NOFRAG_METRICS", "metrics"}};
  for (const auto& [variable, key] : words) {
    const char* value = environment(variable);
    const bool overridden = std::string_view(key) == "metrics" && arguments.metrics.has_value();
    if (!overridden && *value != '\0' && !parse_option(key, value, &options, &problems)) {
      refuse(variable, problems);
    }
    if (!overridden && std::string_view(key) == "metrics") {
      refuse_if(variable, later_metrics_problem(options.metrics));
    }
  }
  if (arguments.metrics && !parse_option("metrics", *arguments.metrics, &options, &problems)) {
    refuse("--metrics", problems);
  }
  refuse_if("--metrics", arguments.metrics ? metrics_problem(options.metrics) : "");
  const bool asked = !arguments.trace.empty();
  const std::string trace = asked ? arguments.trace : environment("NOFRAG_TRACE");
  if (!trace.empty() && !parse_trace_spec(trace, &options, &problems)) {
    refuse(asked ? "--trace" : "NOFRAG_TRACE", problems);
  }
  // The recording begins with the first allocation, hours into a job it may be: too late to say so.
  if (asked) {
    refuse_if("--trace", recording_problem(options.trace));
  } else {
    refuse_if("NOFRAG_TRACE", later_recording_problem(options.trace));
  }
  refuse_if("NOFRAG_TORCH", torch_problem(environment("NOFRAG_TORCH")));
}

// They may be anybody's, and the program runs all the same.
void say_unknown_variables() {
  for (const Variable& variable : own_variables()) {
    if (!variable.known) {
      say(fmt::format("{} is set: {}", printable(variable.name), variable.problem));
    }
  }
}

// Absolute: the program may go elsewhere before it first allocates.
std::string absolute_trace(const std::string& spec) {
  constexpr std::string_view kFlight = "flight:";
  const bool flight = spec.starts_with(kFlight);
  const std::string rest = flight ? spec.substr(kFlight.size()) : spec;
  return (flight ? std::string(kFlight) : std::string()) + fs::absolute(rest).string();
}

// As NOFRAG_METRICS takes it; a file, too, is where the program was started.
std::string absolute_metrics(const std::string& place) {
  constexpr std::string_view kFile = "file:";
  return place.starts_with(kFile)
             ? std::string(kFile) + fs::absolute(place.substr(kFile.size())).string()
             : place;
}

void arrange(const RunArguments& arguments, const fs::path& library, const fs::path& root) {
  check_variables(arguments);
  add_before("LD_PRELOAD", library.string());
  if (const std::string conf = configuration(arguments); !conf.empty()) {
    set_environment("NOFRAG_CONF", conf);
  }
  if (!arguments.trace.empty()) {
    set_environment("NOFRAG_TRACE", absolute_trace(arguments.trace));
    // The program's own ranges are recorded too, unless a tool of its owner's listens to them.
    if (*environment(kNvtxInjection) == '\0') {
      set_environment(kNvtxInjection, library.string());
    }
  }
  if (arguments.metrics) {
    set_environment("NOFRAG_METRICS", absolute_metrics(*arguments.metrics));
  }
  const fs::path package = root / "share" / "nofrag" / "python";
  std::error_code failed;
  if (fs::is_directory(package, failed)) {
    add_before("PYTHONPATH", package.string());
    set_environment("NOFRAG_LIBRARY", library.string());
    if (*environment("NOFRAG_TORCH") == '\0') {
      set_environment("NOFRAG_TORCH", "1");
    }
  }
}

}  // namespace

ExitCode run_run(const RunArguments& arguments) {
  if (arguments.command.empty()) {
    throw UsageError("run: no command; write: nofrag run [OPTION...] COMMAND [ARGUMENT...]");
  }
  const std::string& name = arguments.command.front();
  if (name.empty()) {
    throw UsageError("run: the command's name is empty");
  }
  const fs::path root = installation();
  const ProgramFile program = find_program(name, environment("PATH"));
  if (program.kind == ProgramKind::kMissing) {
    throw CommandNotFound(fmt::format("{}: no such program{}{}",
                                      name,
                                      name.find('/') == std::string::npos ? " in PATH" : "",
                                      meant_by(name)));
  }
  if (program.kind == ProgramKind::kNotExecutable) {
    throw CommandNotExecutable(
        fmt::format("{}: not a program that may be run ({}){}",
                    program.path.string(),
                    fs::is_directory(program.path) ? "a directory" : "no permission to execute it",
                    meant_by(name)));
  }
  arrange(arguments, find_library(root), root);
  say_unknown_variables();
  if (program.kind == ProgramKind::kStatic) {
    say(fmt::format(
        "{} is linked statically, and nothing can be preloaded into it: it runs without nofrag",
        program.path.string()));
  }
  if (program.kind == ProgramKind::kPrivileged) {
    say(fmt::format(
        "{} takes on another user's or group's rights, and nothing can be preloaded into such a "
        "program: it runs without nofrag; what it starts can be started under nofrag itself",
        program.path.string()));
  }
  if (program.kind == ProgramKind::kCapable) {
    say(fmt::format(
        "{0} takes on capabilities of its file (getcap {0}), and nothing can be preloaded into "
        "such "
        "a program: it runs without nofrag; under nofrag it runs without them, after setcap -r on "
        "a copy of it",
        program.path.string()));
  }
  std::vector<char*> words;
  words.reserve(arguments.command.size() + 1);
  for (const std::string& word : arguments.command) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  ::execvp(program.path.c_str(), words.data());
  throw CommandNotExecutable(
      fmt::format("{}: cannot be run ({})", program.path.string(), why_not_run(errno)));
}

}  // namespace nofrag
