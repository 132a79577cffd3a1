// StatsReport: the statistics of a process, and its text, JSON and C forms.
//
// Owns: values only. Layer: stats; it reads device and driver numbers and knows no allocator object
// or process state. Units: bytes, counts, microseconds. Invariants: text, JSON and C structure hold
// the same fields in the same order (stats/device_stats.def). Threads: pure functions.
// Failure: none. Cost: host only. Format: docs/stats.md; kStatsSchemaVersion rises when a field
// changes its meaning or goes.
#pragma once

#include <string>
#include <vector>

#include <nofrag/nofrag.h>

#include "device/device_stats.h"
#include "driver/driver.h"
#include "stats/passed_on.h"

namespace nofrag {

inline constexpr int kStatsSchemaVersion = 1;

struct DeviceReport {
  int device = 0;
  std::string name;
  bool virtual_memory = false;
  DeviceStats stats;
};

struct StatsReport {
  long pid = 0;
  std::string driver;
  DriverLedger ledger;
  std::vector<DeviceReport> devices;  // used ones, by ordinal
  std::vector<PassedOn> passed_on;    // devices on which the program had memory past nofrag
};

[[nodiscard]] std::string stats_text(const StatsReport& report);
[[nodiscard]] std::string stats_json(const StatsReport& report);
// Two lines a device: the peaks, the driver's time, the rungs that served; one more where memory passed nofrag by.
[[nodiscard]] std::string stats_summary(const StatsReport& report);

[[nodiscard]] nofrag_device_stats to_c_stats(const DeviceStats& stats);
[[nodiscard]] nofrag_oom_report to_c_report(int device, const OomReport& report);

// "| `live_bytes` | bytes | ... |" for each field: the table of docs/stats.md.
[[nodiscard]] std::string stats_table();

}  // namespace nofrag
