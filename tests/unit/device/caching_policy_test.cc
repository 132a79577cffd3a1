// What is kept, and in which sizes: sparingly where memory may run short, freely once small requests come thick
// and fast; and never too much by all threads together.
#include "cache_fixture.h"

namespace nofrag {
namespace {

// Of the 16 GiB of the device: more than next to nothing, less than half.
constexpr Bytes kInUse = 700 * kMiB;
constexpr std::size_t kMany = 600;  // small requests that miss, one after the other

class CachingPolicy : public CacheFixture {
 protected:
  void thick_and_fast(StreamId stream = kA) {
    const std::vector<VirtAddr> blocks = allocate_many(kMany, Bytes(512), stream);
    free_all(blocks);
  }
  void several_streams() { free(allocate(Bytes(512), kB)); }
  // Freed, is a block of this size given out again without the lock?
  bool keeps(Bytes size) {
    const VirtAddr block = allocate(size);
    const Bytes before = kept();
    free(block);
    return kept() == before + size;
  }
};

TEST_F(CachingPolicy, SeveralStreamsGetTheVerySizeUntilSmallRequestsAreMany) {
  open();
  several_streams();
  VirtAddr block = kept_block(97 * kKiB);
  EXPECT_EQ(allocator_->find(allocate(97 * kKiB)).value().size, 97 * kKiB);
  thick_and_fast();
  block = kept_block(97 * kKiB);
  EXPECT_EQ(allocate(103 * kKiB), block) << "the class goes up to 104";
  EXPECT_EQ(stats().requested, 200 * kKiB);
  expect_sums(stats());
}

// A block that lives on would tie up for ever what it is larger than its request.
TEST_F(CachingPolicy, OneStreamTooGetsTheVerySizeUntilSmallRequestsAreMany) {
  open();
  VirtAddr block = kept_block(97 * kKiB);
  EXPECT_EQ(allocate(97 * kKiB), block);
  EXPECT_EQ(allocator_->find(block).value().size, 97 * kKiB);
  free(block);
  EXPECT_NE(allocate(96 * kKiB), block) << "of the same class";
  EXPECT_EQ(stats().live, stats().requested);
  thick_and_fast();
  block = kept_block(97 * kKiB);
  EXPECT_EQ(allocator_->find(allocate(103 * kKiB)).value().size, 104 * kKiB);
}

TEST_F(CachingPolicy, SeveralStreamsKeepNothingWhereLargeRequestsAreMany) {
  open();
  several_streams();
  EXPECT_TRUE(keeps(32 * kKiB));
  EXPECT_FALSE(keeps(3 * kMiB))
      << "another stream's work may have come so far that the heap would choose anew";
  other([&] { keep(8, 32 * kKiB); });
  for (int i = 0; i < 3; ++i) {
    free(allocate(3 * kMiB));
  }
  EXPECT_EQ(kept(), Bytes(0)) << "nor what another thread kept";
  EXPECT_FALSE(keeps(Bytes(512)));
  // One large to ten small ones, which are hits for the most part.
  for (int i = 0; i < 200; ++i) {
    allocate(3 * kMiB);
    allocate_many(10, Bytes(512));
  }
  EXPECT_TRUE(keeps(Bytes(512)));
  for (int i = 0; i < 200; ++i) {
    free(allocate(3 * kMiB));
    keep(10, Bytes(512));
  }
  EXPECT_TRUE(keeps(Bytes(512))) << "hits count too";
  // Half of them large.
  for (int i = 0; i < 100; ++i) {
    free(allocate(3 * kMiB));
    keep(1, Bytes(512));
  }
  EXPECT_FALSE(keeps(Bytes(512)));
  expect_sums(stats());
  allocator_->check();
}

TEST_F(CachingPolicy, ALargerClassServesWhileThereIsPlenty) {
  open();
  thick_and_fast();
  const VirtAddr block = kept_block(200 * kKiB);
  EXPECT_EQ(allocate(120 * kKiB), block);
  free(block);
  EXPECT_NE(allocate(100 * kKiB), block) << "twice as large and more";
  allocate(kInUse);
  thick_and_fast();
  const VirtAddr other_block = kept_block(400 * kKiB);
  EXPECT_NE(allocate(300 * kKiB), other_block) << "no longer";
  EXPECT_EQ(allocate(390 * kKiB), other_block);
}

TEST_F(CachingPolicy, WhereMemoryMayRunShortOnlySmallBlocksAreKeptUntilThereAreMany) {
  open();
  several_streams();
  const VirtAddr large = allocate(kInUse);
  EXPECT_TRUE(keeps(32 * kKiB));
  EXPECT_FALSE(keeps(33 * kKiB));
  thick_and_fast();
  EXPECT_TRUE(keeps(128 * kKiB));
  // Large requests find the heap as if nothing were kept; when they are many, nothing is.
  for (int i = 0; i < 16; ++i) {
    free(allocate(3 * kMiB));
  }
  EXPECT_EQ(kept(), Bytes(0));
  EXPECT_FALSE(keeps(128 * kKiB));
  free(large);
}

TEST_F(CachingPolicy, WhatOtherThreadsKeepGoesWhenLargeRequestsAreMany) {
  open();
  several_streams();
  allocate(kInUse);
  thick_and_fast();
  other([&] { keep(8, 256 * kKiB); });
  EXPECT_GE(kept(), 2 * kMiB);
  for (int i = 0; i < 16; ++i) {
    free(allocate(3 * kMiB));
  }
  EXPECT_EQ(kept(), Bytes(0));
}

TEST_F(CachingPolicy, ClassesRoundUpNoMoreThanAShareOfTheDevice) {
  open();
  thick_and_fast();
  allocate(kInUse);
  thick_and_fast();
  const std::vector<VirtAddr> blocks = allocate_many(3000, 97 * kKiB);
  const Bytes rounded = stats().live - stats().requested;
  EXPECT_GT(rounded, 12 * kMiB);
  EXPECT_LE(rounded, 16 * kMiB) << "a 1024th";
  allocator_->check();
  free_all(blocks);
  allocator_->trim();
  allocator_->check();
  EXPECT_GT(allocator_->find(allocate(97 * kKiB)).value().size, 97 * kKiB) << "there is room again";
}

// Each of them alone may keep 16 MiB.
TEST_F(CachingPolicy, AllThreadsTogetherKeepNoMoreThanTheirShare) {
  open();
  allocate(kInUse);
  several_streams();
  std::vector<std::unique_ptr<TaskThread>> crowd;
  for (std::uint64_t i = 0; i < 8; ++i) {
    thick_and_fast();
    crowd.push_back(std::make_unique<TaskThread>());
    crowd.back()->run([&] { keep(64, 256 * kKiB, StreamId(0x1000 + i)); });
  }
  // They rest, and others have calls to make.
  allocate_many(3000, Bytes(512));
  EXPECT_LE(kept(), 16 * kMiB) << "a 1024th";
  expect_sums(stats());
  // All at work: it is shared out.
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t i = 0; i < crowd.size(); ++i) {
      crowd[i]->run([&] { keep(64, 256 * kKiB, StreamId(0x1000 + i)); });
    }
  }
  EXPECT_LE(kept(), 24 * kMiB) << "or not much more, for a moment";
  // The others gone, one has more again.
  for (std::size_t i = 1; i < crowd.size(); ++i) {
    crowd[i].reset();
  }
  for (int round = 0; round < 40; ++round) {
    crowd[0]->run([&] { keep(64, 256 * kKiB, StreamId(0x1000)); });
  }
  EXPECT_GE(kept(), 8 * kMiB);
  allocator_->check();
}

// Large blocks have a bound of their own. (Counted with the others they made all threads keep next to nothing, for good.)
TEST_F(CachingPolicy, LargeBlocksAreNoReasonToKeepFewSmallOnes) {
  open();
  thick_and_fast();
  kept_block(252 * kMiB);
  allocate_many(4000, Bytes(512));
  ASSERT_GE(kept(), 252 * kMiB) << "with small ones more than a 64th of the device";
  keep(64, 256 * kKiB, kA);
  EXPECT_GE(kept(), 260 * kMiB);
  expect_sums(stats());
  allocator_->check();
}

}  // namespace
}  // namespace nofrag
