#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/replay/capacity.h"
#include "cli/replay/replay_report.h"
#include "cli/replay/replay_session.h"

namespace nofrag {
namespace {

constexpr double kLongestLag = 1e9;

std::vector<std::string> parse_allocators(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    const std::string_view name = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    if (name.empty()) {
      continue;
    }
    const std::vector<std::string_view>& known = replay_allocators();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw UsageError("--allocator: " + unknown_name("allocator", name, known));
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.emplace_back(name);
    }
  }
  if (names.empty()) {
    throw UsageError(fmt::format("--allocator: names no allocator. Known: {}",
                                 fmt::join(replay_allocators(), ", ")));
  }
  return names;
}

// Everything that the command line can get wrong is found before the first trace is read.
struct Plan {
  explicit Plan(const ReplayArguments& arguments)
      : allocators(parse_allocators(arguments.allocators)),
        format(parse_input_format(arguments.format)),
        given(nofrag_options(arguments.conf)),
        target(choose_device(arguments.device, given)) {
    settings.options = given.options;
    settings.stream_lag_us = arguments.stream_lag_us;
    if (!(arguments.stream_lag_us >= 0 && arguments.stream_lag_us <= kLongestLag)) {
      throw UsageError("--stream-lag: expected microseconds from 0 to 1e9");
    }
    if (arguments.capacity.has_value()) {
      capacity = Capacity::parse(*arguments.capacity);
    }
  }

  std::vector<std::string> allocators;
  TraceFormat format;
  GivenOptions given;
  DeviceTarget target;
  ReplaySettings settings;
  std::optional<Capacity> capacity;
};

// What the simulated address space has room for many times over.
constexpr Bytes kMostCapacity = 16384 * kGiB;

std::string short_name(const std::string& path) {
  return path == "-" ? "standard input" : std::filesystem::path(path).filename().string();
}

TraceReport replay_one(const std::string& path,
                       const Trace& trace,
                       const Plan& plan,
                       bool with_min_capacity,
                       Progress& progress) {
  TraceReport report;
  report.trace = summarize(path, trace);
  ReplaySession session(trace, plan.target, plan.settings);
  std::optional<Bytes> capacity;
  if (plan.capacity) {
    capacity = plan.capacity->resolve(trace.peak_live, session.granule());
    if (*capacity > kMostCapacity) {
      throw UsageError("--capacity: " + std::to_string(capacity->count()) +
                       " bytes; the largest device that can be simulated has 16 TiB");
    }
  }
  const auto update = [&](std::uint64_t done) { progress.update(done); };
  for (const std::string& allocator : plan.allocators) {
    progress.begin(fmt::format("{}: {}", short_name(path), allocator), trace.events.size());
    report.runs.push_back(session.run(allocator, capacity, update));
    if (with_min_capacity) {
      progress.begin(
          fmt::format("{}: {}, smallest capacity, this try", short_name(path), allocator),
          trace.events.size());
      report.min_capacity.push_back(
          {allocator,
           session.min_capacity(allocator, capacity ? nullptr : &report.runs.back(), update)});
    }
    session.finish(allocator);
  }
  progress.clear();
  for (const std::string& note : session.notes()) {
    fmt::print(stderr, "nofrag: note: {}\n", note);
  }
  return report;
}

}  // namespace

ExitCode run_replay(const ReplayArguments& arguments) {
  const Plan plan(arguments);
  Progress progress(!arguments.quiet);
  std::vector<TraceReport> reports;
  for (const std::string& path : arguments.traces) {
    const std::vector<Trace> traces = load_or_throw(path, plan.format, arguments.trace_device);
    for (const Trace& trace : traces) {
      reports.push_back(replay_one(path, trace, plan, arguments.min_capacity, progress));
      reports.back().trace.several_devices = traces.size() > 1;
    }
  }
  if (!arguments.json.empty()) {
    // A path need not be UTF-8; JSON must be.
    write_output(
        arguments.json,
        replay_json(reports).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  if (!arguments.quiet && arguments.json != "-") {
    write_output("-", replay_table(reports));
  }
  for (const TraceReport& report : reports) {
    for (const ReplayRun& run : report.runs) {
      if (!run.fault.empty()) {
        throw RunError(run.allocator + " on " + run.device + ": " + run.fault);
      }
    }
  }
  const bool all_completed = std::all_of(reports.begin(), reports.end(), [](const TraceReport& r) {
    return std::all_of(
        r.runs.begin(), r.runs.end(), [](const ReplayRun& run) { return run.completed; });
  });
  return all_completed ? ExitCode::kOk : ExitCode::kOutOfMemory;
}

}  // namespace nofrag
