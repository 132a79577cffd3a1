// A card that others fill: memory is laid out by what they leave, not by the card's size.
#include <cmath>
#include <random>

#include "device_fixture.h"

namespace nofrag {
namespace {

class Others : public DeviceFixture {
 protected:
  static constexpr Bytes kLeft = 8 * kGiB;

  // Blocks of 1 to 512 MiB on one stream, 95 % of kLeft live, counted by the 2 MiB that nobody can do without.
  // The steps done before the first refusal.
  int steps_at_95_percent(unsigned seed, int steps) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> exponent(20.0, 29.0);
    std::vector<std::pair<VirtAddr, Bytes>> blocks;
    Bytes live;
    int step = 0;
    for (; step < steps; ++step) {
      const auto size = Bytes(static_cast<std::uint64_t>(std::exp2(exponent(random))) / 512 * 512);
      const Bytes counted = round_up(size, 2 * kMiB);
      while (live + counted > Bytes(kLeft.count() / 100 * 95)) {
        const std::size_t at = random() % blocks.size();
        free(blocks[at].first);
        live -= blocks[at].second;
        blocks[at] = blocks.back();
        blocks.pop_back();
      }
      const VirtAddr block = allocate(size);
      if (block.is_null()) {
        break;
      }
      blocks.emplace_back(block, counted);
      live += counted;
    }
    for (const auto& [block, size] : blocks) {
      free(block);
    }
    return step;
  }
};

TEST_F(Others, WhatTheyLeaveIsUsedAsIfItWereAll) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    start(80 * kGiB, Options{});
    work_is_done_at_once();
    sim_->set_memory_of_others(kDevice, 80 * kGiB - kLeft);
    EXPECT_EQ(steps_at_95_percent(seed, 1500), 1500) << seed;
  }
}

// They come when this job has grown already; and leave again.
TEST_F(Others, WhoComesLaterIsNoticedAtTheFirstRefusal) {
  start(80 * kGiB, Options{});
  work_is_done_at_once();
  free(allocate(kLeft));
  sim_->set_memory_of_others(kDevice, 80 * kGiB - kLeft - kGiB);
  EXPECT_EQ(steps_at_95_percent(1, 1500), 1500);
  EXPECT_TRUE(allocate(10 * kGiB).is_null());
  sim_->set_memory_of_others(kDevice, Bytes(0));
  EXPECT_FALSE(allocate(60 * kGiB).is_null());
}

TEST_F(Others, TheyAreAskedAboutSeldom) {
  start(64 * kGiB, Options{});
  work_is_done_at_once();
  std::vector<VirtAddr> blocks;
  for (int i = 0; i < 1000; ++i) {
    blocks.push_back(allocate(60 * kMiB));
  }
  EXPECT_GE(recorder_->memory_questions(), 2U);
  EXPECT_LE(recorder_->memory_questions(), 64U);
  for (const VirtAddr block : blocks) {
    free(block);
  }
}

}  // namespace
}  // namespace nofrag
