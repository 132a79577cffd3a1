// Pinned memory: whatever would take it from its addresses, or map it at others, passes it by.
#include <algorithm>

#include "device_fixture.h"

namespace nofrag {
namespace {

class PinTest : public DeviceFixture {
 protected:
  void pin(VirtAddr address) { ASSERT_TRUE(allocator_->pin(address).ok()); }
  void unpin(VirtAddr address) { ASSERT_TRUE(allocator_->unpin(address).ok()); }
  // A block of `size`, pinned and freed; its bytes keep its canary as long as nobody reuses them.
  VirtAddr pinned_and_freed(Bytes size) {
    const VirtAddr block = allocate(size);
    pin(block);
    free(block);
    canary_ = tag_;
    sim_->complete_all();
    return block;
  }
  [[nodiscard]] bool untouched(VirtAddr address, Bytes size) {
    return sim_->check_contents(address, size, canary_).ok();
  }
  [[nodiscard]] std::size_t called(std::string_view call) {
    const Calls calls = recorder_->take();
    return static_cast<std::size_t>(std::count_if(
        calls.begin(), calls.end(), [&](const auto& c) { return c.starts_with(call); }));
  }
  std::uint64_t canary_ = 0;
};

// ---- what a pin is

TEST_F(PinTest, AnyAddressInTheBlockNames) {
  start(64 * kMiB);
  const VirtAddr block = allocate(12 * kMiB);  // three handles
  pin(block + 5 * kMiB);
  EXPECT_EQ(allocator_->stats().pinned, 12 * kMiB);
  EXPECT_EQ(allocator_->unpin(block + 12 * kMiB).code(), Errc::kUnknownPointer);
  unpin(block + 12 * kMiB - Bytes(1));
  EXPECT_EQ(allocator_->stats().pinned, Bytes(0));
  EXPECT_EQ(allocator_->unpin(block).code(), Errc::kUnknownPointer) << "undone once already";
}

TEST_F(PinTest, OnlyLiveBlocksCanBePinned) {
  start(64 * kMiB);
  const VirtAddr block = allocate(4 * kMiB);
  EXPECT_EQ(allocator_->pin(VirtAddr(0x10)).code(), Errc::kUnknownPointer);
  EXPECT_EQ(allocator_->unpin(VirtAddr(0x10)).code(), Errc::kUnknownPointer);
  EXPECT_EQ(allocator_->unpin(block).code(), Errc::kUnknownPointer);
  free(block);
  EXPECT_EQ(allocator_->pin(block).code(), Errc::kUnknownPointer);
}

TEST_F(PinTest, PinsNest) {
  start(64 * kMiB);
  const VirtAddr block = pinned_and_freed(4 * kMiB);
  EXPECT_EQ(allocate(4 * kMiB), block);
  pin(block);
  free(block);
  unpin(block);
  EXPECT_EQ(allocator_->trim(), Bytes(0));
  unpin(block);
  EXPECT_EQ(allocator_->trim(), 4 * kMiB);
}

TEST_F(PinTest, PinsOfOverlappingBlocksAreOne) {
  start(64 * kMiB);
  const VirtAddr first = pinned_and_freed(8 * kMiB);
  const VirtAddr front = allocate(6 * kMiB);
  ASSERT_EQ(front, first);
  const VirtAddr back = allocate(6 * kMiB);  // from the first one's third handle on
  ASSERT_EQ(back, first + 6 * kMiB);
  pin(back);
  free(front);
  free(back);
  EXPECT_EQ(allocator_->stats().pinned, 12 * kMiB);
  // Whichever of the two is meant: nothing goes before both are undone.
  unpin(back);
  EXPECT_EQ(allocator_->trim(), Bytes(0));
  EXPECT_EQ(allocator_->stats().pinned, 12 * kMiB);
  unpin(first);
  EXPECT_EQ(allocator_->stats().pinned, Bytes(0));
  EXPECT_EQ(allocator_->trim(), 12 * kMiB);
}

TEST_F(PinTest, NeighboursInOneHandleArePinnedEach) {
  start(64 * kMiB);
  const VirtAddr left = allocate(2 * kMiB);
  const VirtAddr right = allocate(2 * kMiB);
  ASSERT_EQ(right, left + 2 * kMiB);
  pin(left);
  pin(right);
  free(left);
  free(right);
  unpin(left);
  EXPECT_EQ(allocator_->unpin(left).code(), Errc::kUnknownPointer);
  EXPECT_EQ(allocator_->trim(), 4 * kMiB - allocator_->stats().pinned);
  EXPECT_GE(allocator_->stats().pinned, 2 * kMiB);
  unpin(right);
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().reserved, Bytes(0));
}

TEST_F(PinTest, WhatIsFreeThereServesAtItsAddresses) {
  start(64 * kMiB);
  const VirtAddr block = pinned_and_freed(8 * kMiB);
  recorder_->take();
  EXPECT_EQ(allocate(8 * kMiB), block);
  EXPECT_EQ(recorder_->take(), Calls{});
  unpin(block);
}

TEST_F(PinTest, PendingBlocksStayPinned) {
  start(16 * kMiB);
  const VirtAddr block = allocate(8 * kMiB);
  use_on(block, kA, kB);
  pin(block);
  free(block);
  EXPECT_EQ(allocator_->stats().pending, 8 * kMiB);
  sim_->complete_all();
  EXPECT_EQ(allocator_->trim(), Bytes(0));
  unpin(block + kMiB);
  EXPECT_EQ(allocator_->trim(), 8 * kMiB);
}

TEST_F(PinTest, StatisticsCountPinnedMemoryAsUsed) {
  start(64 * kMiB);
  const VirtAddr block = pinned_and_freed(8 * kMiB);
  DeviceStats s = allocator_->stats();
  EXPECT_EQ(s.pinned, 8 * kMiB);
  EXPECT_EQ(s.mapped_in_use, 8 * kMiB);
  EXPECT_EQ(s.free_handles, Bytes(0));
  EXPECT_EQ(s.stranded, 8 * kMiB);
  const VirtAddr part = allocate(kMiB);
  s = allocator_->stats();
  EXPECT_EQ(s.stranded, 7 * kMiB);
  EXPECT_EQ(s.free_ends, Bytes(0));
  EXPECT_EQ(s.composable, Bytes(0));
  unpin(block);
  s = allocator_->stats();
  EXPECT_EQ(s.stranded, Bytes(0));
  EXPECT_EQ(s.free_handles + s.free_ends, 7 * kMiB);
  free(part);
}

TEST_F(PinTest, NothingHappensOnThePlainBackend) {
  start(64 * kMiB, 4 * kMiB, false);
  const VirtAddr block = allocate(4 * kMiB);
  EXPECT_TRUE(allocator_->pin(block + kMiB).ok());
  EXPECT_EQ(allocator_->pin(VirtAddr(0x10)).code(), Errc::kUnknownPointer);
  EXPECT_EQ(allocator_->stats().pinned, Bytes(0));
  free(block);
  EXPECT_TRUE(allocator_->unpin(block).ok());
}

TEST_F(PinTest, AnAllocatorGoesWithItsPins) {
  start(64 * kMiB);
  pinned_and_freed(8 * kMiB);
  const VirtAddr live = allocate(12 * kMiB);
  pin(live);  // the destructor gives both back; the fixture looks for leaks
}

// ---- every way in which memory leaves its addresses or gets others

TEST_F(PinTest, TrimPassesBy) {
  start(64 * kMiB);
  const VirtAddr kept = pinned_and_freed(8 * kMiB);
  const VirtAddr other = allocate(12 * kMiB);
  free(other);
  sim_->complete_all();
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().reserved, 8 * kMiB);
  EXPECT_EQ(allocator_->stats().pinned, 8 * kMiB);
  unpin(kept);
  EXPECT_EQ(allocator_->trim(), 8 * kMiB);
}

TEST_F(PinTest, LowerLimitsPassBy) {
  start(64 * kMiB);
  const VirtAddr kept = pinned_and_freed(8 * kMiB);
  recorder_->take();
  allocator_->set_limit(2 * kMiB);
  allocator_->set_memory_fraction(0.01);
  EXPECT_EQ(called("unmap"), 0U);
  EXPECT_TRUE(untouched(kept, 8 * kMiB));
  unpin(kept);
  allocator_->set_limit(2 * kMiB);
  EXPECT_EQ(allocator_->stats().reserved, Bytes(0));
}

TEST_F(PinTest, MovesPassBy) {
  start(16 * kMiB);
  VirtAddr blocks[4];
  for (VirtAddr& block : blocks) {
    block = allocate(4 * kMiB);
  }
  pin(blocks[2]);
  free(blocks[0]);
  free(blocks[2]);
  sim_->complete_all();
  recorder_->take();
  // The pinned one may not come to the other, nor be given back and made anew beside it.
  EXPECT_TRUE(allocate(8 * kMiB).is_null());
  EXPECT_EQ(called("map"), 0U);
  EXPECT_TRUE(sim_->check_contents(blocks[2], 4 * kMiB, 3).ok());
  EXPECT_EQ(allocator_->last_oom().stats.free_handles, 4 * kMiB);
  EXPECT_EQ(allocator_->last_oom().stats.stranded, 4 * kMiB);
  unpin(blocks[2]);
  EXPECT_FALSE(allocate(8 * kMiB).is_null());
}

TEST_F(PinTest, LoansToOtherPoolsPassBy) {
  for (const bool pinned : {false, true}) {
    start(16 * kMiB);
    const VirtAddr kept = pinned_and_freed(8 * kMiB);  // two handles
    if (!pinned) {
      unpin(kept);
    }
    allocate(2 * kMiB, kB);
    sim_->complete_all();
    allocate(kMiB, kB);  // learns that the idle memory is done with
    begin_pool(kFirst, kC);
    EXPECT_EQ(allocate(8 * kMiB, kC).is_null(), pinned);
    if (pinned) {
      EXPECT_TRUE(untouched(kept + 4 * kMiB, 4 * kMiB));
    }
    ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
    allocator_.reset();
    tags_.clear();
  }
}

TEST_F(PinTest, AReleasedPoolKeepsWhatIsPinned) {
  start(64 * kMiB);
  begin_pool(kFirst, kA);
  const VirtAddr block = pinned_and_freed(8 * kMiB);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().pools, 2U);
  EXPECT_EQ(allocator_->stats().reserved, 8 * kMiB);
  EXPECT_TRUE(untouched(block, 8 * kMiB));
  // Its name may be used again meanwhile.
  begin_pool(kFirst, kB);
  const VirtAddr next = allocate(4 * kMiB, kB);
  EXPECT_FALSE(next.is_null());
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  free(next);
  unpin(block);
  sim_->complete_all();
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().pools, 1U);
  EXPECT_EQ(allocator_->stats().reserved, Bytes(0));
}

TEST_F(PinTest, CutsPassBy) {
  for (const bool pinned : {false, true}) {
    start(64 * kMiB, 16 * kMiB);
    sim_->set_completion(Completion::kClock);
    sim_->set_stream_lag_us(0);
    const VirtAddr block = allocate(32 * kMiB);  // half of the memory: from here on it is tight
    if (pinned) {
      pin(block);
    }
    free(block);
    recorder_->take();
    const VirtAddr part = allocate(6 * kMiB);
    EXPECT_EQ(part, block);
    EXPECT_EQ(called("unmap") != 0, !pinned);
    free(part);
    if (pinned) {
      unpin(block);
    }
    allocator_.reset();
  }
}

TEST_F(PinTest, CompositionsPassByEndsAndWholes) {
  for (const int let_go : {0, 2}) {
    start(20 * kMiB);
    free(allocate(20 * kMiB));  // five handles
    sim_->complete_all();
    // A used handle with a free back of 2 MiB; a free one between walls; a free one at the end.
    VirtAddr blocks[] = {allocate(2 * kMiB),
                         allocate(2 * kMiB),
                         allocate(4 * kMiB),
                         allocate(4 * kMiB),
                         allocate(4 * kMiB),
                         allocate(4 * kMiB)};
    std::sort(std::begin(blocks), std::end(blocks));
    const VirtAddr used = blocks[0];
    const VirtAddr between = blocks[3];
    ASSERT_EQ(between, used + 8 * kMiB);
    pin(used);
    pin(between);
    free(blocks[1]);
    free(between);
    free(blocks[5]);
    sim_->complete_all();
    recorder_->take();
    EXPECT_TRUE(allocate(5 * kMiB).is_null());
    EXPECT_EQ(called("map"), 0U);
    EXPECT_EQ(allocator_->last_oom().stats.composable, Bytes(0));
    unpin(let_go == 0 ? used : between);
    EXPECT_FALSE(allocate(5 * kMiB).is_null());
    unpin(let_go == 0 ? between : used);
    allocator_.reset();
    tags_.clear();
  }
}

TEST_F(PinTest, AViewStaysWhereItsBlockWasPinned) {
  for (const int aliases : {8, 2}) {  // with two, the view would have to go for any further one
    start(24 * kMiB);
    allocator_.reset();
    Options options;
    options.thread_caches = false;
    options.handle_size = 4 * kMiB;
    options.max_aliases = aliases;
    allocator_ = std::move(DeviceAllocator::create(*recorder_, kDevice, options).value());
    VirtAddr blocks[6];
    for (VirtAddr& block : blocks) {
      block = allocate(4 * kMiB);
    }
    free(blocks[0]);
    free(blocks[2]);
    sim_->complete_all();
    const VirtAddr view = allocate(8 * kMiB);  // composed of both
    ASSERT_FALSE(view.is_null());
    ASSERT_TRUE(view < blocks[0] || view > blocks[5]);
    pin(view);
    free(view);
    const std::uint64_t canary = tag_;
    free(blocks[4]);
    sim_->complete_all();
    // Twelve are free; for more, the ladder is climbed to its end.
    EXPECT_TRUE(allocate(13 * kMiB).is_null());
    EXPECT_TRUE(sim_->check_contents(view, 8 * kMiB, canary).ok());
    allocator_->trim();
    EXPECT_TRUE(sim_->check_contents(view, 8 * kMiB, canary).ok());
    EXPECT_EQ(allocate(8 * kMiB), view) << "the only place for so much";
    unpin(view);
    free(view);
    sim_->complete_all();
    EXPECT_FALSE(allocate(12 * kMiB).is_null());
    allocator_.reset();
    tags_.clear();
  }
}

}  // namespace
}  // namespace nofrag
