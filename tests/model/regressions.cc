// Programs that once failed, cut down by hand. A new one: paste what model_test printed, drop what
// is not needed, say in a comment what was wrong.
#include <gtest/gtest.h>

#include "world.h"

namespace nofrag::model {
namespace {

void run(const Config& config, const std::vector<Instruction>& program) {
  World world(config);
  for (const Instruction& instruction : program) {
    world.run(instruction);
    world.allocator().check();
  }
  world.finish();
  EXPECT_TRUE(world.ok()) << world.failure();
}

Config by_hand(std::uint64_t streams) {
  Config config;
  config.memory = 64 * kMiB;
  config.streams = streams;
  config.completion = Completion::kByHand;
  return config;
}

// A pool is released while its graph still runs and filled again under the same name: its free
// memory was handed out at once, under the running replay.
TEST(Regressions, ReleasedPoolFilledAgainWhileItsGraphRuns) {
  run(by_hand(1),
      {
          {Op::kBeginCapture, 0, 0, 0},
          {Op::kAlloc, 512, 0, 0},
          {Op::kEndCapture, 0, 0, 0},
          {Op::kReplay, 0, 0, 0},
          {Op::kFree, 0, 0, 0},
          {Op::kReleasePool, 0, 0, 0},
          {Op::kBeginPool, 0, 0, 0},
          {Op::kAlloc, 4096, 0, 0},
          {Op::kEndPool, 0, 0, 0},
      });
}

// A mapping failed half-way and its undo was refused: the memory stayed lost to trim.
TEST(Regressions, RefusedUndoIsTakenBackByTrim) {
  run(by_hand(1),
      {
          {Op::kFail, 1, static_cast<std::uint64_t>(DriverCall::kSetAccess), 0},
          {Op::kFail, 1, static_cast<std::uint64_t>(DriverCall::kUnmap), 0},
          {Op::kAlloc, 4096, 0, 0},
          {Op::kAlloc, 20 << 20, 0, 0},
          {Op::kFree, 0, 0, 0},
          {Op::kFree, 0, 0, 0},
      });
}

}  // namespace
}  // namespace nofrag::model
