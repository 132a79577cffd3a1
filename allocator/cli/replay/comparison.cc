#include "cli/replay/comparison.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "base/json_text.h"
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

std::string read_whole(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), "rb"), [](std::FILE* open) { return std::fclose(open); });
  std::string text;
  if (file != nullptr) {
    char chunk[1 << 14];
    for (std::size_t got = 1; got > 0; text.append(chunk, got)) {
      got = std::fread(chunk, 1, sizeof chunk, file.get());
    }
  }
  if (file == nullptr || std::ferror(file.get()) != 0) {
    throw UsageError(fmt::format("--compare {}: cannot be read ({})", path, std::strerror(errno)));
  }
  return text;
}

// What is read of a replay's JSON has the type it has there.
bool is_run(const json& run) {
  return run.is_object() && run.value("allocator", json()).is_string() &&
         run.value("peak_reserved_bytes", json(0U)).is_number_unsigned() &&
         run.value("completed", json(false)).is_boolean();
}
bool is_trace(const json& trace) {
  return trace.is_object() && trace.value("path", json()).is_string() &&
         trace.value("trace_device", json(0U)).is_number_unsigned() &&
         trace.value("runs", json()).is_array() &&
         std::all_of(trace["runs"].begin(), trace["runs"].end(), is_run);
}

// The earlier replay of a trace: of that very path, or of a file of its name.
const json* find_trace(const json& before, const TraceSummary& trace) {
  const json* of_its_name = nullptr;
  for (const json& other : before["traces"]) {
    if (trace.several_devices && other.value("trace_device", std::uint64_t{0}) != trace.device) {
      continue;
    }
    const auto path = other["path"].get<std::string>();
    if (path == trace.path) {
      return &other;
    }
    if (of_its_name == nullptr && file_name(path) == file_name(trace.path)) {
      of_its_name = &other;
    }
  }
  return of_its_name;
}

// The run in it that a run of this replay answers to.
const json* find_run(const json& earlier, const std::string& allocator) {
  for (const json& run : earlier["runs"]) {
    if (run["allocator"] == allocator) {
      return &run;
    }
  }
  return nullptr;
}

std::string names_in(const json& objects, const char* key) {
  std::vector<std::string> names;
  for (const json& object : objects) {
    std::string name = printable(file_name(object[key].get<std::string>()));
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(std::move(name));
    }
  }
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "));
}

std::string percent(double before, double now) {
  return before > 0 ? fmt::format("{:+.2f} %", 100.0 * (now - before) / before) : "-";
}

std::string milliseconds(const json& value) {
  return value.is_number() ? fmt::format("{:.1f}", value.get<double>() / 1000.0) : "-";
}

std::string outcome_of(bool completed, bool failed) {
  return completed ? "completed" : failed ? "failed" : "out of memory";
}

std::string row_of(const json& earlier, const ReplayRun& run) {
  const auto held = earlier.value("peak_reserved_bytes", std::uint64_t{0});
  const json& driver_us = earlier.contains("driver_us") ? earlier["driver_us"] : json();
  std::string outcome = outcome_of(run.completed, !run.fault.empty());
  const std::string before =
      outcome_of(earlier.value("completed", false), earlier.contains("error"));
  if (before != outcome) {
    outcome += ", before: " + before;
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
  json read = parse_json(read_whole(path));
  if (!read.is_object() || read.value("schema", json()) != "nofrag.replay/1" ||
      !read.contains("traces") || !read["traces"].is_array()) {
    throw UsageError("--compare " + path +
                     ": expected the JSON of an earlier replay (nofrag replay --json)");
  }
  for (std::size_t i = 0; i < read["traces"].size(); ++i) {
    if (!is_trace(read["traces"][i])) {
      throw UsageError(
          fmt::format("--compare {}: traces[{}] is not as replay writes it (path, runs, and of "
                      "each run allocator, "
                      "peak_reserved_bytes, completed); expected the JSON of an earlier replay",
                      path,
                      i));
    }
  }
  return read;
}

std::string comparison_table(const json& before, const std::vector<TraceReport>& reports) {
  std::string text = "\nChanges since the earlier replay:\n";
  for (const TraceReport& report : reports) {
    text += fmt::format("{}\n", printable(file_name(report.trace.path)));
    const json* trace = find_trace(before, report.trace);
    if (trace == nullptr) {
      text += fmt::format("  not in the earlier replay; traces there: {}\n",
                          names_in(before["traces"], "path"));
      continue;
    }
    text += fmt::format(
        kComparisonRow, "allocator", "held before", "now", "change", "ms before", "now", "outcome");
    for (const ReplayRun& run : report.runs) {
      const json* earlier = find_run(*trace, run.allocator);
      text += earlier == nullptr
                  ? fmt::format("  {:<16} not in the earlier replay; allocators there: {}\n",
                                run.allocator,
                                names_in((*trace)["runs"], "allocator"))
                  : row_of(*earlier, run);
    }
  }
  return text;
}

}  // namespace nofrag
