#include "cli/replay/comparison.h"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "cli/errors.h"
#include "cli/printable.h"
#include "config/human_bytes.h"

namespace nofrag {
namespace {

using nlohmann::json;

constexpr std::string_view kComparisonRow = "  {:<16} {:>13} {:>13} {:>9} {:>10} {:>10}  {}\n";

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// The run of the earlier replay that a run of this one answers to.
const json* find_run(const json& before, const TraceSummary& trace, const std::string& allocator) {
  for (const json& other : before.at("traces")) {
    const bool same_device =
        !trace.several_devices || other.value("trace_device", std::uint64_t{0}) == trace.device;
    if (file_name(other.value("path", std::string())) != file_name(trace.path) || !same_device) {
      continue;
    }
    for (const json& run : other.at("runs")) {
      if (run.value("allocator", std::string()) == allocator) {
        return &run;
      }
    }
  }
  return nullptr;
}

std::string percent(double before, double now) {
  return before > 0 ? fmt::format("{:+.2f} %", 100.0 * (now - before) / before) : "-";
}

std::string milliseconds(const json& value) {
  return value.is_number() ? fmt::format("{:.1f}", value.get<double>() / 1000.0) : "-";
}

std::string outcome_of(bool completed) {
  return completed ? "completed" : "out of memory";
}

std::string row_of(const json& earlier, const ReplayRun& run) {
  const auto held = earlier.value("peak_reserved_bytes", std::uint64_t{0});
  const bool completed = earlier.value("completed", false);
  const json& driver_us = earlier.contains("driver_us") ? earlier["driver_us"] : json();
  std::string outcome = outcome_of(run.completed);
  if (completed != run.completed) {
    outcome = fmt::format("{}, before: {}", outcome, outcome_of(completed));
  }
  return fmt::format(
      kComparisonRow,
      run.allocator,
      human_bytes(Bytes(held)),
      human_bytes(run.peak_reserved),
      percent(static_cast<double>(held), static_cast<double>(run.peak_reserved.count())),
      milliseconds(driver_us),
      run.driver_us ? fmt::format("{:.1f}", *run.driver_us / 1000.0) : "-",
      outcome);
}

}  // namespace

json read_earlier_replay(const std::string& path) {
  std::ifstream file(path);
  const json read = file ? json::parse(file, nullptr, false) : json();
  if (!read.is_object() || read.value("schema", json()) != "nofrag.replay/1" ||
      !read.contains("traces") || !read["traces"].is_array()) {
    throw UsageError("--compare " + path +
                     ": expected the JSON of an earlier replay (nofrag replay --json)");
  }
  for (const json& trace : read["traces"]) {
    if (!trace.is_object() || !trace.contains("runs") || !trace["runs"].is_array()) {
      throw UsageError("--compare " + path +
                       ": a trace without runs; expected the JSON of an earlier replay");
    }
  }
  return read;
}

std::string comparison_table(const json& before, const std::vector<TraceReport>& reports) try {
  std::string text = "\nChanges since the earlier replay:\n";
  for (const TraceReport& report : reports) {
    text += fmt::format("{}\n", printable(file_name(report.trace.path)));
    text += fmt::format(
        kComparisonRow, "allocator", "held before", "now", "change", "ms before", "now", "outcome");
    for (const ReplayRun& run : report.runs) {
      const json* earlier = find_run(before, report.trace, run.allocator);
      text += earlier == nullptr
                  ? fmt::format("  {:<16} not in the earlier replay\n", run.allocator)
                  : row_of(*earlier, run);
    }
  }
  return text;
} catch (const json::exception& problem) {
  throw UsageError(std::string("--compare: not the JSON of a replay: ") + problem.what());
}

}  // namespace nofrag
