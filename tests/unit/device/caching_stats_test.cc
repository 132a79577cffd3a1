// Statistics with blocks that threads keep: they add up at every moment, whatever was done before.
#include <random>

#include "cache_fixture.h"

namespace nofrag {
namespace {

class CachingStats : public CacheFixture, public testing::WithParamInterface<int> {
 protected:
  struct Own {
    VirtAddr address;
    Bytes size;  // of the block
  };
  // One random call; what it allocates and frees is counted here too.
  void step(std::mt19937_64& random, StreamId stream) {
    const std::uint64_t dice = random() % 100;
    if (dice < 50) {
      const Bytes size(1 + random() % (std::uint64_t{512} << random() % 13));
      const bool single = random() % 16 == 0;
      const Result<VirtAddr> got =
          single ? allocator_->allocate_single(size, stream) : allocator_->allocate(size, stream);
      if (got.ok()) {
        written(got.value(), size, stream);
        const BlockInfo info = allocator_->find(got.value()).value();
        EXPECT_EQ(info.requested, size);
        own_.push_back({info.address, info.size});
        live_ += info.size;
        requested_ += size;
        peak_ = std::max(peak_, live_);
      }
    } else if (dice < 97 && !own_.empty()) {
      std::swap(own_[random() % own_.size()], own_.back());
      const Own block = own_.back();
      own_.pop_back();
      live_ -= block.size;
      requested_ -= tags_.at(block.address.value()).first;
      free(block.address);
    } else if (dice == 97) {
      allocator_->trim(Bytes(random() % (32 * kMiB).count()));
    }
  }
  void expect_mine() {
    const DeviceStats s = stats();
    expect_sums(s);
    EXPECT_EQ(s.live, live_);
    EXPECT_EQ(s.requested, requested_);
    EXPECT_EQ(s.live_blocks, own_.size());
    EXPECT_GE(s.peak_live, peak_);
  }

  std::vector<Own> own_;
  Bytes live_;
  Bytes requested_;
  Bytes peak_;
};

TEST_P(CachingStats, RandomProgramsOfOneThread) {
  open(GetParam() % 2 == 0 ? 4 * kGiB : 48 * kMiB);
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
  for (int i = 0; i < 3000; ++i) {
    step(random, kA);
    if (i % 7 == 0) {
      expect_mine();
      EXPECT_EQ(stats().peak_live, peak_) << "one thread: exact";
    }
    if (HasFailure()) {
      FAIL() << "step " << i;
    }
  }
  allocator_->check();
}

TEST_P(CachingStats, RandomProgramsOfTwoThreadsAndStreams) {
  open(GetParam() % 2 == 0 ? 4 * kGiB : 48 * kMiB);
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()) + 100);
  for (int i = 0; i < 3000; ++i) {
    const StreamId stream = random() % 3 == 0 ? kB : kA;
    if (random() % 2 == 0) {
      other([&] { step(random, stream); });
    } else {
      step(random, stream);
    }
    if (random() % 500 == 0) {
      end_other();
    }
    if (i % 7 == 0) {
      expect_mine();
    }
    if (HasFailure()) {
      FAIL() << "step " << i;
    }
  }
  allocator_->check();
}

// With many threads a peak may be too high by what they keep; never too low.
TEST_P(CachingStats, RandomProgramsOfManyThreads) {
  open();
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()) + 200);
  std::vector<std::unique_ptr<TaskThread>> crowd;
  while (crowd.size() < 6) {
    crowd.push_back(std::make_unique<TaskThread>());
  }
  Bytes most_kept;
  for (int i = 0; i < 2500; ++i) {
    crowd[random() % crowd.size()]->run([&] { step(random, kA); });
    const DeviceStats s = stats();
    most_kept = std::max(most_kept, s.kept);
    EXPECT_LE(s.peak_live, peak_ + most_kept);
    if (i % 7 == 0) {
      expect_mine();
    }
    if (i % 800 == 799) {
      allocator_->reset_peaks();
      peak_ = live_;
      EXPECT_EQ(stats().peak_live, live_) << "nobody is at work";
      most_kept = stats().kept;
    }
    if (HasFailure()) {
      FAIL() << "step " << i;
    }
  }
  allocator_->check();
}

INSTANTIATE_TEST_SUITE_P(Seeds, CachingStats, testing::Range(1, 7));

class CachingPeaks : public CacheFixture {};

TEST_F(CachingPeaks, WhatIsKeptIsNotLive) {
  open();
  keep(10, 64 * kKiB);
  const DeviceStats s = stats();
  EXPECT_EQ(s.live, Bytes(0));
  EXPECT_EQ(s.live_blocks, 0U);
  EXPECT_EQ(s.kept, 640 * kKiB);
  EXPECT_EQ(s.peak_live, 640 * kKiB);
  EXPECT_EQ(s.allocated, Bytes(0));
  expect_sums(s);
}

// Live memory rises and falls between two looks, by caches alone.
TEST_F(CachingPeaks, APeakThatOnlyCachesSawIsSeen) {
  open();
  const VirtAddr block = allocate(512 * kKiB);
  keep(10, 64 * kKiB);
  free(block);
  allocator_->reset_peaks();
  EXPECT_EQ(stats().peak_live, Bytes(0));
  keep(6, 64 * kKiB);
  EXPECT_EQ(stats().peak_live, 384 * kKiB);
  other([&] { keep(1, 64 * kKiB); });
  EXPECT_GE(stats().peak_live, 384 * kKiB);
}

TEST_F(CachingPeaks, ResetPeaksForgetsWhatWas) {
  open();
  keep(10, 64 * kKiB);
  keep(10, 64 * kKiB);  // all out of the cache, and back
  other([&] { keep(10, 64 * kKiB); });
  allocator_->reset_peaks();
  EXPECT_EQ(stats().peak_live, Bytes(0));
  EXPECT_EQ(stats().peak_allocated, Bytes(0));
  const VirtAddr block = allocate(64 * kKiB);
  EXPECT_EQ(stats().peak_live, 64 * kKiB);
  free(block);
}

}  // namespace
}  // namespace nofrag
