// Threads that keep what they free, at their worst: own and shared streams, blocks freed by other threads,
// streams that come and go, pools, trims and limits, in memory that is now and then too little. A kernel
// writes a tag into each block on its stream, checked before the free; the simulated driver reports unordered
// use of the same bytes.
//
//   cache_stress_test [--operations=N]     default 300000 (less where every structure is walked all the time)
//
// The long run: cmake --preset tsan && ninja -C build/tsan cache_stress_test &&
//   build/tsan/bin/cache_stress_test --operations=10000000
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice(0);
constexpr int kThreads = 6;
constexpr Bytes kTotal =
    16 * kGiB;  // far more than is left of it: caches are large, memory is short
std::uint64_t operations = NOFRAG_CHECK_LEVEL >= 2 ? 12000 : 300000;

struct Block {
  VirtAddr address;
  Bytes size;
  StreamId stream;
  std::uint64_t tag = 0;
};

// Blocks on their way to another thread.
class Queue {
 public:
  void put(const Block& block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.push_back(block);
  }
  std::vector<Block> take_all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(blocks_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

struct Setting {
  Bytes memory = 256 * kMiB;  // that is left of the device
  bool tight = false;         // the device has no more: only small blocks are kept, by exact size
  bool check_streams = false;
  std::uint64_t doublings = 12;  // of the largest request above 512 B
  std::uint64_t blocks = 60;     // that a thread holds
};

class CacheStress : public testing::Test {
 protected:
  void start(const Setting& setting) {
    setting_ = setting;
    SimulatedDeviceSpec spec;
    spec.info.total_memory = setting.tight ? setting.memory : kTotal;
    driver_ = std::make_unique<SimulatedDriver>(spec);
    if (!setting.tight) {
      driver_->set_memory_of_others(kDevice, kTotal - setting.memory);
    }
    driver_->set_stream_lag_us(50);
    Options options;
    options.handle_size = 8 * kMiB;
    options.check_streams = setting.check_streams;
    allocator_ = std::move(DeviceAllocator::create(*driver_, kDevice, options).value());
  }

  void give_back(const Block& block) {
    if (!driver_->check_contents(block.address, block.size, block.tag).ok() ||
        !allocator_->free(block.address).ok()) {
      ++wrong_;
    }
  }

  // A worker's part of the program; its thread ends and another goes on where it stopped.
  struct Worker {
    int number = 0;
    std::mt19937_64 random;
    std::vector<Block> own;
  };

  // Half the time the worker's own stream, which it retires now and then; else one of two that all share.
  static StreamId stream_of(Worker& worker) {
    const auto number = static_cast<std::uint64_t>(worker.number);
    return worker.random() % 2 == 0 ? StreamId(0x1000 + number)
                                    : StreamId(0x100 + worker.random() % 2);
  }

  void allocate(Worker& worker, StreamId stream) {
    const bool small = worker.random() % 8 != 0;
    const Bytes size(1 + worker.random() % (std::uint64_t{512}
                                            << worker.random() % (small ? 8 : setting_.doublings)));
    const Result<VirtAddr> address = worker.random() % 64 == 0
                                         ? allocator_->allocate_single(size, stream)
                                         : allocator_->allocate(size, stream);
    if (!address.ok()) {
      ++refused_;
      return;
    }
    const Block block{address.value(), size, stream, ++next_tag_};
    if (!driver_->write(stream, block.address, size, block.tag).ok()) {
      ++wrong_;
    }
    if (worker.random() % 4 == 0 && stream.value() < 0x1000) {
      queues_[worker.random() % kThreads].put(block);
    } else {
      worker.own.push_back(block);
    }
  }

  // All of one's own stream goes before the stream does; its handle then means another.
  void retire(Worker& worker) {
    const StreamId stream(0x1000 + static_cast<std::uint64_t>(worker.number));
    const bool early = worker.random() % 2 == 0;
    const auto give_back_all = [&] {
      std::erase_if(worker.own, [&](const Block& block) {
        if (block.stream != stream) {
          return false;
        }
        give_back(block);
        return true;
      });
    };
    if (early) {
      give_back_all();
    }
    const bool told = !setting_.check_streams || worker.random() % 2 == 0;
    if (told && !allocator_->retire_stream(stream).ok()) {
      ++wrong_;
    }
    driver_->destroy_stream(stream);
    give_back_all();
  }

  void fill_pool(Worker& worker) {
    const PoolKey pool{7, 1 + worker.random() % 2};
    // A stream of its own, so that no graph's rules apply.
    const StreamId stream(0x400);
    if (!allocator_->begin_allocate_to_pool(pool, [=](StreamId s) { return s == stream; }).ok()) {
      ++wrong_;
      return;
    }
    const std::size_t before = worker.own.size();
    for (int i = 0; i < 4; ++i) {
      allocate(worker, stream);
      allocate(worker, stream_of(worker));
    }
    while (worker.own.size() > before + 2) {
      give_back(worker.own.back());
      worker.own.pop_back();
    }
    if (!allocator_->end_allocate_to_pool(pool).ok() || !allocator_->release_pool(pool).ok()) {
      ++wrong_;
    }
  }

  // What holds whatever the others do.
  void ask(const Worker& worker) {
    if (!worker.own.empty()) {
      const Block& block = worker.own.back();
      EXPECT_EQ(allocator_->free(block.address + Bytes(256)).code(), Errc::kUnknownPointer);
      const Result<BlockInfo> info = allocator_->find(block.address + Bytes(1));
      EXPECT_TRUE(info.ok() && info.value().requested == block.size);
    }
  }

  void rare_call(Worker& worker) {
    switch (worker.random() % 10) {
      case 0:
        allocator_->trim(Bytes(worker.random() % (64 * kMiB).count()));
        break;
      case 1:
        retire(worker);
        break;
      case 2:
        fill_pool(worker);
        break;
      case 3:
        allocator_->set_limit(worker.random() % 3 == 0 ? Bytes(setting_.memory.count() / 2)
                                                       : kNoLimit);
        break;
      case 4: {
        const DeviceStats s = allocator_->stats();
        EXPECT_LE(s.requested, s.live);
        EXPECT_EQ(s.live + s.pending, s.allocated);
        EXPECT_GE(s.peak_live, s.live);
        break;
      }
      case 5:
        allocator_->reset_peaks();
        break;
      case 6:
        ask(worker);
        break;
      case 7:
        allocator_->check();
        break;
      default:
        driver_->advance_us(200);
        break;
    }
  }

  void step(Worker& worker) {
    const std::uint64_t dice = worker.random() % 1000;
    const bool full = worker.own.size() > setting_.blocks;
    if (full || dice < 300) {
      for (std::size_t left = full ? worker.random() % worker.own.size() : 1;
           left > 0 && !worker.own.empty();
           --left) {
        std::swap(worker.own[worker.random() % worker.own.size()], worker.own.back());
        give_back(worker.own.back());
        worker.own.pop_back();
      }
    } else if (dice < 990) {
      allocate(worker, stream_of(worker));
    } else if (dice < 998) {
      for (const Block& block : queues_[static_cast<std::size_t>(worker.number)].take_all()) {
        give_back(block);
      }
    } else {
      rare_call(worker);
    }
  }

  // Each worker goes through several threads, so that caches of ended ones are left about.
  void run(std::uint64_t all) {
    constexpr std::uint64_t kLives = 5;
    std::vector<std::thread> threads;
    std::vector<Worker> workers(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      Worker& worker = workers[static_cast<std::size_t>(i)];
      worker.number = i;
      worker.random.seed(static_cast<std::uint64_t>(i) + 1);
      threads.emplace_back([this, &worker, all] {
        for (std::uint64_t life = 0; life < kLives; ++life) {
          std::thread([&] {
            for (std::uint64_t n = 0; n < all / kThreads / kLives && wrong_ == 0; ++n) {
              step(worker);
            }
          }).join();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    const DeviceStats end = allocator_->stats();
    std::printf("%llu allocations, %llu refused, %.1f MiB kept at the end\n",
                static_cast<unsigned long long>(end.allocations),
                static_cast<unsigned long long>(refused_.load()),
                end.kept.mib());
    EXPECT_EQ(end.mapped_in_use, end.allocated + end.kept + end.free_ends + end.stranded);
    for (const Worker& worker : workers) {
      for (const Block& block : worker.own) {
        give_back(block);
      }
    }
    for (Queue& queue : queues_) {
      for (const Block& block : queue.take_all()) {
        give_back(block);
      }
    }
    allocator_->check();
    EXPECT_EQ(allocator_->stats().live_blocks, 0U);
    EXPECT_EQ(allocator_->stats().requested, Bytes(0));
    allocator_->trim();
    EXPECT_EQ(allocator_->stats().reserved, Bytes(0));
    EXPECT_EQ(allocator_->stats().kept, Bytes(0));
    allocator_.reset();
    EXPECT_TRUE(driver_->leaks().none());
    EXPECT_EQ(wrong_.load(), 0U);
    EXPECT_EQ(driver_->violation_count(), 0U)
        << (driver_->violations().empty() ? "" : driver_->violations().front());
    EXPECT_GT(end.allocations, all / 4);
  }

  Setting setting_;
  std::unique_ptr<SimulatedDriver> driver_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::array<Queue, kThreads> queues_;
  std::atomic<std::uint64_t> next_tag_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::uint64_t> wrong_{0};
};

TEST_F(CacheStress, EnoughMemory) {
  start({.memory = 4 * kGiB});
  run(operations / 4);
}

TEST_F(CacheStress, TooLittleMemory) {
  start({.memory = 24 * kMiB, .doublings = 14, .blocks = 90});
  run(operations / 2);
  EXPECT_GT(refused_.load(), 0U);
}

TEST_F(CacheStress, ATightDeviceAndStreamsThatNobodyRetires) {
  start({.memory = 24 * kMiB, .tight = true, .check_streams = true, .doublings = 14, .blocks = 90});
  run(operations / 4);
}

}  // namespace
}  // namespace nofrag

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr const char* kOption = "--operations=";
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], kOption, std::strlen(kOption)) != 0) {
      std::fprintf(stderr, "usage: %s [--operations=N]\n", argv[0]);
      return 2;
    }
    nofrag::operations = std::strtoull(argv[i] + std::strlen(kOption), nullptr, 10);
  }
  return RUN_ALL_TESTS();
}
