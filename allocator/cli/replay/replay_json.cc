#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include <nofrag/version.h>

#include "cli/replay/replay_report.h"

namespace nofrag {
namespace {

using nlohmann::ordered_json;

// Reports are read by people too: a microsecond's thousandth, a ratio's millionth say nothing.
ordered_json rounded(double value, double unit) {
  return std::round(value / unit) * unit;
}
ordered_json microseconds(double value) {
  return std::round(value * 1000.0) / 1000.0;
}
ordered_json ratio(Bytes part, Bytes whole) {
  if (whole.is_zero()) {
    return nullptr;
  }
  return std::round(static_cast<double>(part.count()) / static_cast<double>(whole.count()) * 1e6) /
         1e6;
}

ordered_json calls_json(const ReplayRun& run) {
  if (!run.ledger) {
    ordered_json calls = ordered_json::object();
    if (run.driver_mallocs) {
      calls["malloc"] = *run.driver_mallocs;
    }
    if (run.driver_frees) {
      calls["free"] = *run.driver_frees;
    }
    return calls;
  }
  const DriverLedger& ledger = *run.ledger;
  const auto sum = [&](std::initializer_list<DriverCall> calls) {
    std::uint64_t total = 0;
    for (const DriverCall call : calls) {
      total += ledger.count(call);
    }
    return total;
  };
  return {{"create", ledger.count(DriverCall::kCreate)},
          {"map", ledger.count(DriverCall::kMap)},
          {"set_access", ledger.count(DriverCall::kSetAccess)},
          {"unmap", ledger.count(DriverCall::kUnmap)},
          {"release", ledger.count(DriverCall::kRelease)},
          {"malloc", ledger.count(DriverCall::kMalloc)},
          {"free", ledger.count(DriverCall::kFree)},
          {"sync",
           sum({DriverCall::kEventSynchronize,
                DriverCall::kStreamSynchronize,
                DriverCall::kDeviceSynchronize})},
          {"event",
           sum({DriverCall::kEventCreate,
                DriverCall::kEventDestroy,
                DriverCall::kEventRecord,
                DriverCall::kEventQuery,
                DriverCall::kStreamWait})}};
}

// Every kind of call that was made, by its own name: how often, and the time of all of them.
ordered_json us_by_call_json(const DriverLedger& ledger) {
  ordered_json out = ordered_json::object();
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    if (ledger.calls[i] > 0) {
      out[to_string(static_cast<DriverCall>(i))] = {{"calls", ledger.calls[i]},
                                                    {"us", microseconds(ledger.microseconds[i])}};
    }
  }
  return out;
}

ordered_json oom_json(const std::optional<ReplayOom>& oom) {
  if (!oom) {
    return nullptr;
  }
  ordered_json out = {{"event", oom->event},
                      {"requested_bytes", oom->requested.count()},
                      {"live_bytes", oom->live.count()},
                      {"reserved_bytes", oom->reserved.count()},
                      {"free_granule_bytes", oom->free_granules.count()},
                      {"cause", oom->cause}};
  if (oom->limit) {
    out["limit_bytes"] = oom->limit->count();
  }
  return out;
}

ordered_json run_json(const TraceSummary& trace, const ReplayRun& run) {
  ordered_json out = {{"allocator", run.allocator}, {"device", run.device}};
  if (run.is_model || run.allocator.rfind("torch-", 0) == 0) {
    out["model"] = run.is_model;
  }
  if (run.conf) {
    out["conf"] = *run.conf;
  }
  out["capacity_bytes"] = nullptr;
  if (run.capacity) {
    out["capacity_bytes"] = run.capacity->count();
  }
  out["completed"] = run.completed;
  out["oom"] = oom_json(run.oom);
  if (!run.fault.empty()) {
    out["error"] = run.fault_reason.empty() ? run.fault : run.fault + ": " + run.fault_reason;
  }
  out["peak_reserved_bytes"] = run.peak_reserved.count();
  out["reserved_over_live"] = ratio(run.peak_reserved, trace.peak_live);
  out["lower_bound_bytes"] = trace.peak_live.count();
  out["granule_bound_bytes"] = trace.granule_bound.count();
  out["driver_us"] = nullptr;
  out["driver_us_percent_of_trace"] = nullptr;
  out["driver_us_quarters"] = nullptr;
  if (run.driver_us) {
    out["driver_us"] = microseconds(*run.driver_us);
    if (trace.duration_us > 0) {
      out["driver_us_percent_of_trace"] =
          std::round(*run.driver_us / static_cast<double>(trace.duration_us) * 1e8) / 1e6;
    }
    out["driver_us_quarters"] = ordered_json::array();
    for (const double quarter : run.driver_us_quarters) {
      out["driver_us_quarters"].push_back(microseconds(quarter));
    }
  }
  out["driver_calls"] = calls_json(run);
  out["driver_us_by_call"] = nullptr;
  if (run.ledger) {
    out["driver_us_by_call"] = us_by_call_json(*run.ledger);
  }
  out["host_ns_per_event"] = nullptr;
  if (const std::optional<double> host_ns = host_ns_per_event(run)) {
    out["host_ns_per_event"] = rounded(*host_ns, 0.125);
  }
  return out;
}

ordered_json trace_json(const TraceReport& report) {
  const TraceSummary& trace = report.trace;
  ordered_json out = {{"path", trace.path},
                      {"format", std::string(to_string(trace.format))},
                      {"events", trace.events},
                      {"allocations", trace.allocations},
                      {"frees", trace.frees},
                      {"streams", trace.streams},
                      {"peak_live_bytes", trace.peak_live.count()},
                      {"live_at_end_bytes", trace.live_at_end.count()},
                      {"duration_us", trace.duration_us},
                      {"granule_bound_bytes", trace.granule_bound.count()},
                      {"runs", ordered_json::array()},
                      {"min_capacity", ordered_json::array()}};
  if (trace.several_devices) {
    out["trace_device"] = trace.device;
    if (!trace.device_name.empty()) {
      out["trace_device_name"] = trace.device_name;
    }
  }
  if (!trace.warnings.empty()) {
    out["warnings"] = trace.warnings;
  }
  if (trace.recorded) {
    const RecordedSummary& recorded = *trace.recorded;
    out["recorded"] = {{"peak_live_bytes", recorded.peak_live.count()},
                       {"peak_reserved_bytes", nullptr},
                       {"threads", recorded.threads},
                       {"lost_events", recorded.lost_events},
                       {"whole", recorded.whole}};
    if (recorded.peak_reserved) {
      out["recorded"]["peak_reserved_bytes"] = recorded.peak_reserved->count();
    }
  }
  if (trace.recorded_oom) {
    out["recorded_oom"] = {{"event", trace.recorded_oom->event},
                           {"requested_bytes", trace.recorded_oom->requested.count()},
                           {"count", trace.recorded_oom->count},
                           {"largest_bytes", trace.recorded_oom->largest.count()},
                           {"live_bytes", trace.recorded_oom->live.count()}};
  }
  for (const ReplayRun& run : report.runs) {
    out["runs"].push_back(run_json(trace, run));
  }
  for (const MinCapacityResult& result : report.min_capacity) {
    ordered_json entry = {
        {"allocator", result.allocator}, {"bytes", nullptr}, {"over_live", nullptr}};
    if (result.bytes) {
      entry["bytes"] = result.bytes->count();
      entry["over_live"] = ratio(*result.bytes, trace.peak_live);
    }
    out["min_capacity"].push_back(std::move(entry));
  }
  return out;
}

}  // namespace

// Blocks of a granule or more have whole granules of their own; what is smaller is packed without loss.
Bytes granule_bound(const Trace& trace) {
  constexpr Bytes kWholeGranule = 2 * kMiB;
  Bytes large;
  Bytes small;
  Bytes most;
  for (const TraceEvent& event : trace.events) {
    const Bytes held = round_up(Bytes(event.size), kTraceRounding);
    Bytes& sum = held >= kWholeGranule ? large : small;
    const Bytes part = held >= kWholeGranule ? round_up(held, kWholeGranule) : held;
    if (event.is_free()) {
      sum -= part;
    } else {
      sum += part;
      most = std::max(most, large + round_up(small, kWholeGranule));
    }
  }
  return most;
}

namespace {

std::optional<RecordedOom> recorded_oom(const Trace& trace) {
  if (trace.marks.empty()) {
    return std::nullopt;
  }
  const TraceMark& last = trace.marks.back();
  RecordedOom oom{last.event, Bytes(last.requested), trace.marks.size(), Bytes(0), Bytes(0)};
  Bytes live;
  std::size_t done = 0;
  for (const TraceMark& mark : trace.marks) {
    for (; done < std::min<std::size_t>(mark.event, trace.events.size()); ++done) {
      const TraceEvent& event = trace.events[done];
      const Bytes held = round_up(Bytes(event.size), kTraceRounding);
      live = event.is_free() ? live - held : live + held;
    }
    if (Bytes(mark.requested) >= oom.largest) {
      oom.largest = Bytes(mark.requested);
      oom.live = live;
    }
  }
  return oom;
}

}  // namespace

TraceSummary summarize(const std::string& path, const Trace& trace) {
  std::optional<RecordedSummary> recorded;
  if (trace.recording != nullptr && !trace.recording->blocks.empty()) {
    const Recording& from = *trace.recording;
    const std::uint8_t device = from.blocks.front().device;
    recorded.emplace();
    recorded->peak_live = from.peak_held.at(device);
    if (const auto peak = from.peak_reserved.find(device); peak != from.peak_reserved.end()) {
      recorded->peak_reserved = peak->second;
    }
    recorded->threads = from.threads.size();
    recorded->lost_events = from.lost;
    recorded->whole = from.whole;
  }
  return {path,
          trace.format,
          trace.events.size(),
          trace.allocations,
          trace.frees,
          trace.streams.size(),
          trace.peak_live,
          trace.live_at_end,
          trace.duration_us(),
          granule_bound(trace),
          trace.device,
          trace.device_name,
          false,
          trace.warnings,
          recorded,
          recorded_oom(trace)};
}

ordered_json replay_json(const std::vector<TraceReport>& reports) {
  ordered_json out = {{"schema", "nofrag.replay/1"},
                      {"nofrag_version", NOFRAG_VERSION_STRING},
                      {"traces", ordered_json::array()}};
  for (const TraceReport& report : reports) {
    out["traces"].push_back(trace_json(report));
  }
  return out;
}

}  // namespace nofrag
