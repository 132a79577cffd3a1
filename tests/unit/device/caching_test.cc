// What threads keep (device/caching.cc), through the allocator.
#include <thread>
#include <vector>

#include "device_fixture.h"

namespace nofrag {
namespace {

class Caching : public DeviceFixture {
 protected:
  Caching() { caches_ = true; }

  void keep(int blocks, Bytes size, StreamId stream = kA) {
    std::vector<VirtAddr> all;
    for (int i = 0; i < blocks; ++i) {
      all.push_back(allocator_->allocate(size, stream).value());
    }
    for (const VirtAddr address : all) {
      EXPECT_TRUE(allocator_->free(address).ok());
    }
  }
};

TEST_F(Caching, NothingIsNoRequestForACacheEither) {
  start(kGiB);
  keep(4, Bytes(512));
  EXPECT_EQ(allocator_->allocate(Bytes(0), kA).code(), Errc::kInvalidArgument);
}

// More than asked for is taken for a cache, but nothing is refused for it: here other processes hold most of
// the device, so that it is all but full though we have little of it.
TEST_F(Caching, ARequestThatJustFitsIsNotRefusedForTheSizeOfItsClass) {
  start(64 * kMiB, 2 * kMiB);
  sim_->set_memory_of_others(kDevice, 62 * kMiB);
  const VirtAddr most = allocate(2 * kMiB - 900 * kKiB);
  ASSERT_FALSE(most.is_null());
  EXPECT_FALSE(allocate(900 * kKiB).is_null());
}

TEST_F(Caching, PeaksStartAgainFromWhatIsLive) {
  start(kGiB);
  keep(10, 16 * kKiB);
  keep(10, 16 * kKiB);
  allocator_->reset_peaks();
  const DeviceStats s = allocator_->stats();
  EXPECT_EQ(s.live, Bytes(0));
  EXPECT_EQ(s.peak_live, Bytes(0));
  EXPECT_EQ(s.peak_allocated, Bytes(0));
}

TEST_F(Caching, ARetiredStreamTakesNothingFromTheOthers) {
  start(kGiB);
  keep(4, 16 * kKiB, kA);
  const Bytes of_a = allocator_->stats().kept;
  keep(4, 16 * kKiB, kB);
  ASSERT_GT(allocator_->stats().kept, of_a);
  EXPECT_TRUE(allocator_->retire_stream(kB).ok());
  EXPECT_EQ(allocator_->stats().kept, of_a);
}

// Threads that come and go, each with a default stream of its own.
TEST_F(Caching, WhatEndedThreadsPassedOnGoesBackToo) {
  start(16 * kGiB);
  for (int i = 0; i < 10; ++i) {
    std::thread([this] { keep(300, 16 * kKiB, StreamId(2)); }).join();
  }
  EXPECT_LT(allocator_->stats().kept, 3U * 300 * 16 * kKiB);
}

}  // namespace
}  // namespace nofrag
