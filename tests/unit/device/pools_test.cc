// Pools and captures: routing, privacy, release, and that no call of ours breaks a capture.
#include <algorithm>

#include "device_fixture.h"

namespace nofrag {
namespace {

class PoolsTest : public DeviceFixture {
 protected:
  void begin_capture(PoolKey pool, StreamId stream) {
    begin_pool(pool, stream);
    sim_->begin_capture(stream);
  }
  // A block of the first pool that the stream gave up, eagerly or in a capture.
  VirtAddr freed_in_pool(StreamId stream, Bytes size) {
    begin_pool(kFirst, stream);
    const VirtAddr block = allocate(size, stream);
    free(block);
    EXPECT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
    return block;
  }
  VirtAddr freed_in_capture(StreamId stream, Bytes size) {
    begin_capture(kFirst, stream);
    const VirtAddr block = allocator_->allocate(size, stream).value();
    EXPECT_TRUE(allocator_->free(block).ok());
    end_capture(kFirst, stream);
    return block;
  }
  void end_capture(PoolKey pool, StreamId stream) {
    EXPECT_TRUE(sim_->end_capture(stream)) << "the capture was invalidated";
    EXPECT_TRUE(allocator_->end_allocate_to_pool(pool).ok());
  }
};

TEST_F(PoolsTest, TheInnermostFilterThatAcceptsDecides) {
  start(256 * kMiB);
  begin_pool(kFirst, kA);
  ASSERT_TRUE(allocator_->begin_allocate_to_pool(kSecond, nullptr).ok());  // everything
  EXPECT_EQ(pool_of(allocate(kMiB, kA)), kSecond);
  EXPECT_EQ(pool_of(allocate(kMiB, kB)), kSecond);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kSecond).ok());
  EXPECT_EQ(pool_of(allocate(kMiB, kA)), kFirst);
  EXPECT_EQ(pool_of(allocate(kMiB, kB)), PoolKey{});
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  EXPECT_EQ(pool_of(allocate(kMiB, kA)), PoolKey{});
  EXPECT_EQ(allocator_->stats().pools, 3U);
}

TEST_F(PoolsTest, EndInAnyOrderEndsTheRightOne) {
  start(256 * kMiB);
  begin_pool(kFirst, kA);
  begin_pool(kSecond, kA);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  EXPECT_EQ(pool_of(allocate(kMiB, kA)), kSecond);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kSecond).ok());
  EXPECT_EQ(allocator_->end_allocate_to_pool(kSecond).code(), Errc::kInvalidArgument);
}

TEST_F(PoolsTest, MisuseIsRefused) {
  start(64 * kMiB);
  EXPECT_EQ(allocator_->begin_allocate_to_pool(PoolKey{}, nullptr).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->end_allocate_to_pool(kFirst).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->release_pool(kFirst).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->release_pool(PoolKey{}).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->allocate_in_pool(kMiB, kA, kFirst).code(), Errc::kInvalidArgument);
  begin_pool(kFirst, kA);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  EXPECT_TRUE(allocator_->release_pool(kFirst).ok());
  EXPECT_EQ(allocator_->release_pool(kFirst).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->allocate_in_pool(kMiB, kA, kFirst).code(), Errc::kInvalidArgument)
      << "graphs may still write what is free in a released pool";
  EXPECT_EQ(allocator_->begin_allocate_to_pool({UINT64_MAX, 1}, nullptr).code(),
            Errc::kInvalidArgument)
      << "names of pools set aside";
}

TEST_F(PoolsTest, AHeldPoolLendsNothing) {
  start(16 * kMiB);
  begin_pool(kFirst, kA);
  const VirtAddr in_pool = allocate(12 * kMiB, kA);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  free(in_pool);
  sim_->complete_all();
  EXPECT_TRUE(allocate(8 * kMiB, kA).is_null());
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().reserved, 12 * kMiB);
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  EXPECT_FALSE(allocate(16 * kMiB, kA).is_null());
}

TEST_F(PoolsTest, AReleasedPoolIsSettledBeforeItLends) {
  start(16 * kMiB);
  begin_capture(kFirst, kA);
  const VirtAddr block = allocator_->allocate(12 * kMiB, kA).value();
  end_capture(kFirst, kA);
  ASSERT_TRUE(allocator_->free(block).ok());
  // The graph is replayed on a stream that nobody named, and is still running at the release.
  ASSERT_TRUE(sim_->write(kC, block, 12 * kMiB, 99).ok());
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  recorder_->take();
  EXPECT_FALSE(allocate(16 * kMiB, kB).is_null());
  const Calls calls = recorder_->take();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "device_synchronize"), 1);
}

TEST_F(PoolsTest, ReleasedPoolsGoWhenTheyAreEmpty) {
  start(64 * kMiB);
  begin_pool(kFirst, kA);
  const VirtAddr block = allocate(4 * kMiB, kA);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().pools, 2U) << "a block lives in it";
  free(block);
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().pools, 1U);
  EXPECT_EQ(allocator_->stats().reserved, Bytes(0));
}

TEST_F(PoolsTest, ManyPoolsComeAndGoWithoutUsingUpAddresses) {
  start(64 * kMiB);
  for (std::uint64_t i = 0; i < 3000; ++i) {
    begin_pool({9, i}, kA);
    const Result<VirtAddr> block = allocator_->allocate(kMiB, kA);
    ASSERT_TRUE(block.ok()) << i;
    ASSERT_TRUE(allocator_->end_allocate_to_pool({9, i}).ok());
    ASSERT_TRUE(allocator_->free(block.value()).ok());
    ASSERT_TRUE(allocator_->release_pool({9, i}).ok());
    if (i % 16 == 15) {
      allocator_->trim();
    }
  }
}

// Nobody trims.
TEST_F(PoolsTest, ReleasedPoolsDoNotPileUp) {
  start(512 * kMiB);
  for (std::uint64_t i = 0; i < 500; ++i) {
    begin_pool({9, i}, kA);
    const Result<VirtAddr> block = allocator_->allocate(kMiB, kA);
    ASSERT_TRUE(block.ok()) << i;
    ASSERT_TRUE(allocator_->end_allocate_to_pool({9, i}).ok());
    ASSERT_TRUE(allocator_->free(block.value()).ok());
    ASSERT_TRUE(allocator_->release_pool({9, i}).ok());
    ASSERT_LE(allocator_->stats().pools, 66U);
  }
}

// Where addresses are few a pool begins with fewer, in the end with just what it needs.
TEST_F(PoolsTest, ManyPoolsInUseAtOnce) {
  start(16 * kGiB);
  for (std::uint64_t nth = 1; nth <= 6; ++nth) {
    sim_->fail_call(
        DriverCall::kReserve, nth, Errc::kDriverFailure);  // four times the memory is left
  }
  for (std::uint64_t i = 0; i < 150; ++i) {
    begin_pool({9, i}, kA);
    ASSERT_TRUE(allocator_->allocate(kMiB, kA).ok()) << i;
    ASSERT_TRUE(allocator_->end_allocate_to_pool({9, i}).ok());
  }
}

// The wait that settles a released pool is for the device's own context only.
TEST_F(PoolsTest, SettlingAPoolSaysNothingOfAnotherContextsStream) {
  start(64 * kMiB);
  allocate(kMiB, kB);  // several streams
  sim_->fail_call(DriverCall::kEventRecord, 1, Errc::kInvalidArgument, true);
  begin_pool(kFirst, kA);
  const VirtAddr block = allocate(4 * kMiB, kA);  // its first marker is refused
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  free(block);
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  begin_pool(kFirst, kB);  // settled
  const VirtAddr other = allocate(4 * kMiB, kB);
  EXPECT_NE(other, block);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
}

// A block allocated in a capture outlives it, and is used by the same stream for as long as it lives.
TEST_F(PoolsTest, ABlockOfACaptureIsNotUnmappedUnderItsStreamsLaterWork) {
  start(64 * kMiB);
  begin_capture(kFirst, kA);
  const VirtAddr block = allocator_->allocate(8 * kMiB, kA).value();
  end_capture(kFirst, kA);
  allocate(kMiB, kA);  // the handle is seen outside of the capture
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  allocator_->trim();                                     // settles the pool: waits for the device
  ASSERT_TRUE(sim_->write(kA, block, 8 * kMiB, 7).ok());  // a kernel of the live block's own stream
  ASSERT_TRUE(allocator_->free(block).ok());
  sim_->set_completion(Completion::kByHand);
  allocator_->begin_allocate_to_pool(kSecond, [](StreamId s) { return s == kB; }).ignore();
  allocator_->trim();  // waits for nothing while a pool is filled: the kernel still runs
  EXPECT_EQ(sim_->violation_count(), 0U) << "unmapped under a running kernel";
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kSecond).ok());
}

// A graph may be replayed after any wait: what it freed serves its own streams only.
TEST_F(PoolsTest, ACompositionInAPoolDoesNotCrossStreams) {
  Options options;
  options.handle_size = 8 * kMiB;
  options.reserve_slack = 0.0;
  start(kGiB, options);
  begin_capture(kFirst, kA);
  const VirtAddr captured = allocator_->allocate(64 * kMiB, kA).value();
  ASSERT_TRUE(allocator_->free(captured).ok());
  end_capture(kFirst, kA);
  // A wait for the whole device.
  for (int i = 0; i < 2; ++i) {
    begin_pool(kSecond, kB);
    ASSERT_TRUE(allocator_->end_allocate_to_pool(kSecond).ok());
    ASSERT_TRUE(allocator_->release_pool(kSecond).ok());
  }
  const VirtAddr other = allocator_->allocate_in_pool(64 * kMiB, kB, kFirst).value();
  written(other, 64 * kMiB, kB);
  ASSERT_TRUE(sim_->write(kC, captured, 64 * kMiB, 99).ok()) << "a replay";
  sim_->complete_all();
  free(other);  // looks at its bytes
}

// The same under pressure, where a view's run is made longer by a handle of the pool that another stream freed.
TEST_F(PoolsTest, AWindowInAPoolDoesNotCrossStreams) {
  Options options;
  options.handle_size = 8 * kMiB;
  options.reserve_slack = 0.0;
  options.max_cuts = 0;
  start(kGiB, options);
  begin_capture(kFirst, kA);
  const VirtAddr graph = allocator_->allocate(8 * kMiB, kA).value();
  ASSERT_TRUE(allocator_->free(graph).ok());
  end_capture(kFirst, kA);
  // Stream B composes a view of two of its handles, and frees it.
  std::vector<VirtAddr> own;
  for (int i = 0; i < 4; ++i) {
    own.push_back(allocator_->allocate_in_pool(8 * kMiB, kB, kFirst).value());
  }
  ASSERT_TRUE(allocator_->free(own[0]).ok());
  ASSERT_TRUE(allocator_->free(own[2]).ok());
  sim_->set_memory_of_others(kDevice, sim_->memory_info(kDevice).value().free);
  const VirtAddr view = allocator_->allocate_in_pool(16 * kMiB, kB, kFirst).value();
  ASSERT_TRUE(allocator_->free(view).ok());
  recorder_->take();
  // The graph's handle would be just what is missing behind it.
  EXPECT_FALSE(allocator_->allocate_in_pool(24 * kMiB, kB, kFirst).ok());
  EXPECT_EQ(count(recorder_->take(), "map"), 0);
  EXPECT_EQ(allocator_->allocate_in_pool(16 * kMiB, kB, kFirst).value(), view);
  sim_->set_memory_of_others(kDevice, Bytes(0));
}

// PyTorch's graph trees run a function in its pool first, on the stream that they capture then.
TEST_F(PoolsTest, ACaptureTakesWhatItsStreamWarmedUpWith) {
  start(256 * kMiB);
  free(allocate(kMiB, kB));
  const VirtAddr warm = freed_in_pool(kA, 40 * kMiB);
  allocator_->trim();
  sim_->complete_all();
  const Bytes reserved = allocator_->stats().reserved;
  begin_capture(kFirst, kA);
  EXPECT_EQ(allocator_->allocate(40 * kMiB, kA).value(), warm);
  EXPECT_EQ(allocator_->stats().reserved, reserved);
  ASSERT_TRUE(allocator_->free(warm).ok());
  end_capture(kFirst, kA);
}

TEST_F(PoolsTest, WarmingUpAfterACaptureTakesWhatTheGraphHasForItself) {
  start(256 * kMiB);
  free(allocate(kMiB, kA));  // else nobody knows whose capture it was
  const VirtAddr captured = freed_in_capture(kA, 40 * kMiB);
  const Bytes reserved = allocator_->stats().reserved;
  begin_pool(kFirst, kA);
  begin_pool(kFirst, kB);
  EXPECT_NE(allocate(16 * kMiB, kB), captured) << "another stream's";
  EXPECT_EQ(allocate(40 * kMiB, kA), captured);
  EXPECT_EQ(allocator_->stats().reserved, reserved + 16 * kMiB);
  EXPECT_NE(pool_of(allocate(kMiB, kA)), PoolKey{});
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  EXPECT_EQ(pool_of(allocate(kMiB, kA)), PoolKey{});
}

TEST_F(PoolsTest, ACaptureTakesNothingThatItsStreamMayStillUse) {
  start(256 * kMiB);
  free(allocate(kMiB, kB));
  const VirtAddr warm = freed_in_pool(kA, 40 * kMiB);
  sim_->complete_stream(kB);
  // The graph can be launched, on any stream, while that work still runs.
  begin_capture(kFirst, kA);
  EXPECT_NE(allocator_->allocate(40 * kMiB, kA).value(), warm);
  end_capture(kFirst, kA);
}

// Nobody keeps the graph from running while single blocks are asked of its pool.
TEST_F(PoolsTest, WhatAGraphHasForItselfServesOnlyWhoFillsThePool) {
  start(256 * kMiB);
  free(allocate(kMiB, kA));
  const VirtAddr captured = freed_in_capture(kA, 40 * kMiB);
  ASSERT_TRUE(sim_->write(kC, captured, 40 * kMiB, 99).ok());  // the graph runs
  const VirtAddr other = allocator_->allocate_in_pool(40 * kMiB, kA, kFirst).value();
  ASSERT_TRUE(sim_->write(kA, other, 40 * kMiB, 7).ok());
  EXPECT_NE(other, captured);
  begin_pool(kSecond, kA);
  EXPECT_NE(allocator_->allocate_in_pool(20 * kMiB, kA, kFirst).value(), captured)
      << "another pool";
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kSecond).ok());
  EXPECT_EQ(sim_->violation_count(), 0U);
}

TEST_F(PoolsTest, ANewStreamOfTheHandleGetsNothingOfTheOldOnesCapture) {
  start(256 * kMiB);
  free(allocate(kMiB, kA));
  const VirtAddr captured = freed_in_capture(kA, 40 * kMiB);
  sim_->complete_all();
  sim_->destroy_stream(kA);
  begin_pool(kFirst, kA);
  EXPECT_NE(allocate(40 * kMiB, kA), captured);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
}

TEST_F(PoolsTest, ACaptureTakesNothingOfAnotherStreams) {
  start(256 * kMiB);
  free(allocate(kMiB, kA));
  const VirtAddr warm = freed_in_pool(kB, 40 * kMiB);
  allocator_->trim();
  sim_->complete_all();
  begin_capture(kFirst, kA);
  EXPECT_NE(allocator_->allocate(40 * kMiB, kA).value(), warm);
  end_capture(kFirst, kA);
}

// Everything that can be called while a stream is captured is: the capture stays valid.
TEST_F(PoolsTest, NothingBreaksACapture) {
  start(32 * kMiB);
  const VirtAddr a = allocate(8 * kMiB, kA);
  const VirtAddr b = allocate(8 * kMiB, kB);
  use_on(b, kB, kA);
  begin_capture(kFirst, kA);
  const VirtAddr captured = allocator_->allocate(4 * kMiB, kA).value();
  EXPECT_EQ(pool_of(captured), kFirst);
  free(b);  // pending on the captured stream
  EXPECT_TRUE(allocator_->record_stream(captured, kB).ok());
  free(a);
  EXPECT_TRUE(allocate(24 * kMiB, kB).is_null());  // the whole ladder
  EXPECT_FALSE(allocator_->allocate(24 * kMiB, kA).ok());
  allocator_->trim();
  allocator_->set_limit(8 * kMiB);
  allocator_->set_limit(kNoLimit);
  EXPECT_FALSE(allocator_->retire_stream(kA).ok());
  EXPECT_TRUE(allocator_->free(captured).ok());
  end_capture(kFirst, kA);
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  EXPECT_FALSE(allocate(32 * kMiB, kB).is_null()) << "and everything is free again";
}

// Captured without a pool of ours: still no device-wide wait.
TEST_F(PoolsTest, ReleaseDuringAForeignCaptureWaits) {
  start(16 * kMiB);
  begin_pool(kFirst, kB);
  const VirtAddr block = allocate(12 * kMiB, kB);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  free(block);
  free(allocate(kMiB, kA));
  sim_->begin_capture(kA);
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  EXPECT_TRUE(allocate(12 * kMiB, kB).is_null());
  allocator_->trim();
  EXPECT_TRUE(sim_->end_capture(kA));
  EXPECT_FALSE(allocate(12 * kMiB, kB).is_null());
}

TEST_F(PoolsTest, PlainBackendKeepsAGraphsBlocksUntilTheRelease) {
  start(64 * kMiB, 4 * kMiB, false);
  begin_capture(kFirst, kA);
  const VirtAddr block = allocator_->allocate(40 * kMiB, kA).value();
  EXPECT_TRUE(allocator_->free(block).ok());
  end_capture(kFirst, kA);
  EXPECT_TRUE(sim_->write(kC, block, 40 * kMiB, 5).ok()) << "a replay";
  EXPECT_TRUE(allocate(40 * kMiB, kB).is_null());
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  EXPECT_FALSE(allocate(40 * kMiB, kB).is_null());
}

TEST_F(PoolsTest, PlainFreesPutOffDuringACaptureAreNotLost) {
  start(64 * kMiB, 4 * kMiB, false);
  const VirtAddr a = allocate(40 * kMiB, kB);
  begin_capture(kFirst, kA);
  free(a);
  EXPECT_EQ(allocator_->stats().reserved, 40 * kMiB);
  end_capture(kFirst, kA);
  EXPECT_EQ(allocator_->stats().reserved, Bytes(0));
  const VirtAddr b = allocate(20 * kMiB, kB);
  begin_pool(kSecond, kA);
  free(b);  // still put off when the allocator goes: the fixture looks for leaks
}

}  // namespace
}  // namespace nofrag
