// Failures that the recorder saw itself: nothing has to be guessed of the device, its limit or its other users.
#include <algorithm>

#include <fmt/format.h>

#include "cli/explain/explain.h"
#include "cli/replay/replay_session.h"
#include "config/human_bytes.h"
#include "diagnose/classify.h"

namespace nofrag {
namespace {

// What foreign files state may be anything; allocations of traces are this large at most.
constexpr std::uint64_t kLargestRequest = std::uint64_t{1} << 60;
constexpr Bytes kLargestDevice = 16384 * kGiB;

// The request that failed, at a time at which what came before it has happened.
FailedRequest failed_request(const Trace& trace, const TraceMark& mark) {
  const std::uint64_t before = mark.event == 0 ? 0 : trace.events[mark.event - 1].time_us;
  return {mark.event, std::min(mark.requested, kLargestRequest), std::max(mark.time_us, before)};
}

std::optional<Bytes> bytes(const std::optional<std::uint64_t>& count) {
  return count ? std::optional<Bytes>(Bytes(*count)) : std::nullopt;
}

// The trace until the failure, and the request that failed as its last event.
Trace with_request(const Trace& trace, const TraceMark& mark) {
  Trace cut;
  cut.events.assign(trace.events.begin(),
                    trace.events.begin() + static_cast<std::ptrdiff_t>(mark.event));
  cut.streams = trace.streams.empty() ? std::vector<std::uint64_t>{0} : trace.streams;
  for (const TraceEvent& event : cut.events) {
    ++(event.is_free() ? cut.frees : cut.allocations);
  }
  // Whose stream it was is not recorded: the last that did anything.
  const std::uint32_t stream = cut.events.empty() ? 0 : cut.events.back().stream();
  const FailedRequest failed = failed_request(trace, mark);
  cut.events.push_back(
      {failed.time_us, failed.size, static_cast<std::uint32_t>(cut.allocations), stream});
  ++cut.allocations;
  cut.peak_live = trace.peak_live;
  return cut;
}

// The bytes were there, in pieces: would remapping have served it? Empty where a replay cannot tell.
std::optional<bool> remapping_serves(const Trace& trace, const TraceMark& mark, Bytes memory) {
  const Trace cut = with_request(trace, mark);
  const DeviceTarget target = DeviceTarget::parse(kDefaultDevice);
  ReplaySession session(cut, target, {});
  const Bytes capacity =
      Bytes(memory.count() / session.granule().count() * session.granule().count());
  if (capacity.is_zero() || capacity > kLargestDevice) {
    return std::nullopt;
  }
  const ReplayRun run = session.run("nofrag", capacity, [](std::uint64_t) {});
  // Earlier than the job itself failed: then it had more memory at that time.
  const bool earlier = run.oom && run.oom->event < mark.event;
  return run.fault.empty() && !earlier ? std::optional<bool>(run.completed) : std::nullopt;
}

void prove_fragmentation(const Trace& trace, const TraceMark& mark, Explained* explained) {
  Failure& f = explained->failure;
  const std::optional<bool> served =
      remapping_serves(trace, mark, *f.reserved() + f.driver_free.value_or(Bytes(0)));
  if (!served) {
    return;
  }
  if (*served) {
    explained->diagnosis.confidence = kProven;
    explained->diagnosis.evidence.emplace_back(
        "the same requests with the same memory are all served by nofrag, this one too");
    return;
  }
  f.remapping = true;
  f.reachable = f.cached;
  explained->diagnosis = classify(f);
  f.remapping = false;
  explained->diagnosis.evidence.emplace_back(
      "in a replay not even nofrag, which remaps free memory, finds room for it");
}

std::string recorded_line(const Trace& trace, const TraceMark& mark) {
  std::string text = fmt::format("the recording itself tells of it: {} were refused at event {}",
                                 human_bytes(Bytes(mark.requested)),
                                 mark.event);
  if (trace.marks.size() > 1) {
    text += fmt::format(", the last of {} refusals", trace.marks.size());
  }
  return text;
}

}  // namespace

Explained explain_recorded(const Trace& trace) {
  const TraceMark& mark = trace.marks.back();
  Explained explained = trace_until(trace, failed_request(trace, mark));
  Failure& f = explained.failure;
  const bool by_nofrag = trace.recording != nullptr;
  f.remapping = by_nofrag;
  if (trace.device_bytes > 0) {
    f.capacity = Bytes(trace.device_bytes);
  }
  f.driver_free = bytes(mark.free_bytes);
  f.limit = bytes(mark.limit_bytes);
  f.limit_reached = f.limit.has_value();
  if (mark.reserved_bytes) {
    f.cached = Bytes(*mark.reserved_bytes) - std::min(Bytes(*mark.reserved_bytes), *f.live);
    f.reachable = f.cached;
  }
  explained.diagnosis = classify(f);
  blame_limit(f, &explained.diagnosis);
  if (explained.diagnosis.cause == Cause::kFragmentation && f.reserved()) {
    prove_fragmentation(trace, mark, &explained);
  }
  Diagnosis& d = explained.diagnosis;
  if (d.cause == Cause::kRefusedBelow && !by_nofrag) {
    d.evidence.emplace_back(
        "(a memory fraction that the process has set refuses like this; the snapshot does not "
        "tell)");
  }
  d.evidence.push_back(recorded_line(trace, mark));
  return explained;
}

Explained explain_nothing(const std::string& why) {
  Explained explained;
  explained.kind = "unfailed";
  explained.failure.source = "trace";
  explained.diagnosis.evidence.push_back(why);
  explained.diagnosis.missing.emplace_back("a recording that reaches the failure");
  return explained;
}

Explained explain_traces(const std::vector<Trace>& traces, const ExplainArguments& arguments) {
  const auto by_last_failure = [](const Trace& a, const Trace& b) {
    const auto time = [](const Trace& t) {
      return t.marks.empty() ? 0 : t.marks.back().time_us + 1;
    };
    return time(a) < time(b);
  };
  const auto by_peak = [](const Trace& a, const Trace& b) { return a.peak_live < b.peak_live; };
  const Trace* chosen = &*std::max_element(traces.begin(), traces.end(), by_last_failure);
  std::optional<Explained> explained;
  if (!chosen->marks.empty() && !arguments.capacity) {
    explained = explain_recorded(*chosen);
  } else {
    confirm_options(nofrag_options(arguments.conf));
    // Of several devices the first that fails, else the one that came closest.
    for (const Trace& trace : traces) {
      if (!explained && !trace.events.empty()) {
        chosen = &trace;
        explained = explain_trace(trace, arguments);
        const bool failed = explained->failure.requested.has_value();
        if (!failed && traces.size() > 1) {
          explained.reset();
        }
      }
    }
    if (!explained) {
      chosen = &*std::max_element(traces.begin(), traces.end(), by_peak);
      explained =
          chosen->events.empty() ? explain_recorded(*chosen) : explain_trace(*chosen, arguments);
    }
  }
  if (traces.size() > 1) {
    explained->diagnosis.evidence.push_back(
        fmt::format("this is {}; the file tells of {} devices, and --trace-device asks for another",
                    chosen->device_name.empty() ? fmt::format("device {}", chosen->device)
                                                : chosen->device_name,
                    traces.size()));
  }
  return std::move(*explained);
}

}  // namespace nofrag
