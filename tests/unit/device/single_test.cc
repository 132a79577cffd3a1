// Blocks that lie in one handle from their first byte to their last.
#include <algorithm>

#include "device_fixture.h"

namespace nofrag {
namespace {

class SingleTest : public DeviceFixture {
 protected:
  VirtAddr single(Bytes size, StreamId stream = kA) {
    const Result<VirtAddr> address = allocator_->allocate_single(size, stream);
    return address.ok() ? written(address.value(), size, stream) : VirtAddr();
  }
  [[nodiscard]] std::size_t called(std::string_view call) {
    const Calls calls = recorder_->take();
    return static_cast<std::size_t>(std::count(calls.begin(), calls.end(), std::string(call)));
  }
};

TEST_F(SingleTest, AHandleOfItsOwnInWholeGranules) {
  start(256 * kMiB);
  EXPECT_FALSE(single(33 * kMiB).is_null());
  EXPECT_EQ(called("create 34"), 1U);
  EXPECT_EQ(allocator_->stats().reserved, 34 * kMiB);
  EXPECT_EQ(rung(Rung::kGrow), 1U);
}

TEST_F(SingleTest, AFreeRunInsideOneHandleServes) {
  start(256 * kMiB);
  const VirtAddr block = single(32 * kMiB);
  free(block);
  recorder_->take();
  EXPECT_EQ(single(8 * kMiB), block);
  EXPECT_EQ(single(8 * kMiB), block + 8 * kMiB);
  EXPECT_EQ(recorder_->take(), Calls{});
}

TEST_F(SingleTest, ARunOverSeveralHandlesServesWithThePartThatLiesInOne) {
  start(256 * kMiB);
  const VirtAddr many = allocate(12 * kMiB);  // three handles
  free(many);
  recorder_->take();
  EXPECT_FALSE(single(8 * kMiB).is_null());
  EXPECT_EQ(called("create 8"), 1U) << "no handle holds as much";
  const VirtAddr first = single(3 * kMiB);
  const VirtAddr second = single(3 * kMiB);
  EXPECT_EQ(first, many);
  EXPECT_EQ(second, many + 4 * kMiB) << "not over the boundary";
  EXPECT_EQ(called("create 4"), 0U);
}

TEST_F(SingleTest, AtTheLimitIdleHandlesMakeRoom) {
  start(256 * kMiB);
  allocator_->set_limit(32 * kMiB);
  const VirtAddr kept = allocate(4 * kMiB);
  const VirtAddr many = allocate(28 * kMiB);
  free(many);
  EXPECT_FALSE(single(20 * kMiB).is_null()) << "behind a host wait";
  EXPECT_EQ(allocator_->stats().reserved, 32 * kMiB);
  EXPECT_EQ(allocator_->stats().free_handles, 8 * kMiB) << "no more is given up than it needs";
  EXPECT_EQ(rung(Rung::kOwnMappable) + rung(Rung::kGrow), 3U);
  recorder_->take();
  EXPECT_TRUE(single(Bytes(512) + 8 * kMiB).is_null());
  EXPECT_EQ(called("release"), 0U) << "nothing is given up in vain";
  EXPECT_TRUE(allocator_->last_oom().limit_reached);
  EXPECT_FALSE(single(8 * kMiB).is_null());
  free(kept);
}

TEST_F(SingleTest, WhenTheDeviceIsFullToo) {
  start(32 * kMiB);
  const VirtAddr many = allocate(32 * kMiB);
  free(many);
  EXPECT_FALSE(single(32 * kMiB).is_null());
  EXPECT_TRUE(single(Bytes(512)).is_null());
  EXPECT_FALSE(allocator_->last_oom().limit_reached);
  EXPECT_EQ(allocator_->last_oom().requested, Bytes(512));
}

TEST_F(SingleTest, OtherStreamsMemoryServesBehindADeviceWait) {
  start(8 * kMiB);
  const VirtAddr block = single(8 * kMiB, kA);
  free(block);
  recorder_->take();
  EXPECT_EQ(single(6 * kMiB, kB), block);
  const Calls calls = recorder_->take();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "stream_wait"), 1);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "event_synchronize"), 0);
  EXPECT_EQ(rung(Rung::kDeviceWait), 1U);
}

TEST_F(SingleTest, PendingMemoryServesBehindAHostWait) {
  start(8 * kMiB);
  const VirtAddr block = allocate(8 * kMiB);
  use_on(block, kA, kB);
  free(block);
  EXPECT_FALSE(single(8 * kMiB, kC).is_null());
}

TEST_F(SingleTest, PinnedHandlesMakeNoRoom) {
  start(16 * kMiB);
  VirtAddr blocks[4];
  for (VirtAddr& block : blocks) {
    block = allocate(4 * kMiB);
  }
  ASSERT_TRUE(allocator_->pin(blocks[1]).ok());
  for (const VirtAddr block : blocks) {
    free(block);
  }
  sim_->complete_all();
  EXPECT_TRUE(single(Bytes(512) + 12 * kMiB).is_null());
  EXPECT_TRUE(sim_->check_contents(blocks[1], 4 * kMiB, 2).ok());
  EXPECT_FALSE(single(12 * kMiB).is_null());
  ASSERT_TRUE(allocator_->unpin(blocks[1]).ok());
}

TEST_F(SingleTest, CallbacksAreAskedAndSizesRefusedAsEver) {
  start(8 * kMiB);
  const VirtAddr block = allocate(8 * kMiB);
  int asked = 0;
  allocator_->add_pressure_callback([&](DeviceOrdinal, Bytes) {
    if (++asked == 1) {
      free(block);
    }
    return asked == 1;
  });
  EXPECT_FALSE(single(8 * kMiB).is_null());
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(allocator_->allocate_single(Bytes(0), kA).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->allocate_single(8 * kMiB + Bytes(1), kA).code(), Errc::kOutOfMemory);
  EXPECT_EQ(allocator_->allocate_single(Bytes(UINT64_MAX), kA).code(), Errc::kOutOfMemory);
  allocator_->set_limit(4 * kMiB);
  EXPECT_EQ(allocator_->allocate_single(Bytes(512), kA).code(), Errc::kLimit);
}

TEST_F(SingleTest, InAPoolBeingFilledNothingIsWaitedFor) {
  start(16 * kMiB);
  free(allocate(12 * kMiB));
  begin_pool({1, 1}, kB);
  sim_->begin_capture(kB);
  recorder_->take();
  EXPECT_TRUE(allocator_->allocate_single(8 * kMiB, kB).code() == Errc::kOutOfMemory);
  EXPECT_EQ(called("event_synchronize"), 0U);
  const Result<VirtAddr> block = allocator_->allocate_single(4 * kMiB, kB);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(pool_of(block.value()), (PoolKey{1, 1}));
  EXPECT_TRUE(sim_->end_capture(kB));
  ASSERT_TRUE(allocator_->end_allocate_to_pool({1, 1}).ok());
}

TEST_F(SingleTest, PlainBackend) {
  start(64 * kMiB, 4 * kMiB, false);
  const VirtAddr block = allocator_->allocate_single(5 * kMiB, kA).value();
  EXPECT_EQ(called("malloc 5"), 1U);
  EXPECT_TRUE(allocator_->free(block).ok());
}

TEST_F(SingleTest, ADriverThatFailsHalfWayLosesNothing) {
  for (const DriverCall call : {DriverCall::kCreate, DriverCall::kMap, DriverCall::kSetAccess}) {
    start(64 * kMiB);
    sim_->fail_call(call, 1, Errc::kDriverFailure, true);
    EXPECT_EQ(allocator_->allocate_single(6 * kMiB, kA).code(), Errc::kDriverFailure);
    allocator_->check();
    EXPECT_EQ(allocator_->stats().reserved, Bytes(0));
    sim_->clear_faults();
    EXPECT_FALSE(single(6 * kMiB).is_null());
    allocator_.reset();
    tags_.clear();
  }
}

}  // namespace
}  // namespace nofrag
