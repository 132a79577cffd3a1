#include <algorithm>

#include <fmt/format.h>

#include "cli/printable.h"
#include "cli/replay/replay_report.h"
#include "config/human_bytes.h"

namespace nofrag {
namespace {

double ratio_of(Bytes part, Bytes whole) {
  return static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

std::string grouped(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3; at -= 3) {
    digits.insert(at - 3, 1, ',');
  }
  return digits;
}

std::string plural(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : "s");
}

struct Row {
  std::string allocator;
  std::string reserved = "-";
  std::string ratio = "-";
  std::string driver_ms = "-";
  std::string percent = "-";
  std::string host = "-";
  std::string min_capacity;
  std::string outcome;
};

constexpr std::string_view kRow = "  {:<16} {:>13} {:>9} {:>9} {:>6} {:>8} {:>8}  {}\n";
constexpr std::string_view kRowWithout = "  {:<16} {:>13} {:>9} {:>9} {:>6} {:>8}  {}\n";

std::string line(const Row& row, bool with_min) {
  return with_min ? fmt::format(kRow,
                                row.allocator,
                                row.reserved,
                                row.ratio,
                                row.driver_ms,
                                row.percent,
                                row.host,
                                row.min_capacity,
                                row.outcome)
                  : fmt::format(kRowWithout,
                                row.allocator,
                                row.reserved,
                                row.ratio,
                                row.driver_ms,
                                row.percent,
                                row.host,
                                row.outcome);
}

Row row_of(const TraceReport& report, const ReplayRun& run) {
  const TraceSummary& trace = report.trace;
  Row row;
  row.allocator = run.allocator;
  row.reserved = human_bytes(run.peak_reserved);
  if (!trace.peak_live.is_zero()) {
    row.ratio = fmt::format("{:.3f}", ratio_of(run.peak_reserved, trace.peak_live));
  }
  if (run.driver_us) {
    row.driver_ms = fmt::format("{:.1f}", *run.driver_us / 1000.0);
    if (trace.duration_us > 0) {
      row.percent =
          fmt::format("{:.2f}", 100.0 * *run.driver_us / static_cast<double>(trace.duration_us));
    }
  }
  if (const std::optional<double> host_ns = host_ns_per_event(run)) {
    row.host = fmt::format("{:.0f}", *host_ns);
  }
  for (const MinCapacityResult& result : report.min_capacity) {
    if (result.allocator == run.allocator && !trace.peak_live.is_zero()) {
      row.min_capacity =
          result.bytes ? fmt::format("{:.3f}", ratio_of(*result.bytes, trace.peak_live)) : "none";
    }
  }
  row.outcome = run.completed ? "completed"
                : !run.fault.empty()
                    ? "failed"
                    : fmt::format("OOM, event {}", grouped(run.oom ? run.oom->event : 0));
  return row;
}

std::string oom_lines(const ReplayRun& run) {
  if (!run.fault.empty()) {
    const std::string reason =
        run.fault_reason.empty() ? "" : fmt::format("    {}\n", run.fault_reason);
    return fmt::format("  {} failed: {}\n{}", run.allocator, run.fault, reason);
  }
  if (!run.oom) {
    return "";
  }
  const ReplayOom& oom = *run.oom;
  return fmt::format(
      "  {}: asked for {} with {} live, {} reserved,\n"
      "    {} of it in free granules; cause: {}\n",
      run.allocator,
      human_bytes(oom.requested),
      human_bytes(oom.live),
      human_bytes(oom.reserved),
      human_bytes(oom.free_granules),
      oom.limit ? "limit of " + human_bytes(*oom.limit) : oom.cause);
}

// What no allocator can beat, and what one can hardly beat that shares no granule between large blocks.
std::string bound_lines(const TraceSummary& trace, bool with_min) {
  if (trace.peak_live.is_zero()) {
    return "";
  }
  Row live;
  live.allocator = "(peak live)";
  live.reserved = human_bytes(trace.peak_live);
  live.ratio = "1.000";
  live.outcome = "lower bound";
  Row granules;
  granules.allocator = "(whole granules)";
  granules.reserved = human_bytes(trace.granule_bound);
  granules.ratio = fmt::format("{:.3f}", ratio_of(trace.granule_bound, trace.peak_live));
  granules.outcome = "bound without sharing";
  if (with_min) {
    live.min_capacity = granules.min_capacity = "-";
  }
  return line(live, with_min) + line(granules, with_min);
}

// A path that would not fit keeps its end.
std::string shortened(const std::string& given) {
  const std::string path = printable(given);
  constexpr std::size_t kMost = 96;
  return path.size() <= kMost ? path : "..." + path.substr(path.size() - kMost + 3);
}

std::string device_of(const TraceSummary& trace) {
  std::string text = shortened(trace.path);
  if (trace.several_devices) {
    text += trace.device_name.empty() ? fmt::format(", device {}", trace.device)
                                      : ", " + trace.device_name;
  }
  return text;
}

// What the recorded job asked for and did not get: no run is asked for it.
std::string refused_lines(const TraceSummary& trace) {
  if (!trace.recorded_oom) {
    return "";
  }
  const RecordedOom& oom = *trace.recorded_oom;
  const bool one = oom.count == 1;
  return fmt::format(
      "  note: {} {} refused when this was recorded ({}{},\n"
      "    with {} live) and {} not in these numbers; nofrag explain says why, and what helps\n",
      plural(oom.count, "request"),
      one ? "was" : "were",
      one ? "" : "the largest: ",
      human_bytes(oom.largest),
      human_bytes(oom.live),
      one ? "is" : "are");
}

std::string trace_part(const TraceReport& report) {
  const TraceSummary& trace = report.trace;
  const bool with_min = !report.min_capacity.empty();
  std::string text = fmt::format("{}\n  {}, {}, {:.1f} s; peak live {}",
                                 device_of(trace),
                                 plural(trace.events, "event"),
                                 plural(trace.streams, "stream"),
                                 static_cast<double>(trace.duration_us) / 1e6,
                                 human_bytes(trace.peak_live));
  if (!report.runs.empty()) {
    const ReplayRun& first = report.runs.front();
    text += fmt::format("; on {}", first.device);
    if (first.capacity) {
      text += fmt::format(" with {}", human_bytes(*first.capacity));
    }
  }
  if (trace.recorded && trace.recorded->peak_reserved) {
    text += fmt::format("\n  recorded with {}: held {} at its peak",
                        plural(trace.recorded->threads, "thread"),
                        human_bytes(*trace.recorded->peak_reserved));
  }
  if (trace.recorded_oom) {
    const RecordedOom& oom = *trace.recorded_oom;
    text +=
        fmt::format("\n  {} out of memory: {} were refused at event {}{}",
                    oom.event >= trace.events ? "the recorded job ended" : "the recorded job ran",
                    human_bytes(oom.requested),
                    grouped(oom.event),
                    oom.count > 1 ? ", the last time" : "");
  }
  text += "\n\n";
  text += line({"allocator",
                "peak reserved",
                "res./live",
                "driver ms",
                "% time",
                "ns/event",
                "min/live",
                "outcome"},
               with_min);
  for (const ReplayRun& run : report.runs) {
    text += line(row_of(report, run), with_min);
  }
  text += bound_lines(trace, with_min);
  for (const ReplayRun& run : report.runs) {
    text += oom_lines(run);
  }
  text += refused_lines(trace);
  return text + "\n";
}

std::string legend(const std::vector<TraceReport>& reports) {
  bool with_min = false;
  bool models = false;
  for (const TraceReport& report : reports) {
    with_min = with_min || !report.min_capacity.empty();
    models = models || std::any_of(report.runs.begin(),
                                   report.runs.end(),
                                   [](const ReplayRun& run) { return run.is_model; });
  }
  std::string text =
      "Lower is better in every column. peak reserved: most memory held from the driver;\n"
      "res./live: that over what the job itself had live at its peak (1.000 = not a byte lost);\n"
      "driver ms, % time: time in driver calls, and as a share of the recorded job;\n"
      "ns/event: host CPU time of one allocation or free. (peak live) bounds every allocator,\n"
      "(whole granules) those that give each block of 2 MiB or more granules of its own.";
  if (with_min) {
    text += "\nmin/live: smallest device on which the job completes, over peak live.";
  }
  if (models) {
    text += "\ntorch-* are models of PyTorch 2.11's policies, within 1 % of it on recorded jobs.";
  }
  return text + "\n";
}

}  // namespace

std::string replay_table(const std::vector<TraceReport>& reports) {
  std::string text;
  for (const TraceReport& report : reports) {
    text += trace_part(report);
  }
  return text + legend(reports);
}

}  // namespace nofrag
