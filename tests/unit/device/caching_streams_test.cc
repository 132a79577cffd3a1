// Kept blocks and streams: no stream has what another one's work may still touch, whoever keeps it and
// whatever became of the stream. The work is completed by hand; the simulated driver reports unordered use.
#include "cache_fixture.h"

namespace nofrag {
namespace {

class CachingStreams : public CacheFixture {
 protected:
  // Both threads keep a block of kA, whose work has not run.
  void keep_on_both_threads() {
    mine_ = allocate(kSize);
    theirs_ = allocate(kSize);
    free(mine_);
    other([&] {
      free(allocate(kSize));  // makes the thread's cache
      free(theirs_);
    });
  }
  // Neither thread gets for `stream` what is there, before the work is done.
  void expect_nothing_early(StreamId stream) {
    const auto ask = [&] {
      for (const VirtAddr block : allocate_many(4, kSize, stream)) {
        EXPECT_NE(block, mine_);
        EXPECT_NE(block, theirs_);
      }
    };
    ask();
    other(ask);
  }
  static constexpr Bytes kSize = 64 * kKiB;
  VirtAddr mine_;
  VirtAddr theirs_;
};

TEST_F(CachingStreams, AnotherStreamGetsNoKeptBlockEarly) {
  open();
  keep_on_both_threads();
  expect_nothing_early(kB);
}

TEST_F(CachingStreams, UnderPressureAnotherStreamHasItBehindAWait) {
  open(64 * kMiB);
  const std::vector<VirtAddr> all = allocate_many(64 * 4, 256 * kKiB, kA);
  free_all(all);
  ASSERT_GT(kept(), Bytes(0));
  recorder_->take();
  const VirtAddr block = allocate(64 * kMiB, kB);
  ASSERT_FALSE(block.is_null());
  const Calls calls = recorder_->take();
  EXPECT_GT(count(calls, "stream_wait") + count(calls, "event_synchronize") +
                count(calls, "device_synchronize"),
            0);
  EXPECT_EQ(kept(), Bytes(0));
}

TEST_F(CachingStreams, TwoNamesOfTheDefaultStreamAreOne) {
  open();
  const VirtAddr block = kept_block(kSize, StreamId(0));
  recorder_->take();
  // (The simulated driver takes them for two: the block is written on the first.)
  EXPECT_EQ(allocator_->allocate(kSize, StreamId(1)).value(), block);
  EXPECT_EQ(recorder_->take(), Calls{});
  free(written(block, kSize, StreamId(0)));
}

// The per-thread default stream is another one in every thread.
TEST_F(CachingStreams, PerThreadStreamsAreNotMixedUp) {
  open();
  const StreamId per_thread(2);
  const VirtAddr mine = allocate(kSize, per_thread);
  VirtAddr theirs;
  other([&] {
    theirs = allocate(kSize, per_thread);
    free(theirs);
    free(mine);  // of my stream: its thread may not have it
    const VirtAddr next = allocate(kSize, per_thread);
    EXPECT_EQ(next, theirs);
    EXPECT_NE(allocate(kSize, per_thread), mine);
  });
  EXPECT_NE(allocate(kSize, per_thread), theirs);
  allocator_->check();
}

// ---- streams that go

TEST_F(CachingStreams, RetiringAStreamGivesBackWhatWasKept) {
  open();
  keep_on_both_threads();
  keep(1, kSize, kB);
  ASSERT_TRUE(allocator_->retire_stream(kA).ok());
  EXPECT_EQ(stats().live, Bytes(0));
  sim_->destroy_stream(kA);
  expect_nothing_early(kA);  // another stream now
  allocator_->check();
}

TEST_F(CachingStreams, WhatIsFreedAfterItsStreamRetiredIsNotKept) {
  open();
  keep(1, kSize);
  const std::vector<VirtAddr> blocks = allocate_many(4, kSize);
  ASSERT_TRUE(allocator_->retire_stream(kA).ok());
  sim_->destroy_stream(kA);
  keep(1, kSize);  // on the new stream of that name
  const Bytes before = kept();
  free_all(blocks);
  EXPECT_EQ(kept(), before);
  for (const VirtAddr block : allocate_many(8, kSize)) {
    EXPECT_EQ(std::count(blocks.begin(), blocks.end(), block), 0);
  }
}

TEST_F(CachingStreams, RetiredMemoryServesOnceTheWorkIsDone) {
  open(16 * kMiB);
  keep(32, 256 * kKiB);
  ASSERT_TRUE(allocator_->retire_stream(kA).ok());
  EXPECT_EQ(kept(), Bytes(0));
  sim_->complete_stream(kA);
  sim_->destroy_stream(kA);
  EXPECT_FALSE(allocate(16 * kMiB, kB).is_null());
}

TEST_F(CachingStreams, OnRequestStreamsAreCheckedInstead) {
  Options options = small_handles();
  options.check_streams = true;
  open(4 * kGiB, options);
  keep_on_both_threads();
  sim_->destroy_stream(kA);  // nobody said so
  expect_nothing_early(kA);
  allocator_->check();
}

TEST_F(CachingStreams, ACheckedStreamThatLivesOnHasItsBlocks) {
  Options options = small_handles();
  options.check_streams = true;
  open(4 * kGiB, options);
  const VirtAddr block = kept_block(kSize);
  recorder_->take();
  EXPECT_EQ(allocate(kSize), block);
  EXPECT_EQ(recorder_->take(), Calls{});
}

TEST_F(CachingStreams, StreamsForEachRequestLeaveNothingBehind) {
  open();
  for (std::uint64_t i = 0; i < 200; ++i) {
    const StreamId stream(0x1000 + i);
    keep(4, kSize, stream);
    other([&] { keep(4, kSize, stream); });
    sim_->complete_stream(stream);
    if (i % 2 == 0) {
      ASSERT_TRUE(allocator_->retire_stream(stream).ok());
      sim_->destroy_stream(stream);
    }
  }
  expect_sums(stats());
  allocator_->trim();
  EXPECT_EQ(stats().reserved, Bytes(0));
}

// While it is captured a stream may not be asked who it is; its kept blocks are still its own.
TEST_F(CachingStreams, ACaptureIsNotDisturbed) {
  Options options = small_handles();
  options.check_streams = true;
  open(4 * kGiB, options);
  keep(2, kSize);
  sim_->begin_capture(kA);
  const Result<VirtAddr> block = allocator_->allocate(kSize, kA);
  ASSERT_TRUE(block.ok());
  EXPECT_TRUE(allocator_->free(block.value()).ok());
  EXPECT_FALSE(sim_->capture_invalidated(kA));
  EXPECT_TRUE(sim_->end_capture(kA));
}

}  // namespace
}  // namespace nofrag
