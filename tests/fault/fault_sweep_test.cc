// Fails the N-th driver call of a scripted run, for every N: nothing may leak, no invariant may
// break, no byte of a live block may change, whatever the call was.
#include <random>

#include <gtest/gtest.h>

#include "world.h"

namespace nofrag::model {
namespace {

Config script_config(bool virtual_memory) {
  Config config;
  config.memory = 192 * kMiB;
  config.handle_size = 4 * kMiB;
  config.streams = 3;
  config.pools = 2;
  config.completion = Completion::kByHand;
  config.virtual_memory = virtual_memory;
  return config;
}

// Growth, several streams, record_stream, a captured pool with replays and a plain one, trim,
// stealing under a tight limit, an out-of-memory error, releases, a retired stream.
std::vector<Instruction> script() {
  constexpr std::uint64_t kM = std::uint64_t{1} << 20;
  return {
      {Op::kAlloc, 700, 0, 0},
      {Op::kAlloc, 10 * kM, 0, 0},
      {Op::kAlloc, 3 * kM, 1, 0},
      {Op::kAlloc, 20 * kM, 1, 0},
      {Op::kRecordStream, 0, 1, 1},
      {Op::kRecordStream, 0, 1, 2},
      {Op::kLaunch, 0, 1, 0},
      {Op::kFree, 0, 1, 0},  // pending on streams 1 and 2
      {Op::kCheckAll, 0, 0, 0},
      {Op::kComplete, 0, 2, 0},
      {Op::kAlloc, 9 * kM, 2, 0},
      {Op::kComplete, 0, 1, 0},
      {Op::kAlloc, 9 * kM, 0, 0},
      {Op::kBeginCapture, 0, 0, 2},
      {Op::kAlloc, 5 * kM, 2, 0},
      {Op::kAlloc, 2 * kM, 2, 0},
      {Op::kFree, 0, 5, 0},
      {Op::kAlloc, 4 * kM, 2, 0},
      {Op::kAlloc, 6 * kM, 0, 0},
      {Op::kFree, 0, 2, 0},
      {Op::kTrim, 0, 0, 0},
      {Op::kEndCapture, 0, 0, 0},
      {Op::kReplay, 0, 0, 0},
      {Op::kCheckAll, 0, 0, 0},
      {Op::kBeginPool, 0, 1, 1},
      {Op::kAlloc, 7 * kM, 1, 0},
      {Op::kEndPool, 0, 1, 0},
      {Op::kAllocInPool, 3 * kM, 1, 1},
      {Op::kFree, 0, 0, 0},
      {Op::kCompleteAll, 0, 0, 0},
      {Op::kSetLimit, 100 * kM, 0, 0},
      {Op::kAlloc, 30 * kM, 0, 0},
      {Op::kAlloc, 25 * kM, 1, 0},
      {Op::kFree, 0, 3, 0},
      {Op::kFree, 0, 4, 0},
      {Op::kAlloc, 28 * kM, 2, 0},  // moves what streams 0 and 1 left idle
      {Op::kRecordStream, 0, 1, 0},
      {Op::kFree, 0, 1, 0},
      {Op::kAlloc, 40 * kM, 0, 0},
      {Op::kAlloc, 120 * kM, 1, 0},  // out of memory
      {Op::kReplay, 0, 0, 0},
      {Op::kReleasePool, 0, 0, 0},
      {Op::kReleasePool, 0, 1, 0},
      {Op::kFree, 0, 0, 0},
      {Op::kSetLimit, 0, 0, 0},
      {Op::kAlloc, 50 * kM, 2, 0},
      {Op::kRetireStream, 0, 1, 0},
      {Op::kFree, 0, 2, 0},
      {Op::kOthers, 120 * kM, 0, 0},
      {Op::kAlloc, 30 * kM, 0, 0},
      {Op::kTrim, 0, 0, 0},
      {Op::kOthers, 0, 0, 0},
      {Op::kAlloc, 60 * kM, 0, 0},
      {Op::kCheckAll, 0, 0, 0},
  };
}

// Few addresses a handle and little memory: views come, go and are composed anew.
Config arena_config() {
  Config config = script_config(true);
  config.memory = 64 * kMiB;
  config.handle_size = 8 * kMiB;
  config.reserve_slack = 0;
  config.max_aliases = 2;
  config.streams = 2;
  return config;
}
std::vector<Instruction> arena_script(std::uint64_t seed) {
  constexpr std::uint64_t kM = std::uint64_t{1} << 20;
  std::mt19937_64 random(seed);
  std::vector<Instruction> program;
  while (program.size() < 40) {
    const std::uint64_t dice = random() % 10;
    if (program.size() < 12) {
      program.push_back({Op::kAlloc, kM * (2 + random() % 5), 0, 0});
    } else if (dice < 5) {
      const std::uint64_t size = kM * (3 + random() % 14);
      program.push_back({Op::kAlloc, size, random() % 8 == 0 ? 1U : 0U, 0});
    } else if (dice < 9) {
      program.push_back({Op::kFree, 0, random() % 12, 0});
    } else {
      program.push_back({Op::kCompleteAll, 0, 0, 0});
    }
  }
  return program;
}

// Idle handles are cut under blocks, one of them mapped at two addresses.
Config cut_config() {
  Config config = arena_config();
  config.memory = 96 * kMiB;
  config.handle_size = 16 * kMiB;
  return config;
}
std::vector<Instruction> cut_script() {
  constexpr std::uint64_t kM = std::uint64_t{1} << 20;
  return {
      {Op::kAlloc, 16 * kM, 0, 0},  // 0
      {Op::kAlloc, 16 * kM, 0, 0},  // 1
      {Op::kAlloc, 16 * kM, 0, 0},  // 2
      {Op::kFree, 0, 0, 0},         // now 2, 1
      {Op::kAlloc, 4 * kM, 1, 0},   // marks what stream 0 freed
      {Op::kCompleteAll, 0, 0, 0},
      {Op::kAlloc, 5 * kM, 0, 0},  // a cut
      {Op::kAlloc, 6 * kM, 0, 0},
      {Op::kCheckAll, 0, 0, 0},
      {Op::kFree, 0, 0, 0},
      {Op::kFree, 0, 0, 0},
      {Op::kAlloc, 4 * kM, 1, 0},
      {Op::kCompleteAll, 0, 0, 0},
      {Op::kAlloc, 7 * kM, 1, 0},  // another
      {Op::kAlloc, 40 * kM, 0, 0},
      {Op::kCompleteAll, 0, 0, 0},
      {Op::kAlloc, 20 * kM, 0, 0},
      {Op::kCheckAll, 0, 0, 0},
  };
}

struct Script {
  Config config;
  std::vector<Instruction> program;
};
std::vector<Script> arena_scripts() {
  return {{arena_config(), arena_script(99)},
          {arena_config(), arena_script(148)},
          {cut_config(), cut_script()}};
}

struct Faults {
  std::uint64_t nth = 0;  // 0 = none
  Errc code = Errc::kDriverFailure;
  bool from_then_on = false;
};

// How many driver calls the run made. `checks` runs every check after every instruction.
std::uint64_t run(const Script& script, const Faults& faults, MappingCounts* counts = nullptr) {
  World world(script.config);
  if (faults.nth != 0) {
    world.driver().fail_any_call(faults.nth, faults.code, faults.from_then_on);
  }
  const std::uint64_t before = world.driver().ledger().total_calls();
  int step = 0;
  for (const Instruction& instruction : script.program) {
    world.run(instruction);
    world.allocator().check();
    world.driver().check();
    EXPECT_TRUE(world.ok()) << world.failure() << " at step " << step << ", call " << faults.nth
                            << " failing with " << to_string(faults.code);
    ++step;
  }
  const std::uint64_t calls = world.driver().ledger().total_calls() - before;
  if (counts != nullptr) {
    *counts += world.counts();
  }
  world.finish();
  EXPECT_TRUE(world.ok()) << world.failure() << " at the end, call " << faults.nth
                          << " failing with " << to_string(faults.code);
  return calls;
}

void sweep(const Script& script) {
  const std::uint64_t calls = run(script, {});
  ASSERT_GT(calls, 50U) << "the script no longer exercises the driver";
  for (std::uint64_t nth = 1; nth <= calls && !testing::Test::HasFailure(); ++nth) {
    run(script, {nth, Errc::kOutOfMemory, false});
    run(script, {nth, Errc::kDriverFailure, false});
    // Lasting faults, at every seventh call (coprime with the script's own rhythm).
    if (nth % 7 == 1) {
      run(script, {nth, Errc::kOutOfMemory, true});
      run(script, {nth, Errc::kDriverFailure, true});
    }
  }
}

TEST(FaultSweep, EveryCallOfTheScriptWithVirtualMemory) {
  sweep({script_config(true), script()});
}

TEST(FaultSweep, EveryCallOfTheScriptWithoutVirtualMemory) {
  sweep({script_config(false), script()});
}

// A script that no longer composes, evicts or cuts tests nothing of it: look for others.
TEST(FaultSweep, TheArenaScriptsReachEverything) {
  MappingCounts counts;
  for (const Script& script : arena_scripts()) {
    run(script, {}, &counts);
  }
  EXPECT_GT(counts.aliases, 10U);
  EXPECT_GT(counts.evictions, 1U);
  EXPECT_GT(counts.cuts, 1U);
  MappingCounts first;
  run({script_config(true), script()}, {}, &first);
  EXPECT_GT(first.aliases, 0U);
}

TEST(FaultSweep, EveryCallOfTheArenaScripts) {
  for (const Script& script : arena_scripts()) {
    sweep(script);
  }
}

// One kind of call never works again: what depends on it is refused, nothing else breaks.
TEST(FaultSweep, EveryKindOfCallFailsForGood) {
  for (std::size_t call = 0; call < kDriverCallCount; ++call) {
    for (const Errc code : {Errc::kOutOfMemory, Errc::kDriverFailure, Errc::kInvalidArgument}) {
      for (const std::uint64_t nth : {1U, 2U, 5U, 9U}) {
        World world(script_config(true));
        world.driver().fail_call(static_cast<DriverCall>(call), nth, code, true);
        for (const Instruction& instruction : script()) {
          world.run(instruction);
          world.allocator().check();
        }
        // A stream on which no event could ever be recorded may be another context's: when it is
        // gone, nothing can say that its work is done, and what it touched is kept.
        const bool unknowable = static_cast<DriverCall>(call) == DriverCall::kEventRecord &&
                                code == Errc::kInvalidArgument;
        world.finish(!unknowable);
        ASSERT_TRUE(world.ok()) << world.failure() << ": "
                                << to_string(static_cast<DriverCall>(call)) << " from " << nth
                                << " on, " << to_string(code);
      }
    }
  }
}

// Two faults close together: the undo of a failure fails too.
void sweep_pairs(const Script& script) {
  const std::uint64_t calls = run(script, {});
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    for (std::uint64_t gap = 1; gap <= 3; ++gap) {
      World world(script.config);
      world.driver().fail_any_call(nth, Errc::kDriverFailure, false);
      world.driver().fail_any_call(nth + gap, Errc::kDriverFailure, false);
      for (const Instruction& instruction : script.program) {
        world.run(instruction);
      }
      world.allocator().check();
      world.finish();
      ASSERT_TRUE(world.ok()) << world.failure() << ": calls " << nth << " and " << nth + gap;
    }
  }
}

TEST(FaultSweep, PairsOfFailures) {
  sweep_pairs({script_config(true), script()});
}

TEST(FaultSweep, PairsOfFailuresInTheArenaScripts) {
  for (const Script& script : arena_scripts()) {
    sweep_pairs(script);
  }
}

}  // namespace
}  // namespace nofrag::model
