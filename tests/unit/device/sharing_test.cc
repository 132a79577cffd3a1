// Memory between streams: record_stream, completion in any order, streams that go away.
#include <thread>

#include "device_fixture.h"

namespace nofrag {
namespace {

class SharingTest : public DeviceFixture {};

TEST_F(SharingTest, ARecordedBlockIsPendingUntilItsStreamIsDone) {
  start(64 * kMiB);
  const VirtAddr block = allocate(4 * kMiB, kA);
  use_on(block, kA, kB);
  free(block);
  EXPECT_EQ(allocator_->stats().pending, 4 * kMiB);
  EXPECT_EQ(allocator_->find(block).code(), Errc::kUnknownPointer);
  EXPECT_EQ(allocator_->free(block).code(), Errc::kUnknownPointer);
  EXPECT_NE(allocate(4 * kMiB, kA), block) << "its own stream may not have it either";
  sim_->complete_stream(kA);
  sim_->complete_stream(kB);
  allocator_->trim(kNoLimit);
  EXPECT_EQ(allocator_->stats().pending, Bytes(0));
}

TEST_F(SharingTest, RecordingTheOwnStreamCostsNothing) {
  start(64 * kMiB);
  const VirtAddr block = allocate(4 * kMiB, kA);
  EXPECT_TRUE(allocator_->record_stream(block, kA).ok());
  free(block);
  EXPECT_EQ(allocator_->stats().pending, Bytes(0));
  EXPECT_EQ(allocate(4 * kMiB, kA), block);
}

TEST_F(SharingTest, RecordStreamOfAnythingElseIsUnknown) {
  start(64 * kMiB);
  const VirtAddr block = allocate(4 * kMiB, kA);
  EXPECT_EQ(allocator_->record_stream(block + Bytes(512), kB).code(), Errc::kUnknownPointer);
  EXPECT_EQ(allocator_->record_stream(VirtAddr(std::uint64_t{512}), kB).code(),
            Errc::kUnknownPointer);
}

TEST_F(SharingTest, AllRecordedStreamsMustBeDone) {
  start(64 * kMiB);
  const VirtAddr block = allocate(4 * kMiB, kA);
  use_on(block, kA, kB);
  use_on(block, kA, kC);
  use_on(block, kA, kB);  // twice is once
  free(block);
  sim_->complete_stream(kA);
  sim_->complete_stream(kC);
  allocator_->trim(kNoLimit);
  EXPECT_EQ(allocator_->stats().pending, 4 * kMiB);
  sim_->complete_stream(kB);
  allocator_->trim(kNoLimit);
  EXPECT_EQ(allocator_->stats().pending, Bytes(0));
}

// A stuck stream's blocks do not hold up those of a stream that goes on.
TEST_F(SharingTest, CompletionIsFoundOutOfOrder) {
  start(64 * kMiB);
  const VirtAddr stuck = allocate(4 * kMiB, kA);
  const VirtAddr quick = allocate(4 * kMiB, kA);
  use_on(stuck, kA, kB);
  use_on(quick, kA, kC);
  free(stuck);
  free(quick);
  sim_->complete_stream(kA);
  sim_->complete_stream(kC);
  allocator_->trim(kNoLimit);
  EXPECT_EQ(allocator_->stats().pending, 4 * kMiB);
  EXPECT_EQ(allocate(4 * kMiB, kA), quick);
}

// Work queued on the recorded stream after the free must not hold the block up.
TEST_F(SharingTest, LaterWorkOfARecordedStreamDoesNotHoldABlockUp) {
  start(64 * kMiB);
  const VirtAddr block = allocate(4 * kMiB, kA);
  const VirtAddr other = allocate(4 * kMiB, kB);
  use_on(block, kA, kB);
  free(block);
  sim_->complete_stream(kA);
  sim_->complete_stream(kB);
  launch(other, kB);  // runs for ever
  allocator_->trim(kNoLimit);
  EXPECT_EQ(allocator_->stats().pending, Bytes(0));
}

TEST_F(SharingTest, TrimWaitsForPendingBlocksIfItMust) {
  start(64 * kMiB);
  const VirtAddr block = allocate(4 * kMiB, kA);
  use_on(block, kA, kB);
  free(block);
  EXPECT_EQ(allocator_->trim(), 4 * kMiB);
}

TEST_F(SharingTest, ARetiredStreamsMemoryServesOthers) {
  start(16 * kMiB);
  free(allocate(kMiB, kB));  // kB is no new stream below
  const VirtAddr early = allocate(8 * kMiB, kA);
  const VirtAddr late = allocate(8 * kMiB, kA);
  free(early);
  ASSERT_TRUE(allocator_->retire_stream(kA).ok());
  free(late);  // after its stream is gone
  const std::uint64_t records = sim_->ledger().count(DriverCall::kEventRecord);
  EXPECT_FALSE(allocate(16 * kMiB, kB).is_null());
  EXPECT_EQ(sim_->ledger().count(DriverCall::kEventRecord), records) << "kA is not touched again";
}

TEST_F(SharingTest, ARecordedStreamMayRetireBeforeTheFree) {
  start(16 * kMiB);
  const VirtAddr block = allocate(8 * kMiB, kA);
  use_on(block, kA, kB);
  ASSERT_TRUE(allocator_->retire_stream(kB).ok());
  free(block);
  EXPECT_EQ(allocator_->stats().pending, 8 * kMiB);
  sim_->complete_all();
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().reserved, Bytes(0));
}

// One name, two streams: what a thread queued on its per-thread default stream is not ordered
// behind the block's own thread.
TEST_F(SharingTest, PerThreadDefaultStreamsAreForeignToOneAnother) {
  start(64 * kMiB);
  constexpr StreamId kPerThread(2);
  const VirtAddr block = allocator_->allocate(4 * kMiB, kPerThread).value();
  std::thread([&] { EXPECT_TRUE(allocator_->record_stream(block, kPerThread).ok()); }).join();
  ASSERT_TRUE(allocator_->free(block).ok());
  EXPECT_EQ(allocator_->stats().pending, 4 * kMiB);
}

TEST_F(SharingTest, PerThreadDefaultStreamsDoNotShareFreedMemory) {
  start(64 * kMiB);
  constexpr StreamId kPerThread(2);
  const VirtAddr block = allocator_->allocate(4 * kMiB, kPerThread).value();
  ASSERT_TRUE(allocator_->free(block).ok());
  VirtAddr theirs;
  std::thread([&] { theirs = allocator_->allocate(4 * kMiB, kPerThread).value(); }).join();
  EXPECT_NE(theirs, block);
}

// While memory is plenty streams are asked after every 24th part of the peak, not at every request.
TEST_F(SharingTest, StreamsAreNotAskedAboutLittleMemory) {
  start(4 * kGiB);
  work_is_done_at_once();
  allocate(512 * kMiB, kA);
  const VirtAddr of_a = allocate(4 * kMiB, kA);
  const VirtAddr of_b = allocate(4 * kMiB, kB);
  free(of_a);
  free(of_b);  // each has its own to use again
  recorder_->take();
  for (int i = 0; i < 64; ++i) {
    free(allocate(4 * kMiB, i % 2 == 0 ? kA : kB));
  }
  const Calls calls = recorder_->take();
  EXPECT_LE(count(calls, "event_record"), 2 * (64 * 4 / (512 / 24)) + 1)
      << "a marker a stream each time";
  EXPECT_GE(count(calls, "event_record"), 1);
}

// What streams pass on to each other is mapped again and again, most of it for a few giant blocks: while there is
// plenty those are made of few, large handles, and smaller blocks are not. One stream's of somewhat larger ones.
TEST_F(SharingTest, GiantBlocksAreMadeOfLargeHandlesWhileThereIsPlenty) {
  const auto created = [this](Bytes size, StreamId stream) {
    recorder_->take();
    EXPECT_FALSE(allocator_->allocate(size, stream).value().is_null());
    Calls calls = recorder_->take();
    std::erase_if(calls, [](const std::string& call) { return call.rfind("create ", 0) != 0; });
    return calls;
  };
  start(80 * kGiB, Options{});
  EXPECT_EQ(count(created(2 * kGiB, kA), "create 64"), 32) << "one stream so far";
  allocate(4 * kMiB, kB);
  EXPECT_GE(count(created(8 * kGiB, kB), "create 160"), 51);
  EXPECT_EQ(count(created(128 * kMiB, kA), "create 32"), 4) << "a quarter of the request";
  ASSERT_FALSE(allocator_->allocate(10 * kGiB, kA).value().is_null());
  EXPECT_EQ(count(created(2 * kGiB, kB), "create 32"), 64) << "a quarter is taken";
  start(80 * kGiB, Options{});
  ASSERT_FALSE(allocator_->allocate(10 * kGiB, kA).value().is_null());
  EXPECT_EQ(count(created(2 * kGiB, kA), "create 32"), 64) << "one stream has an eighth";
  start(16 * kGiB, Options{});
  allocate(4 * kMiB, kA);
  allocate(4 * kMiB, kB);
  EXPECT_EQ(count(created(2 * kGiB, kA), "create 64"), 32) << "a 500th of the device is less";
}

// One stream learns from markers only what may be unmapped, which it hardly ever needs while there is plenty.
TEST_F(SharingTest, OneStreamIsAskedRarelyWhileThereIsPlenty) {
  const auto markers_of_four_turnovers = [this](Bytes device) {
    start(device);
    work_is_done_at_once();
    allocate(kGiB - 128 * kMiB);
    recorder_->take();
    for (int i = 0; i < 32; ++i) {
      const VirtAddr block = allocate(128 * kMiB);
      for (int j = 0; j < 8; ++j) {
        free(allocate(4 * kKiB));  // few frees are no reason for a marker
      }
      free(block);
    }
    return count(recorder_->take(), "event_record");
  };
  EXPECT_LE(markers_of_four_turnovers(64 * kGiB), 4 * 4 + 1);
  EXPECT_GE(markers_of_four_turnovers(64 * kGiB), 4 * 4 - 1);
  EXPECT_GE(markers_of_four_turnovers(kGiB + 128 * kMiB), 32) << "little is left";
}

}  // namespace
}  // namespace nofrag
