#include "base/timeline.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace nofrag {
namespace {

constexpr std::uint64_t kMi = std::uint64_t{1} << 20;

Stretch stretch(std::uint64_t i) {
  Stretch s;
  s.start_us = i;
  s.end_us = i + 1;
  s.max_live = i % 1000 + 10;
  s.min_live = i % 7 + 1;
  s.largest_request = i % 500;
  s.allocations = i;
  return s;
}

TEST(Track, KeepsExtremesAndOrderHoweverMuchIsAdded) {
  Track track;
  std::uint64_t highest = 0;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    track.add(stretch(i));
    highest = std::max(highest, stretch(i).max_live);
  }
  ASSERT_LE(track.size(), Track::kMost);
  EXPECT_EQ(track[0].start_us, 0U);
  EXPECT_EQ(track[track.size() - 1].end_us, 100'000U);
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < track.size(); ++i) {
    found = std::max(found, track[i].max_live);
    EXPECT_LE(track[i].min_live, track[i].max_live);
    EXPECT_TRUE(i == 0 || track[i].start_us == track[i - 1].end_us) << i;
  }
  EXPECT_EQ(found, highest);
  EXPECT_EQ(track[track.size() - 1].end_us - track[track.size() - 1].start_us, 1U)
      << "the newest stay fine";
}

TEST(Timeline, CountsStepsAndNotTheTemporariesInThem) {
  Timeline timeline;
  std::uint64_t live = 0;
  std::uint64_t blocks = 0;
  std::uint64_t now = 0;
  const auto alloc = [&](std::uint64_t size) {
    live += size;
    timeline.allocated(size, live, ++blocks);
    timeline.close_window(now += 10);
  };
  const auto release = [&](std::uint64_t size) {
    live -= size;
    timeline.freed(size, live, --blocks);
    timeline.close_window(now += 10);
  };
  for (int i = 0; i < 50; ++i) {
    alloc(64 * kMi);
  }
  for (int step = 0; step < 20; ++step) {
    for (int i = 0; i < 30; ++i) {
      alloc(40 * kMi);
      alloc(100 * kMi);
      release(100 * kMi);
    }
    for (int i = 0; i < 30; ++i) {
      release(40 * kMi);
    }
  }
  // The last is complete when the next begins.
  EXPECT_EQ(timeline.cycle_count(), 19U);
  for (const Stretch& cycle : timeline.cycles()) {
    EXPECT_EQ(cycle.min_live, 50 * 64 * kMi);
    EXPECT_EQ(cycle.low_blocks, 50U);
  }
  EXPECT_GE(timeline.live_at_first_churn(), 50 * 64 * kMi);
  EXPECT_LE(timeline.live_at_first_churn(), 50 * 64 * kMi + 41 * kMi);
}

TEST(Timeline, ALoadHasNoCycleAndNoBase) {
  Timeline timeline;
  for (std::uint64_t i = 1; i <= 500; ++i) {
    timeline.allocated(kMi, i * kMi, i);
    if (timeline.due()) {
      timeline.close_window(i);
    }
  }
  EXPECT_EQ(timeline.cycle_count(), 0U);
  EXPECT_EQ(timeline.live_at_first_churn(), 0U);
  EXPECT_EQ(timeline.windows().size() > 10, true);
}

TEST(Timeline, WhatWentBackUnseenIsNoticed) {
  Timeline timeline;
  timeline.allocated(10 * kMi, 10 * kMi, 1);
  timeline.allocated(10 * kMi, 20 * kMi, 2);
  timeline.allocated(5 * kMi, 5 * kMi, 1);  // the other two were given back by a cache
  EXPECT_EQ(timeline.freed_bytes(), 20 * kMi);
  EXPECT_EQ(timeline.live(), 5 * kMi);
}

TEST(Timeline, RandomEventsKeepItsInvariants) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Timeline timeline;
    std::vector<std::uint64_t> blocks;
    std::uint64_t live = 0;
    std::uint64_t peak = 0;
    std::uint64_t now = 0;
    for (int i = 0; i < 20'000; ++i) {
      if (blocks.empty() || random() % 100 < 52) {
        const std::uint64_t size = 512 * (1 + random() % 100'000);
        blocks.push_back(size);
        live += size;
        timeline.allocated(size, live, blocks.size());
      } else {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        live -= blocks.back();
        timeline.freed(blocks.back(), live, blocks.size() - 1);
        blocks.pop_back();
      }
      peak = std::max(peak, live);
      now += random() % 100;
      if (timeline.due()) {
        timeline.close_window(now);
      }
    }
    timeline.close_window(now);
    std::uint64_t seen = 0;
    for (const Stretch& window : timeline.windows()) {
      ASSERT_LE(window.min_live, window.max_live);
      seen = std::max(seen, window.max_live);
    }
    EXPECT_EQ(seen, peak);
    EXPECT_EQ(timeline.live(), live);
    EXPECT_EQ(timeline.allocated_bytes() - timeline.freed_bytes(), live);
  }
}

}  // namespace
}  // namespace nofrag
