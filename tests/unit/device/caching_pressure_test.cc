// Kept memory is free memory for everybody as soon as anything is short, and never keeps a device from
// giving memory back.
#include <random>

#include "cache_fixture.h"

namespace nofrag {
namespace {

class CachingPressure : public CacheFixture {};

TEST_F(CachingPressure, WhatAnEndedThreadKeptServesAll) {
  open(64 * kMiB);
  other([&] { keep(32, 256 * kKiB); });
  EXPECT_EQ(kept(), 8 * kMiB);
  end_other();
  EXPECT_FALSE(allocate(64 * kMiB).is_null());
  EXPECT_EQ(kept(), Bytes(0));
  expect_sums(stats());
}

TEST_F(CachingPressure, CountersOfEndedThreadsRemain) {
  open();
  for (int i = 0; i < 5; ++i) {
    other([&] {
      for (int j = 0; j < 10; ++j) {
        keep(2, 64 * kKiB);
      }
    });
    end_other();
  }
  EXPECT_EQ(stats().allocations, 100U);
  EXPECT_EQ(stats().frees, 100U);
  allocator_->trim();
  EXPECT_EQ(stats().allocations, 100U);
  EXPECT_EQ(stats().requested, Bytes(0));
  expect_sums(stats());
  allocator_->check();
}

// The other thread lives on, does nothing, and holds what it freed.
TEST_F(CachingPressure, AHoardFailsNobody) {
  for (const StreamId stream : {kA, kB}) {
    open(64 * kMiB);
    other([&] { keep(32, 256 * kKiB, kA); });
    ASSERT_EQ(kept(), 8 * kMiB);
    EXPECT_FALSE(allocate(64 * kMiB, stream).is_null());
    EXPECT_EQ(stats().failed_allocations, 0U);
    other([&] { EXPECT_TRUE(allocate(256 * kKiB, kA).is_null()) << "and it has it no more"; });
  }
}

TEST_F(CachingPressure, SmallRequestsHaveTheHoardToo) {
  open(32 * kMiB);
  std::vector<VirtAddr> theirs;
  other([&] {
    theirs = allocate_many(128, 256 * kKiB, kA);
    free_all(theirs);
  });
  ASSERT_GE(kept(), 4 * kMiB);
  EXPECT_EQ(allocate_many(128, 256 * kKiB, kB).size(), 128U);
  EXPECT_EQ(stats().failed_allocations, 0U);
  EXPECT_TRUE(allocate(256 * kKiB, kB).is_null());
}

TEST_F(CachingPressure, OutOfMemoryOnlyWhereTrulyShort) {
  open(64 * kMiB);
  VirtAddr live;
  other([&] {
    live = allocate(4 * kMiB, kA);
    keep(32, 256 * kKiB, kA);
  });
  EXPECT_EQ(allocator_->allocate(62 * kMiB, kA).code(), Errc::kOutOfMemory);
  EXPECT_EQ(stats().failed_allocations, 1U);
  EXPECT_FALSE(allocate(60 * kMiB, kA).is_null());
  EXPECT_EQ(stats().failed_allocations, 1U);
}

// A request that a cache might serve next time asks for its whole class; what fits exactly must do all the
// same where there is no more.
TEST_F(CachingPressure, TheVerySizeIsEnoughWhereMemoryEnds) {
  open(8 * kMiB);
  const Bytes size = 976 * kKiB;             // its class ends at 1 MiB
  free_all(allocate_many(600, Bytes(512)));  // many small ones: classes round up
  const VirtAddr hole = allocate(kMiB);
  std::vector<VirtAddr> rest;
  for (VirtAddr block = allocate(kMiB); !block.is_null(); block = allocate(kMiB)) {
    rest.push_back(block);
  }
  free(hole);
  allocator_->set_event_sink(nullptr);  // empties caches
  // The hole shrinks to the very size.
  ASSERT_EQ(allocate(kMiB - size), hole);
  const std::uint64_t failures = stats().failed_allocations;
  EXPECT_FALSE(allocate(size).is_null()) << allocator_->last_oom_message();
  EXPECT_EQ(stats().failed_allocations, failures);
}

TEST_F(CachingPressure, TrimGivesAllBack) {
  open();
  const auto job = [&] {
    for (const StreamId stream : {kA, kB, kC}) {
      keep(300, 8 * kKiB, stream);  // the depot has some
      keep(2, 6 * kMiB, stream);
    }
  };
  job();
  other(job);
  ASSERT_GT(kept(), 8 * kMiB);
  allocator_->trim();
  EXPECT_EQ(kept(), Bytes(0));
  EXPECT_EQ(stats().reserved, Bytes(0));
  EXPECT_EQ(sim_->physical_in_use(kDevice), Bytes(0));
  job();  // and works on
  other(job);
}

TEST_F(CachingPressure, ALoweredLimitHasWhatIsKept) {
  open();
  keep(32, 256 * kKiB);
  other([&] { keep(32, 256 * kKiB, kB); });
  ASSERT_EQ(kept(), 16 * kMiB);
  allocator_->set_limit(8 * kMiB);
  EXPECT_LE(stats().reserved, 8 * kMiB);
  EXPECT_FALSE(allocate(8 * kMiB).is_null());
  EXPECT_EQ(allocator_->allocate(2 * kMiB, kA).code(), Errc::kLimit);
  allocator_->set_limit(kNoLimit);
  EXPECT_FALSE(allocate(2 * kMiB).is_null());
}

TEST_F(CachingPressure, ATightLimitShrinksCaches) {
  open();
  allocator_->set_limit(64 * kMiB);
  keep(200, 8 * kKiB);
  other([&] { keep(200, 8 * kKiB); });
  EXPECT_LE(kept(), kMiB) << "a share of the limit: 32 KiB a thread, a stream and a depot";
  EXPECT_FALSE(allocate(64 * kMiB).is_null());
}

TEST_F(CachingPressure, TheAllocatorEndsBeforeItsThreads) {
  for (int i = 0; i < 3; ++i) {
    open();
    keep(40, 64 * kKiB);
    other([&] { keep(40, 64 * kKiB); });
    finish();  // leaks nothing
  }
  // Several at once, by one thread.
  open();
  SimulatedDriver second_sim{SimulatedDeviceSpec{}};
  auto second = std::move(DeviceAllocator::create(second_sim, kDevice, Options{}).value());
  for (int i = 0; i < 10; ++i) {
    const VirtAddr one = second->allocate(64 * kKiB, kA).value();
    keep(3, 64 * kKiB);
    EXPECT_TRUE(second->free(one).ok());
  }
  EXPECT_EQ(second->stats().kept, 64 * kKiB);
  EXPECT_EQ(kept(), 192 * kKiB);
  second.reset();
  EXPECT_TRUE(second_sim.leaks().none());
  keep(3, 64 * kKiB);
}

// Room for one size is not taken for ever by what was freed of others.
TEST_F(CachingPressure, ACacheFullOfOtherSizesLearnsANewOne) {
  open();
  for (const std::uint64_t kib : {8U, 16U, 32U, 64U, 128U, 256U, 512U, 1024U}) {
    keep(64, Bytes(kib * 1024));
  }
  for (int i = 0; i < 50; ++i) {
    const VirtAddr block = allocate(100 * kKiB);
    const std::uint64_t frees = stats().frees;
    free(block);
    recorder_->take();
    if (allocate(100 * kKiB) == block && recorder_->take() == Calls{} && stats().frees > frees) {
      free(block);
      const Bytes before = kept();
      EXPECT_EQ(allocate(100 * kKiB), block);
      if (before - kept() == stats().live) {
        return;  // from the cache
      }
    }
    free(block);
  }
  ADD_FAILURE() << "50 frees of another size, none kept; " << kept().mib() << " MiB are";
}

// Others come and go, which the driver tells: what may be kept changes under the hands of two threads, and every
// byte stays.
TEST_F(CachingPressure, OthersComeAndGo) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    start(kTotal, small_handles());
    work_is_done_at_once();
    std::mt19937 random(seed);
    std::vector<VirtAddr> live;
    for (int step = 0; step < 400; ++step) {
      if (step % 20 == 0) {
        const Bytes most = kTotal - allocator_->stats().reserved;
        sim_->set_memory_of_others(kDevice, Bytes(most.count() / 1000 * (random() % 1001)));
      }
      const auto work = [&] {
        const std::uint64_t size = std::uint64_t{512} << random() % 19;
        if (live.size() > 40 || (random() % 3 == 0 && !live.empty())) {
          const std::size_t at = random() % live.size();
          free(live[at]);
          live[at] = live.back();
          live.pop_back();
        } else if (const VirtAddr block = allocate(Bytes(size), random() % 2 == 0 ? kA : kB);
                   !block.is_null()) {
          live.push_back(block);
        } else {
          EXPECT_LT(sim_->memory_info(kDevice).value().free, Bytes(size));
        }
      };
      if (random() % 2 == 0) {
        other(work);
      } else {
        work();
      }
      if (step % 50 == 49) {
        expect_sums(stats());
        allocator_->trim(random() % 2 == 0 ? Bytes(0) : stats().reserved);
      }
    }
    sim_->set_memory_of_others(kDevice, Bytes(0));
    free_all(live);
    live.clear();
  }
}

}  // namespace
}  // namespace nofrag
