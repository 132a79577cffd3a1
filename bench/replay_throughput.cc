// How many events a second one core replays: every recorded job through every allocator on a
// simulated H100, whole loop (allocator, simulated driver, clock), best and median of the rounds.
//   replay_throughput [ROUNDS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/replay/replay_session.h"
#include "trace/load_trace.h"

namespace {

constexpr const char* kTraces[] = {"gpt_varlen", "lora_ckpt", "llm_serve", "multistream8"};

int measure(std::size_t rounds) {
  using namespace nofrag;  // NOLINT(google-build-using-namespace): a program of one page
  const DeviceTarget target = DeviceTarget::parse("sim:h100-80g");
  fmt::print("{:<14} {:<18} {:>16} {:>16}\n", "trace", "allocator", "best M events/s", "median");
  for (const char* name : kTraces) {
    Trace trace;
    const std::string path = std::string(NOFRAG_TRACES) + "/" + name + ".nofrag";
    if (const auto error = load_trace(path, TraceFormat::kAuto, &trace)) {
      fmt::print(stderr, "{}\n", error->message());
      return 1;
    }
    ReplaySession session(trace, target, {});
    for (const std::string_view allocator : replay_allocators()) {
      std::vector<double> rates;
      for (std::size_t round = 0; round < rounds; ++round) {
        const ReplayRun run = session.run(allocator, {}, {});
        rates.push_back(static_cast<double>(run.events_replayed) / run.host_ns * 1e3);
      }
      std::sort(rates.begin(), rates.end());
      fmt::print(
          "{:<14} {:<18} {:>16.2f} {:>16.2f}\n", name, allocator, rates.back(), rates[rounds / 2]);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const long rounds = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 5;
    return measure(static_cast<std::size_t>(std::clamp(rounds, 1L, 1000L)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
