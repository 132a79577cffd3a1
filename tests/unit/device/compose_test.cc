// Compositions: what is free here and there meets at fresh addresses, and nothing is unmapped for it.
#include <random>

#include "crowd_fixture.h"

namespace nofrag {
namespace {

class ComposeTest : public CrowdFixture {
 protected:
  static void expect_none(const Calls& calls, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      EXPECT_EQ(count(calls, name), 0) << name;
    }
  }
};

const std::vector<std::string> kWaits = {
    "event_synchronize", "stream_wait", "stream_synchronize", "device_synchronize"};
const std::vector<std::string> kChanges = {"unmap", "release", "create", "free_range"};

TEST_F(ComposeTest, WholeHandlesAreMappedOnceMoreAndNothingElse) {
  crowd();
  free_handles({1, 3, 5, 7});
  const VirtAddr block = allocate(2 * kHandle);
  ASSERT_FALSE(block.is_null());
  EXPECT_EQ(without_questions(recorder_->take()), (Calls{"map 8", "map 8", "set_access 16"}));
  EXPECT_EQ(recorder_->aliases(), 2U);
  EXPECT_EQ(rung(Rung::kOwnMappable), 1U);
  EXPECT_EQ(allocator_->stats().reserved, kHalf * kBlocks);
  EXPECT_TRUE(allocator_->owns(block));
  EXPECT_EQ(allocator_->find(block + 9 * kMiB).value().address, block);
  free(block);
  recorder_->take();
  EXPECT_EQ(allocate(2 * kHandle), block) << "the view stays";
  EXPECT_EQ(recorder_->take(), Calls{});
}

// [free back of handle 1][handles][free front of handle 5]
TEST_F(ComposeTest, EndsOfHandlesServeToo) {
  crowd();
  free_back(1);
  free_front(5);
  free_back(9);
  free_front(13);
  free_handles({3, 11, 15});
  const VirtAddr block = allocate(3 * kHandle);
  ASSERT_FALSE(block.is_null());
  EXPECT_EQ(without_questions(recorder_->take()),
            (Calls{"map 8", "map 8", "map 8", "map 8", "set_access 32"}));
  EXPECT_EQ(recorder_->aliases(), 4U);
  // The neighbours in the same handles were not touched (the fixture looks at their bytes).
  free(blocks_[2]);
  free(blocks_[11]);
  const VirtAddr other = allocate(kHandle);
  EXPECT_FALSE(other.is_null());
}

// Handles that had nothing to give are not looked at again until something is freed in them.
TEST_F(ComposeTest, EndsThatBecameLongAreFound) {
  crowd();
  free_handles({3, 11});
  ASSERT_FALSE(allocate(3 * kHandle).is_null());  // looks at all the others
  ASSERT_FALSE(allocate(3 * kHandle).is_null());
  free_back(1);
  free_front(5);
  free_handles({13, 15});
  recorder_->take();
  const std::size_t before = recorder_->aliases();
  allocator_->check();
  ASSERT_FALSE(allocate(3 * kHandle).is_null());
  EXPECT_EQ(count(recorder_->take(), "create"), 0);
  EXPECT_EQ(recorder_->aliases(), before + 4);
}

TEST_F(ComposeTest, TheSameBytesAreNeverHandedOutTwice) {
  crowd();
  free_handles({1, 3, 5, 7, 9});
  const VirtAddr composed = allocate(2 * kHandle);
  std::vector<VirtAddr> others;
  for (int i = 0; i < 3; ++i) {
    others.push_back(allocate(kHandle));
    EXPECT_EQ(count(recorder_->take(), "create"), 0);
  }
  allocate(kHandle);
  EXPECT_EQ(count(recorder_->take(), "create"), 1) << "all five are in use";
  free(composed);
  for (const VirtAddr other : others) {
    free(other);
  }
}

TEST_F(ComposeTest, TheOwnStreamsMemoryNeedsNoWait) {
  crowd();
  allocate(kHandle, kB);       // there are others
  free_handles({1, 3, 5, 7});  // their work runs on
  EXPECT_FALSE(allocate(2 * kHandle, kA).is_null());
  const Calls calls = recorder_->take();
  EXPECT_EQ(recorder_->aliases(), 2U);
  expect_none(calls, kWaits);
  expect_none(calls, kChanges);
}

TEST_F(ComposeTest, AnotherStreamsMemoryServesBehindADeviceWait) {
  crowd();
  allocate(kHandle, kB);
  free_handles({1, 3, 5, 7});
  EXPECT_FALSE(allocate(2 * kHandle, kB).is_null());
  const Calls calls = recorder_->take();
  EXPECT_EQ(recorder_->aliases(), 2U);
  EXPECT_GT(count(calls, "stream_wait"), 0);
  EXPECT_EQ(count(calls, "event_synchronize"), 0) << "the host goes on";
  expect_none(calls, kChanges);
  EXPECT_EQ(rung(Rung::kDeviceWait), 1U);
}

TEST_F(ComposeTest, WhatAnotherStreamIsDoneWithNeedsNoWait) {
  crowd();
  allocate(kHandle, kB);
  free_handles({1, 3, 5, 7});
  work_is_done_at_once();
  EXPECT_FALSE(allocate(2 * kHandle, kB).is_null());
  const Calls calls = recorder_->take();
  EXPECT_EQ(recorder_->aliases(), 2U);
  expect_none(calls, kWaits);
  expect_none(calls, kChanges);
}

// Small requests rather grow than make their stream wait.
TEST_F(ComposeTest, AnotherStreamsMemoryIsNotTakenForLittle) {
  crowd();
  allocate(kHandle, kB);
  free_handles({1, 3, 5, 7});
  EXPECT_FALSE(allocate(kHandle, kB).is_null());
  expect_none(recorder_->take(), kWaits);
  EXPECT_EQ(recorder_->aliases(), 0U);
}

// Two addresses a handle: a view in the way goes once its work is done, and not before.
class FewAliases : public ComposeTest {
 protected:
  // Two of the four idle handles, the highest one among them, lie in a view too, in which the last work still runs.
  void prepare() {
    Options options = crowd_options();
    options.max_aliases = 2;
    crowd(options);
    allocate(kHandle, kB);
    free_handles({1, 3, 5, 7});
    const VirtAddr block = allocate(2 * kHandle);
    EXPECT_EQ(recorder_->aliases(), 2U);
    free(block);
    // Apart again: a block in each at home.
    std::map<std::uint64_t, VirtAddr> homes;
    for (int i = 0; i < 4; ++i) {
      const VirtAddr home = allocate(kHandle);
      homes[home.value()] = home;
    }
    expect_none(recorder_->take(), kChanges);
    in_view_ = homes.at(blocks_[14].value());
    beside_ = homes.at(blocks_[6].value());
    ASSERT_EQ(recorder_->mappings(), kBlocks / 2 + 3);
  }
  // Free handle 7, which has two addresses, and handle 3, which has one.
  void request() {
    free(in_view_);
    free(beside_);
    recorder_->take();
    EXPECT_FALSE(allocate(2 * kHandle).is_null());
  }
  VirtAddr in_view_;
  VirtAddr beside_;
};

TEST_F(FewAliases, AViewIsNotUnmappedUnderItsWork) {
  prepare();
  request();
  EXPECT_EQ(count(recorder_->take(), "unmap"), 0);
  EXPECT_LE(recorder_->most_mappings(), 2U);
}

TEST_F(FewAliases, TheOldestIdleViewGoesWhenItsWorkIsDone) {
  prepare();
  work_is_done_at_once();
  const std::size_t before = recorder_->mappings();
  request();
  const Calls calls = recorder_->take();
  EXPECT_EQ(count(calls, "unmap"), 1) << "the one handle that has no address to spare";
  EXPECT_EQ(count(calls, "map"), 2);
  EXPECT_EQ(recorder_->mappings(), before + 1);
  EXPECT_EQ(recorder_->most_mappings(), 2U);
  expect_none(calls, kWaits);
}

// Three addresses a handle, two views with handle 9 in front: the older one goes.
TEST_F(ComposeTest, TheOlderOfTwoIdleViewsGoes) {
  Options options = crowd_options();
  options.max_aliases = 3;
  crowd(options);
  allocate(kHandle, kB);
  free_handles({1, 3, 5, 7, 9});
  work_is_done_at_once();
  std::vector<VirtAddr> views;
  // Of the handles beside 9, the highest, only one is free at a time.
  std::map<std::uint64_t, VirtAddr> homes;
  for (int i = 0; i < 5; ++i) {
    const VirtAddr home = allocate(kHandle);
    homes[home.value()] = home;
  }
  const VirtAddr highest = homes.at(blocks_[18].value());
  for (const std::size_t partner : {1U, 3U, 5U}) {
    const VirtAddr other = homes.at(blocks_[2 * partner].value());
    free(highest);
    free(other);
    views.push_back(allocate(2 * kHandle));
    EXPECT_EQ(recorder_->aliases(), 2 * views.size());
    if (partner != 5U) {
      free(views.back());
      for (const VirtAddr home : {highest, other}) {
        const Result<VirtAddr> again = allocator_->allocate(kHandle, kA);
        ASSERT_TRUE(again.ok());
        written(again.value(), kHandle, kA);
        EXPECT_TRUE(again.value() == highest || again.value() == other) << home.value();
      }
    }
  }
  EXPECT_EQ(recorder_->most_mappings(), 3U);
  // The third view took the place of the first: the second is whole.
  EXPECT_EQ(recorder_->last_unmapped(), views[0]);
}

TEST_F(ComposeTest, NoHandleIsMappedMoreOftenThanAllowed) {
  for (const std::int64_t most : {1, 2, 3, 8}) {
    Options options;
    options.handle_size = 4 * kMiB;
    options.max_aliases = most;
    start(64 * kMiB, options);
    std::mt19937_64 random(7);
    std::vector<VirtAddr> live;
    for (int step = 0; step < 1500; ++step) {
      if (random() % 2 == 0 || live.empty()) {
        const VirtAddr block = allocate(512 * kKiB * (1 + random() % 30));
        if (!block.is_null()) {
          live.push_back(block);
        }
      } else {
        std::swap(live[random() % live.size()], live.back());
        free(live.back());
        live.pop_back();
      }
      if (step % 16 == 0) {
        sim_->complete_all();
      }
    }
    EXPECT_EQ(recorder_->aliases() > 0, most > 1);
    EXPECT_LE(recorder_->most_mappings(), static_cast<std::uint64_t>(most));
    EXPECT_GE(recorder_->most_mappings(),
              static_cast<std::uint64_t>(std::min<std::int64_t>(most, 3)))
        << "never came near";
    allocator_->check();
  }
}

// A view takes 256 MiB of addresses at least; there are 16 GiB.
TEST_F(ComposeTest, ThousandsOfViewsDoNotUseUpTheAddresses) {
  Options options;
  options.handle_size = 2 * kMiB;
  options.max_cuts = 0;
  start(64 * kMiB, options);
  std::mt19937_64 random(3);
  std::vector<VirtAddr> live;
  std::uint64_t late = 0;
  constexpr int kSteps = 6000;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSteps - 1000) {
      late = recorder_->aliases();
    }
    if (random() % 2 == 0 || live.empty()) {
      const Result<VirtAddr> block = allocator_->allocate(512 * kKiB * (1 + random() % 24), kA);
      if (block.ok()) {
        live.push_back(block.value());
      }
    } else {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(allocator_->free(live.back()).ok());
      live.pop_back();
    }
    recorder_->take();
  }
  EXPECT_GT(recorder_->aliases(), 500U);
  EXPECT_GT(recorder_->aliases() - late, 50U) << "no views any more towards the end";
  for (const VirtAddr block : live) {
    ASSERT_TRUE(allocator_->free(block).ok());
  }
  EXPECT_FALSE(allocate(64 * kMiB).is_null());
}

// ---- private pools

class PoolCompose : public ComposeTest {
 protected:
  // The crowd in a pool that takes what these streams allocate.
  void crowd_in_pool(std::int64_t aliases) {
    Options options = crowd_options();
    options.max_aliases = aliases;
    start(16 * kGiB, options);
    ASSERT_TRUE(allocator_->begin_allocate_to_pool(kFirst, nullptr).ok());
    fill();
    EXPECT_EQ(pool_of(blocks_[0]), kFirst);
  }
  void leave() { EXPECT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok()); }
};

// Nothing runs and nothing is written while a stream is captured: addresses only.
TEST_F(PoolCompose, OwnMemoryIsComposedDuringACapture) {
  start(16 * kGiB, crowd_options());
  begin_pool(kFirst, kA);
  sim_->begin_capture(kA);
  std::vector<VirtAddr> blocks;
  for (std::size_t i = 0; i < kBlocks / 2; ++i) {
    blocks.push_back(allocator_->allocate(kHandle, kA).value());
  }
  for (const std::size_t i : {1U, 3U, 5U, 7U}) {
    ASSERT_TRUE(allocator_->free(blocks[i]).ok());
  }
  recorder_->take();
  ASSERT_TRUE(allocator_->allocate(2 * kHandle, kA).ok());
  EXPECT_EQ(recorder_->take(), (Calls{"map 8", "map 8", "set_access 16"}));
  EXPECT_EQ(recorder_->aliases(), 2U);
  EXPECT_TRUE(sim_->end_capture(kA));
  leave();
}

TEST_F(PoolCompose, StreamsAreNeverCrossed) {
  crowd_in_pool(8);
  free_handles({1, 3, 5, 7, 9, 11});
  for (const bool filling : {true, false}) {
    sim_->complete_all();
    const VirtAddr block =
        written(allocator_->allocate_in_pool(2 * kHandle, kB, kFirst).value(), 2 * kHandle, kB);
    EXPECT_EQ(pool_of(block), kFirst);
    const Calls calls = recorder_->take();
    EXPECT_GT(count(calls, "create"), 0) << "grows instead";
    expect_none(calls, {"unmap", "release", "stream_wait"});
    EXPECT_EQ(recorder_->aliases(), 0U);
    if (filling) {
      leave();
    }
  }
}

TEST_F(PoolCompose, NothingIsEverUnmapped) {
  crowd_in_pool(2);
  leave();
  std::mt19937_64 random(9);
  std::vector<VirtAddr> live(blocks_.begin(), blocks_.end());
  for (int step = 0; step < 600; ++step) {
    if (random() % 2 == 0 || live.empty()) {
      const Bytes size = 512 * kKiB * (1 + random() % 40);
      const Result<VirtAddr> block = allocator_->allocate_in_pool(size, kA, kFirst);
      ASSERT_TRUE(block.ok());
      live.push_back(written(block.value(), size, kA));
    } else {
      std::swap(live[random() % live.size()], live.back());
      free(live.back());
      live.pop_back();
    }
    sim_->complete_all();
    expect_none(recorder_->take(), {"unmap", "release"});
  }
  EXPECT_GT(recorder_->aliases(), 10U);
  EXPECT_LE(recorder_->most_mappings(), 2U);
}

}  // namespace
}  // namespace nofrag
