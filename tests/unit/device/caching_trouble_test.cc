// What threads keep (device/caches), through the allocator.
#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "device_fixture.h"
#include "heap/kept_blocks.h"

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

TEST_F(Caching, TheReportOfAFailureNamesWhatThreadsKeep) {
  start(64 * kMiB);
  std::thread([this] { keep(4, 16 * kKiB); }).join();
  EXPECT_TRUE(allocator_->allocate(65 * kMiB, kA).code() == Errc::kOutOfMemory);
  EXPECT_NE(allocator_->last_oom_message().find("kept by threads"), std::string::npos);
}

TEST(Depots, GoDownByNoMoreThanIsAsked) {
  constexpr Bytes kSize = 4 * kKiB;
  Depot depot;
  std::vector<Block> blocks(8);
  for (Block& block : blocks) {
    block.size = kSize;
    block.batch_count = 1;
    block.batch_bytes = kSize.count();
    ASSERT_TRUE(depot.put(KeptBlocks::class_of(kSize), &block, kMiB));
  }
  EXPECT_NE(depot.take_down_to(4 * kSize), nullptr);
  EXPECT_EQ(depot.bytes(), 4 * kSize) << "and the rest is still there";
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(depot.take(KeptBlocks::class_of(kSize)), nullptr);
  }
}

// Whatever is done to the allocator meanwhile, no block has two owners and none is lost.
TEST_F(Caching, ThreadsGoOnWhileEverythingChanges) {
  start(256 * kMiB);
  sim_->set_completion(Completion::kClock);
  sim_->set_stream_lag_us(0);
  std::mutex mutex;
  std::vector<VirtAddr> handed;  // from thread to thread
  std::map<VirtAddr, Bytes> owned;
  const auto own = [&](VirtAddr address, Bytes size) {
    const std::lock_guard lock(mutex);
    const auto after = owned.upper_bound(address);
    EXPECT_TRUE(after == owned.end() || address + size <= after->first);
    EXPECT_TRUE(after == owned.begin() ||
                std::prev(after)->first + std::prev(after)->second <= address);
    owned[address] = size;
  };
  const auto disown = [&](VirtAddr address) {
    const std::lock_guard lock(mutex);
    owned.erase(address);
  };
  const auto work = [&](std::uint64_t seed, int steps) {
    std::uint64_t random = seed;
    const auto next = [&random](std::uint64_t below) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      return (random >> 33) % below;
    };
    std::vector<VirtAddr> mine;
    for (int i = 0; i < steps; ++i) {
      if (next(2) == 0) {
        const Bytes size(next(8) == 0 ? 1 + next(3 << 20) : 1 + next(64 << 10));
        const StreamId streams[] = {kA, kB, StreamId(2), StreamId(0)};
        const Result<VirtAddr> block = allocator_->allocate(size, streams[next(4)]);
        if (block.ok()) {
          own(block.value(), size);
          mine.push_back(block.value());
        }
      } else if (!mine.empty()) {
        std::swap(mine[next(mine.size())], mine.back());
        VirtAddr block = mine.back();
        mine.pop_back();
        if (next(3) == 0) {
          const std::lock_guard lock(mutex);
          handed.push_back(block);
          std::swap(handed[next(handed.size())], handed.back());
          block = handed.back();
          handed.pop_back();
        }
        if (next(16) == 0) {
          EXPECT_TRUE(allocator_->record_stream(block, kC).ok());
        }
        disown(block);
        EXPECT_TRUE(allocator_->free(block).ok());
      }
    }
    for (const VirtAddr block : mine) {
      disown(block);
      EXPECT_TRUE(allocator_->free(block).ok());
    }
  };
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
  for (std::uint64_t t = 0; t < 3; ++t) {
    workers.emplace_back([&, t] {
      for (std::uint64_t round = 0; round < 8; ++round) {
        std::thread(work, 1000 * t + round, 300).join();
      }
    });
  }
  std::thread changes([&] {
    for (std::uint64_t i = 0; !stop.load(); ++i) {
      switch (i % 7) {
        case 0:
          allocator_->trim(Bytes(0));
          break;
        case 1:
          allocator_->set_limit(i % 2 == 0 ? 64 * kMiB : kNoLimit);
          break;
        case 2:
          EXPECT_TRUE(allocator_->retire_stream(kB).ok());
          break;
        case 3:
          allocator_->reset_peaks();
          break;
        case 4:
          allocator_->check();
          break;
        case 5:
          begin_pool({1, i}, StreamId(77));
          std::this_thread::yield();
          EXPECT_TRUE(allocator_->end_allocate_to_pool({1, i}).ok());
          EXPECT_TRUE(allocator_->release_pool({1, i}).ok());
          break;
        default:
          EXPECT_LE(allocator_->stats().live, 256 * kMiB);
          break;
      }
    }
  });
  for (std::thread& worker : workers) {
    worker.join();
  }
  stop.store(true);
  changes.join();
  allocator_->trim(Bytes(0));
  EXPECT_EQ(allocator_->stats().live_blocks, 0U);
}

// Without caches the lock decides which of two frees is the first. (With them it is not known: nofrag.h says so.)
TEST_F(Caching, OfTwoFreesAtOneMomentOneIsRefused) {
  constexpr int kRounds = 500;
  Options options;
  options.thread_caches = false;
  start(kGiB, options);
  std::atomic<std::uint64_t> block{0};
  std::atomic<int> round{0};
  std::atomic<int> freed{0};
  std::atomic<int> refused{0};
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int mine = 1; mine <= kRounds; ++mine) {
        while (round.load(std::memory_order_acquire) < mine) {
          std::this_thread::yield();
        }
        const Errc code = allocator_->free(VirtAddr(block.load(std::memory_order_relaxed))).code();
        (code == Errc::kOk ? freed : refused) += 1;
        EXPECT_TRUE(code == Errc::kOk || code == Errc::kUnknownPointer);
        done.fetch_add(1, std::memory_order_acq_rel);
      }
    });
  }
  for (int mine = 1; mine <= kRounds; ++mine) {
    const Bytes size = mine % 3 == 0 ? 3 * kMiB : Bytes(700);
    block.store(allocator_->allocate(size, kA).value().value(), std::memory_order_relaxed);
    round.store(mine, std::memory_order_release);
    while (done.load(std::memory_order_acquire) < 2 * mine) {
      std::this_thread::yield();
    }
    EXPECT_EQ(freed.load(), mine);
    EXPECT_EQ(refused.load(), mine);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(allocator_->stats().live_blocks, 0U);
}

}  // namespace
}  // namespace nofrag
