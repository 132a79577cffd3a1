// metrics_text: the numbers of a process in Prometheus' text format.
//
// Layer: stats. Owns: nothing. Units: bytes and seconds, as the names say. Invariants: the names are a
// contract (docs/metrics.md); every sample has the labels device, pool and pid; the same numbers as in the
// text and JSON of stats_report. Threads: pure function. Failure: none. Cost: host only, some KB.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stats/stats_report.h"

namespace nofrag {

struct CauseCount {
  std::string_view cause;
  std::uint64_t count = 0;
};

struct DeviceMetrics {
  DeviceReport report;               // of gauges(): `stranded` is all that is free in used handles
  std::optional<Bytes> driver_free;  // as last asked
  Bytes headroom;
  std::optional<double> headroom_seconds;  // no forecast: no sample
  std::vector<CauseCount> failures;
};

[[nodiscard]] std::string metrics_text(const StatsReport& process,
                                       const std::vector<DeviceMetrics>& devices);

}  // namespace nofrag
