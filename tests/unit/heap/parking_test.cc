// Parked mappings: what nothing is allocated through gives its tiles up, and has them again when they may be needed.
#include <algorithm>

#include "heap_fixture.h"

namespace nofrag {
namespace {

// Two handles with a gap between them at home; side by side, in the other order, in a view.
class ParkingTest : public HeapFixture {
 protected:
  ParkingTest() {
    context_.park_after = 4;
    context_.park_after_a_mapping = 0;
    context_.park_with_several = true;
    first_ = attach(Bytes(0), 2 * kMiB);
    second_ = attach(4 * kMiB, 2 * kMiB);
    there_ = &view(16 * kMiB);
    alias(*there_, second_);
    alias(*there_, first_);
  }
  void alias(Region& to, Handle* handle) {
    heap_->alias(to, to.range.address + 2 * kMiB * to.mapping_count, handle);
    heap_->check();
  }
  // Shadows come and go.
  void work(int times, StreamId stream = kA) {
    for (int i = 0; i < times; ++i) {
      free(allocate(kMiB, stream));
    }
  }
  Block* take(Region& from, Bytes offset, Bytes size) {
    const Placement placement{&from, from.range.address + offset, size, Bytes(0)};
    live_.push_back(heap_->take(placement, size, streams_.clock(kA)));
    heap_->check();
    return live_.back();
  }
  [[nodiscard]] BlockState state(const Region& of, Bytes offset) const {
    return context_.block_at(of.range.address + offset)->state;
  }

  Handle* first_ = nullptr;
  Handle* second_ = nullptr;
  Region* there_ = nullptr;
};

TEST_F(ParkingTest, AViewThatNobodyUsesIsParked) {
  work(2);
  EXPECT_EQ(there_->parked, 0U) << "not at once";
  work(1);
  EXPECT_EQ(there_->parked, 2U);
  EXPECT_EQ(there_->first->state, BlockState::kParked);
  EXPECT_EQ(there_->first->size, 4 * kMiB);
  EXPECT_EQ(region().parked, 0U);
  EXPECT_EQ(heap_->largest_free_run(), 4 * kMiB) << "that it would have";
  const Block* block = allocate(kMiB);
  EXPECT_EQ(heap_->largest_free_run(), 2 * kMiB);
  EXPECT_EQ(first_->used + second_->used, kMiB);
  EXPECT_EQ(block->region, &region());
  EXPECT_EQ(there_->parked, 2U);
}

TEST_F(ParkingTest, WhatOnlyItHasWakesIt) {
  work(3);
  Block* kept = allocate(kMiB);  // at the front of the first handle, which is the view's second
  EXPECT_EQ(allocate(4 * kMiB), nullptr);
  EXPECT_EQ(there_->parked, 2U) << "woken for what it does not have";
  Block* block = allocate(2 * kMiB + 512 * kKiB);
  EXPECT_EQ(block, nullptr) << "two megabytes, and then the block";
  free(kept);
  block = allocate(2 * kMiB + 512 * kKiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->region, there_);
  EXPECT_EQ(there_->parked, 0U);
  EXPECT_EQ(allocate(2 * kMiB), nullptr) << "memory was handed out twice";
  work(9);
  EXPECT_EQ(there_->parked, 0U) << "parked while a block is in it";
}

TEST_F(ParkingTest, WhatWakesMergesWithWhatWasMadeBehindIt) {
  heap_->attach(*there_, there_->range.address + 4 * kMiB, {HandleId{99}, 2 * kMiB});
  work(3);
  ASSERT_EQ(there_->parked, 2U);
  heap_->wake_all();
  EXPECT_EQ(there_->parked, 0U);
  EXPECT_EQ(there_->first->size, 6 * kMiB);
  heap_->check();
}

TEST_F(ParkingTest, ItsTilesAreTrueAgain) {
  const Block* kept = allocate(kMiB, kA);
  work(3, kB);  // behind it, not done
  ASSERT_EQ(there_->parked, 2U);
  free(live_.front());
  heap_->wake_all();
  heap_->check();
  EXPECT_EQ(there_->parked, 0U);
  EXPECT_EQ(state(*there_, Bytes(0)), BlockState::kFree);
  const Block* a = context_.block_at(there_->range.address + 2 * kMiB);
  const Block* b = context_.block_at(there_->range.address + 3 * kMiB);
  EXPECT_EQ(a->clock, &streams_.clock(kA));
  EXPECT_EQ(b->clock, &streams_.clock(kB)) << "the mark of what was freed while it was parked";
  EXPECT_EQ(kept->state, BlockState::kFree);
}

TEST_F(ParkingTest, WhatIsDoneIsCleanWhenItWakes) {
  allocate(kMiB, kA);
  work(4, kB);
  ASSERT_EQ(there_->parked, 2U);
  complete(kB);
  heap_->wake_all();
  heap_->check();
  EXPECT_EQ(state(*there_, 2 * kMiB), BlockState::kShadow);
  EXPECT_EQ(context_.block_at(there_->range.address + 3 * kMiB)->clock, nullptr);
}

TEST_F(ParkingTest, APlacementFindsItAwake) {
  work(3);
  ASSERT_EQ(there_->parked, 2U);
  const auto found = heap_->find_placement(4 * kMiB, streams_.clock(kA), RangeHeap::Scope::kUsable);
  EXPECT_EQ(there_->parked, 0U);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->region, there_);
  EXPECT_EQ(found->missing, Bytes(0));
}

TEST_F(ParkingTest, NeitherWhatIsPinnedNorStuckIsParked) {
  const VirtAddr at = there_->range.address;
  heap_->pin(*there_, at, at + 2 * kMiB);
  Handle* third = attach(8 * kMiB, 2 * kMiB);
  heap_->alias_stuck(*there_, at + 8 * kMiB, third);
  work(3);
  EXPECT_EQ(there_->parked, 1U) << "only the first handle's";
  EXPECT_EQ(state(*there_, Bytes(0)), BlockState::kFree);
  EXPECT_EQ(state(*there_, 2 * kMiB), BlockState::kParked);
  EXPECT_EQ(state(*there_, 8 * kMiB), BlockState::kLost);
  heap_->unpin(*there_, at, at + 2 * kMiB);
}

// One stream's parked views are woken when they are needed, whoever needs them; among several none is parked anew.
TEST_F(ParkingTest, SeveralStreamsWakeWhatOneParked) {
  context_.park_with_several = false;
  work(3);
  ASSERT_EQ(there_->parked, 2U);
  allocate(kMiB, kB);
  EXPECT_EQ(there_->parked, 2U);
  heap_->wake_all();
  work(9, kB);
  EXPECT_EQ(there_->parked, 0U);
}

// What is parked may still be unmapped.
TEST_F(ParkingTest, AParkedMappingIsDropped) {
  work(3);
  ASSERT_EQ(there_->parked, 2U);
  heap_->drop(second_->mappings);
  heap_->check();
  EXPECT_EQ(there_->parked, 1U);
  heap_->drop(first_->mappings);
  heap_->check();
  EXPECT_EQ(there_->parked, 0U);
  heap_->remove_region(*there_);
  heap_->check();
  EXPECT_EQ(heap_->largest_free_run(), 2 * kMiB);
}

// When a handle leaves home, its next oldest address shows what it is used for.
TEST_F(ParkingTest, AnotherMappingTakesTheOldestsPlace) {
  Region& third = view(16 * kMiB);
  alias(third, first_);
  Block* kept = take(region(), 4 * kMiB, 2 * kMiB);
  work(3);
  ASSERT_EQ(there_->parked, 2U);
  ASSERT_EQ(third.parked, 1U);
  heap_->drop(RangeHeap::mapping_at(region(), at(Bytes(0))));
  heap_->check();
  EXPECT_EQ(there_->parked, 0U) << "it has the oldest now";
  EXPECT_EQ(third.parked, 1U);
  EXPECT_EQ(&first_->shown(), first_->in(*there_));
  EXPECT_EQ(heap_->free_ends(*second_).front, Bytes(0));
  EXPECT_EQ(state(*there_, Bytes(0)), BlockState::kShadow);
  free(kept);
  work(6);
  EXPECT_EQ(there_->parked, 1U) << "but not what is the oldest";
  EXPECT_EQ(&first_->shown(), first_->in(*there_));
}

// A handle that was made in a view is free there for anybody, while what is beside it is parked.
TEST_F(ParkingTest, WhatWasMadeInAViewIsNotParkedThere) {
  heap_->attach(*there_, there_->range.address + 4 * kMiB, {HandleId{99}, 2 * kMiB});
  work(3);
  EXPECT_EQ(there_->parked, 2U);
  EXPECT_EQ(state(*there_, 4 * kMiB), BlockState::kFree);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(allocate(2 * kMiB), nullptr);
  }
  EXPECT_EQ(allocate(Bytes(512)), nullptr) << "memory was handed out twice";
  const auto in_it = std::find_if(
      live_.begin(), live_.end(), [this](const Block* block) { return block->region == there_; });
  ASSERT_NE(in_it, live_.end());
  EXPECT_EQ((*in_it)->address, there_->range.address + 4 * kMiB);
  EXPECT_EQ(there_->parked, 2U);
  std::swap(*in_it, live_.back());
  free(live_.front());
  free(live_.front());
  ASSERT_NE(allocate(4 * kMiB), nullptr) << "beside the block";
  EXPECT_EQ(there_->parked, 0U);
}

}  // namespace
}  // namespace nofrag
