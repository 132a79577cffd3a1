// Comparison: what changed since an earlier replay of the same traces.
//
// Owns: nothing. Layer: cli. The earlier one is its JSON, "nofrag.replay/1"; traces are matched by their file's name
// and device, runs by their allocator. Units: as in the JSON. Threads: none. Failure: reading throws UsageError for
// what is no such JSON. Cost: that of the JSON.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/replay/replay_report.h"

namespace nofrag {

nlohmann::json read_earlier_replay(const std::string& path);

// A line a run; those without a counterpart are named.
std::string comparison_table(const nlohmann::json& before, const std::vector<TraceReport>& reports);

}  // namespace nofrag
