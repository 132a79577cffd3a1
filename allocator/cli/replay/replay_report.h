// Reports of replays: the JSON object and the table, from the same numbers.
//
// Layer: cli. The JSON is the contract "nofrag.replay/1" (docs/replay.md). Units: as the field
// names say; the table prints MiB/GiB, milliseconds and ratios. Threads: none. Failure: none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/replay/replay_run.h"
#include "trace/trace.h"

namespace nofrag {

struct MinCapacityResult {
  std::string allocator;
  std::optional<Bytes> bytes;
};

// What a report needs of a trace once its events are gone.
struct RecordedSummary {
  Bytes peak_live;  // live blocks with all they had
  std::optional<Bytes> peak_reserved;
  std::uint64_t threads = 0;
  std::uint64_t lost_events = 0;
  bool whole = false;
};
// The requests that the recorded job itself was refused: nothing replays them.
struct RecordedOom {
  std::uint64_t event = 0;  // the last came before it
  Bytes requested;          // by the last
  std::uint64_t count = 0;  // of all
  Bytes largest;            // of all
  Bytes live;  // when the largest was refused (the last time, where it was asked for again)
};
struct TraceSummary {
  std::string path;
  TraceFormat format = TraceFormat::kCsv;
  std::uint64_t events = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t streams = 0;
  Bytes peak_live;
  Bytes live_at_end;
  std::uint64_t duration_us = 0;
  // What an allocator holds at least that never puts two blocks of a granule or more into one granule.
  Bytes granule_bound{};
  std::uint64_t device = 0;
  std::string device_name{};
  bool several_devices = false;  // the file has others too
  std::vector<std::string> warnings{};
  std::optional<RecordedSummary> recorded{};  // of a recording: what the live process had
  std::optional<RecordedOom> recorded_oom{};
};
TraceSummary summarize(const std::string& path, const Trace& trace);
// The bound of TraceSummary, for granules of 2 MiB.
Bytes granule_bound(const Trace& trace);

struct TraceReport {
  TraceSummary trace;
  std::vector<ReplayRun> runs;
  std::vector<MinCapacityResult> min_capacity;
};

nlohmann::ordered_json replay_json(const std::vector<TraceReport>& reports);

// At most 100 columns wide; ends with what the numbers mean.
std::string replay_table(const std::vector<TraceReport>& reports);

}  // namespace nofrag
