#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/commands.h"
#include "cli/explain/explain.h"
#include "cli/progress.h"
#include "cli/replay/capacity.h"
#include "cli/replay/comparison.h"
#include "cli/replay/replay_report.h"
#include "cli/replay/replay_session.h"
#include "cli/report/report_page.h"

namespace nofrag {
namespace {

constexpr double kLongestLag = 1e9;
constexpr double kHighestSpeed = 1e6;

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
      : allocators(
            parse_allocators(arguments.allocators ? *arguments.allocators : kDefaultAllocators)),
        by_default(!arguments.allocators),
        format(parse_input_format(arguments.format)),
        given(nofrag_options(arguments.conf)),
        target(choose_device(arguments.device, given)) {
    settings.options = given.options;
    settings.conf = conf_text(given.options, given.set());
    settings.stream_lag_us = arguments.stream_lag_us;
    if (!(arguments.stream_lag_us >= 0 && arguments.stream_lag_us <= kLongestLag)) {
      throw UsageError("--stream-lag: expected microseconds from 0 to 1e9");
    }
    if (!(arguments.speed >= 0 && arguments.speed <= kHighestSpeed)) {
      throw UsageError("--speed: expected a number from 0 (as fast as it goes) to 1e6");
    }
    if (arguments.speed > 0 && target.is_simulated()) {
      throw UsageError(
          "--speed: a simulated device keeps the trace's times by its own clock; it is for "
          "--device cuda:N");
    }
    settings.speed = arguments.speed;
    if (!arguments.compare.empty()) {
      before = read_earlier_replay(arguments.compare);
    }
    if (arguments.capacity.has_value()) {
      capacity = Capacity::parse(*arguments.capacity);
    }
  }

  // Leaves out what the device cannot run, unless it was asked for by name.
  void fit(const ReplaySession& session) {
    if (!by_default || session.device().virtual_memory) {
      return;
    }
    const auto unfit = std::stable_partition(
        allocators.begin(), allocators.end(), [](const std::string& allocator) {
          return !needs_virtual_memory(allocator);
        });
    for (auto at = unfit; at != allocators.end(); ++at) {
      say(fmt::format(
          "note: {} is left out: {} has no virtual memory, which it needs", *at, target.text()));
    }
    allocators.erase(unfit, allocators.end());
  }

  // Says so, once, if the options refuse every allocation: the table shows the end of it, and not why.
  void check_limit(const ReplaySession& session, std::optional<Bytes> memory) {
    DeviceInfo device = session.device();
    if (memory && target.is_simulated()) {
      device.total_memory = *memory;
    }
    const bool plays =
        std::find(allocators.begin(), allocators.end(), "nofrag") != allocators.end();
    const std::string warning = limit_warning(given.options, device);
    if (plays && !warning.empty() && !warned_of_limit) {
      warned_of_limit = true;
      const std::string& source =
          warning.starts_with("limit:") ? given.limit_source : given.fraction_source;
      say(fmt::format("note: nofrag can serve nothing: {}: {}", source, warning));
    }
  }

  std::vector<std::string> allocators;
  bool by_default;
  bool warned_of_limit = false;
  TraceFormat format;
  GivenOptions given;
  DeviceTarget target;
  ReplaySettings settings;
  std::optional<Capacity> capacity;
  std::optional<nlohmann::json> before;  // --compare
};

std::string short_name(const std::string& path) {
  return path == "-" ? "standard input" : std::filesystem::path(path).filename().string();
}

// Why each run that ended out of memory did, as `nofrag explain` says it.
Explained verdict_on(const Trace& trace, const ReplayRun& run, Bytes device_memory) {
  return explain_failure(trace,
                         {run.oom->event,
                          run.capacity.value_or(device_memory),
                          run.oom->reserved,
                          run.allocator,
                          run.oom->limit,
                          {},
                          run.oom->free_granules});
}

// What fails under nofrag too was short: then nofrag's end is explained for the others as well.
nlohmann::ordered_json explained(const Trace& trace,
                                 const TraceReport& report,
                                 Bytes device_memory) {
  const auto nofrag = std::find_if(report.runs.begin(), report.runs.end(), is_nofrag);
  const bool short_anyway = nofrag != report.runs.end() && nofrag->oom && !nofrag->oom->limit;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ReplayRun& run : report.runs) {
    if (!run.oom) {
      continue;
    }
    const bool puts_off = short_anyway && !is_nofrag(run) && run.oom->event <= nofrag->oom->event;
    Explained verdict = verdict_on(trace, puts_off ? *nofrag : run, device_memory);
    if (puts_off) {
      const std::uint64_t earlier = nofrag->oom->event - run.oom->event;
      verdict.diagnosis.evidence.push_back(
          earlier == 0 ? run.allocator + " fails at the same request"
                       : fmt::format("{} fails {} events earlier; remapping only puts the end off",
                                     run.allocator,
                                     earlier));
    }
    all.push_back({{"allocator", run.allocator}, {"explain", explain_json(verdict)}});
  }
  return all;
}

TraceReport replay_one(const std::string& path,
                       const Trace& trace,
                       Plan& plan,
                       const ReplayArguments& arguments,
                       Progress& progress,
                       nlohmann::ordered_json* details) {
  const bool with_min_capacity = arguments.min_capacity;
  RunObservers observers;
  TraceReport report;
  report.trace = summarize(path, trace);
  ReplaySession session(trace, plan.target, plan.settings);
  plan.fit(session);
  std::optional<Bytes> capacity;
  if (plan.capacity) {
    capacity = plan.capacity->resolve(trace.peak_live, session.granule());
  }
  plan.check_limit(session, capacity);
  const auto update = [&](std::uint64_t done) { progress.update(done); };
  for (const std::string& allocator : plan.allocators) {
    progress.begin(fmt::format("{}: {}", short_name(path), allocator), trace.events.size());
    observers.push_back(arguments.html.empty() ? nullptr : make_report_observer(trace));
    report.runs.push_back(session.run(allocator, capacity, update, observers.back().get()));
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
  if (!arguments.html.empty()) {
    details->push_back(report_details(trace, report, observers));
    details->back()["explained"] = explained(trace, report, session.device_memory());
  }
  for (const std::string& note : session.notes()) {
    say("note: " + note);
  }
  return report;
}

// The worst of all runs. Where nofrag played too, a peer that ends as it would on a real device is no fault.
ExitCode exit_code(const std::vector<TraceReport>& reports) {
  ExitCode code = ExitCode::kOk;
  for (const TraceReport& report : reports) {
    const bool with_nofrag = std::any_of(report.runs.begin(), report.runs.end(), is_nofrag);
    for (const ReplayRun& run : report.runs) {
      if (!run.fault.empty() && !(with_nofrag && !run.fault_reason.empty())) {
        throw RunError(run.allocator + " on " + run.device + ": " + run.fault);
      }
      if (!run.completed && run.fault.empty()) {
        code = ExitCode::kOutOfMemory;
      }
    }
  }
  return code;
}

ExitCode replay(const ReplayArguments& arguments, bool with_page_only) {
  const bool with_table = !with_page_only && !arguments.quiet;
  Plan plan(arguments);
  std::vector<std::string> inputs = arguments.traces;
  inputs.push_back(plan.target.file());
  refuse_overwriting(inputs,
                     {{"--json", arguments.json},
                      {with_page_only ? "-o" : "--html", arguments.html, OutputKind::kPage}});
  confirm_options(plan.given);
  Progress progress(!arguments.quiet);
  std::vector<TraceReport> reports;
  nlohmann::ordered_json details = nlohmann::ordered_json::array();
  for (const std::string& path : arguments.traces) {
    const std::vector<Trace> traces = load_or_throw(path, plan.format, arguments.trace_device);
    for (const Trace& trace : traces) {
      reports.push_back(replay_one(path, trace, plan, arguments, progress, &details));
      reports.back().trace.several_devices = traces.size() > 1;
    }
  }
  if (!arguments.json.empty()) {
    write_output(arguments.json, json_text(replay_json(reports)));
  }
  if (!arguments.html.empty()) {
    write_output(arguments.html, report_page(reports, details));
  }
  if (with_table && arguments.json != "-" && arguments.html != "-") {
    write_output("-", replay_table(reports));
    if (plan.before) {
      write_output("-", comparison_table(*plan.before, reports));
    }
  }
  return exit_code(reports);
}

}  // namespace

ExitCode run_replay(const ReplayArguments& arguments) {
  return replay(arguments, false);
}

ExitCode run_report(const ReplayArguments& arguments) {
  const ExitCode code = replay(arguments, true);
  return code == ExitCode::kOutOfMemory ? ExitCode::kOk : code;
}

}  // namespace nofrag
