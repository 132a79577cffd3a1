// explain: the parts of `nofrag explain`: from a text or traces to a Failure, and the verdict as JSON.
//
// Layer: cli. Owns: values. Units: bytes. Threads: none. Failure: InputError for a file that cannot be
// read; what can be read and makes no sense is an Explained with cause unknown.
// Cost: a trace is played through allocator models, a text is read once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/timeline.h"
#include "cli/commands.h"
#include "diagnose/failure.h"
#include "trace/trace.h"

namespace nofrag {

// The confidence of what a replay or a recording shows.
inline constexpr double kProven = 0.95;

struct Explained {
  std::string kind;   // "message", "trace", "unfailed" (a trace without a failure) or "nothing"
  std::string found;  // of "nothing": what there is instead
  Failure failure;
  Diagnosis diagnosis;
  std::unique_ptr<Timeline> timeline;  // what failure.timeline points to
};

[[nodiscard]] Explained explain_text(std::string_view bytes);

// A trace until a request fails: what is known without any allocator. No verdict yet.
struct FailedRequest {
  std::uint64_t event = 0;  // that it comes before, or is
  std::uint64_t size = 0;
  std::uint64_t time_us = 0;
  bool goes_on = false;  // what the trace tells from there on is what the job does with more memory
};
[[nodiscard]] Explained trace_until(const Trace& trace, const FailedRequest& failed);

// A trace up to its event `failing`, whose request is refused by a device of `capacity` bytes.
struct TraceFailure {
  std::uint64_t failing = 0;
  Bytes capacity;
  Bytes reserved;  // what the allocator that failed held then
  std::string allocator;
  std::optional<Bytes> limit{};  // its own, where that refused the request and not the device
  std::string limit_name{};      // as the user wrote it
  std::optional<Bytes> free_granules{};  // what it held in whole handles, all of them free
};
[[nodiscard]] Explained explain_failure(const Trace& trace, const TraceFailure& where);
// Finds where the trace fails under the arguments' allocator and capacity.
[[nodiscard]] Explained explain_trace(const Trace& trace, const ExplainArguments& arguments);
// The last failure that the recorder itself saw (Trace::marks), with what it knew then.
[[nodiscard]] Explained explain_recorded(const Trace& trace);
// Which of a file's devices failed, and why: what was recorded, unless --capacity asks another question.
[[nodiscard]] Explained explain_traces(const std::vector<Trace>& traces,
                                       const ExplainArguments& arguments);
// A recording that ended before it could tell of anything.
[[nodiscard]] Explained explain_nothing(const std::string& why);

// What explain writes with --json.
[[nodiscard]] nlohmann::ordered_json explain_json(const Explained& explained);
[[nodiscard]] std::string explain_page(const Explained& explained);

}  // namespace nofrag
