#include <algorithm>

#include "cli/explain/explain.h"
#include "cli/replay/capacity.h"
#include "cli/replay/replay_session.h"
#include "config/human_bytes.h"
#include "config/option_table.h"
#include "diagnose/classify.h"

namespace nofrag {
namespace {

Explained nothing_failed(const Trace& trace, Bytes capacity, const std::string& allocator) {
  Explained explained;
  explained.kind = "unfailed";
  explained.failure.source = "trace";
  explained.diagnosis.evidence.push_back(
      "the trace ends without a failure under " + allocator + " with " + human_bytes(capacity) +
      "; its live memory peaks at " + human_bytes(trace.peak_live));
  explained.diagnosis.missing.emplace_back("the capacity at which it failed (--capacity)");
  return explained;
}

// The option that is the limit, as it is written: the lower of both holds.
std::string name_of_limit(const GivenOptions& given, Bytes device_memory) {
  const Options& options = given.options;
  const auto share = static_cast<std::uint64_t>(static_cast<double>(device_memory.count()) *
                                                options.memory_fraction);
  return options.limit.count() <= share
             ? "limit:" + format_bytes(options.limit) + " in " + given.limit_source
             : "memory_fraction:" + format_number(options.memory_fraction) + " in " +
                   given.fraction_source;
}

void say_proof(const std::string& text, double confidence, Diagnosis* d) {
  d->confidence = confidence;
  d->evidence.push_back(text);
}

// nofrag ran into its own limit. Whether that is why is seen without it.
Explained explain_limit(const Trace& trace,
                        const TraceFailure& where,
                        const ReplayRun& without_limit) {
  if (!without_limit.oom) {
    Explained explained = explain_failure(trace, where);
    const std::string proof = "without the limit the same trace runs to its end, and holds " +
                              human_bytes(without_limit.peak_reserved) + " at most";
    say_proof(proof,
              explained.diagnosis.cause == Cause::kLimit ? kProven : explained.diagnosis.confidence,
              &explained.diagnosis);
    return explained;
  }
  Explained explained = explain_failure(
      trace,
      {without_limit.oom->event, where.capacity, without_limit.oom->reserved, where.allocator});
  explained.diagnosis.evidence.push_back(where.limit_name + " ends it " +
                                         std::to_string(without_limit.oom->event - where.failing) +
                                         " events earlier; lifting it only puts the end off");
  return explained;
}

}  // namespace

Explained explain_failure(const Trace& trace, const TraceFailure& where) {
  const TraceEvent& failing = trace.events[where.failing];
  Explained explained = trace_until(trace, {where.failing, failing.size, failing.time_us, true});
  Failure& f = explained.failure;
  f.capacity = where.capacity;
  const Bytes held = std::clamp(where.reserved, *f.live, std::max(*f.live, where.capacity));
  f.cached = held - *f.live;
  f.remapping = where.allocator == "nofrag";
  // What the trace proves is live; where its free parts lay is the allocator's matter.
  f.reachable = f.cached;
  if (f.remapping && where.free_granules) {
    f.beside_live = *f.cached - std::min(*f.cached, *where.free_granules);
  }
  if (where.limit) {
    f.limit = where.limit;
    f.limit_reached = true;
    f.limit_name = where.limit_name;
    f.driver_free = where.capacity - std::min(where.capacity, held);
  }
  explained.diagnosis = classify(f);
  blame_limit(f, &explained.diagnosis);
  return explained;
}

// The truth first: what the best that free memory can do cannot serve was short. Only what it serves and
// the allocator asked about does not is that allocator's fragmentation.
Explained explain_trace(const Trace& trace, const ExplainArguments& arguments) {
  const GivenOptions given = nofrag_options(arguments.conf);
  const DeviceTarget target = DeviceTarget::parse(kDefaultDevice);
  ReplaySettings settings;
  settings.options = given.options;
  ReplaySession session(trace, target, settings);
  std::optional<Bytes> capacity;
  if (arguments.capacity) {
    capacity = Capacity::parse(*arguments.capacity).resolve(trace.peak_live, session.granule());
  }
  const Bytes most = capacity.value_or(target.open({}).info.total_memory);
  const auto run_in = [&](ReplaySession& on, const std::string& allocator) {
    ReplayRun done = on.run(allocator, capacity, [](std::uint64_t) {});
    if (!done.fault.empty()) {
      throw RunError(done.allocator + ": " + done.fault +
                     (done.fault_reason.empty() ? "" : ": " + done.fault_reason));
    }
    return done;
  };
  const ReplayRun remapped = run_in(session, "nofrag");
  const ReplayRun asked =
      arguments.allocator == "nofrag" ? remapped : run_in(session, arguments.allocator);
  if (remapped.oom) {
    TraceFailure where{
        remapped.oom->event, most, remapped.oom->reserved, "nofrag", remapped.oom->limit};
    where.free_granules = remapped.oom->free_granules;
    if (where.limit) {
      where.limit_name = name_of_limit(given, most);
      ReplaySettings without = settings;
      without.options.limit = kNoLimit;
      without.options.memory_fraction = 1;
      ReplaySession unlimited(trace, target, without);
      return explain_limit(trace, where, run_in(unlimited, "nofrag"));
    }
    Explained explained = explain_failure(trace, where);
    if (asked.oom && asked.oom->event < remapped.oom->event) {
      explained.diagnosis.evidence.push_back(
          arguments.allocator + " fails " + std::to_string(remapped.oom->event - asked.oom->event) +
          " events earlier, for want of memory in one piece; remapping only puts the end off");
    }
    return explained;
  }
  if (!asked.oom) {
    return nothing_failed(trace, most, arguments.allocator);
  }
  Explained explained =
      explain_failure(trace, {asked.oom->event, most, asked.oom->reserved, arguments.allocator});
  if (explained.diagnosis.cause == Cause::kFragmentation) {
    say_proof("the same trace with the same memory runs to its end on nofrag",
              kProven,
              &explained.diagnosis);
  }
  return explained;
}

}  // namespace nofrag
