// Many threads on one device allocator: own and shared streams, frees by other threads,
// record_stream, pools, trims, statistics and pressure callbacks, under a memory that does not
// suffice. Every block's bytes carry its canary; the simulated driver reports unordered use.
#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "counting_driver.h"
#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice(0);
constexpr int kThreads = 8;
// Builds that walk every structure at every call, or look at every access, get by with fewer.
#if defined(__SANITIZE_THREAD__)
constexpr int kSteps = 4000;
#else
constexpr int kSteps = NOFRAG_CHECK_LEVEL >= 2 ? 1500 : 10000;
#endif

struct Block {
  VirtAddr address;
  Bytes size;
  StreamId stream;
  std::uint64_t tag;
};

// Blocks that any thread may take and free.
class Exchange {
 public:
  void put(const Block& block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.push_back(block);
  }
  bool take(std::uint64_t random, Block* out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (blocks_.empty()) {
      return false;
    }
    std::swap(blocks_[random % blocks_.size()], blocks_.back());
    *out = blocks_.back();
    blocks_.pop_back();
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

class DeviceStress : public testing::Test {
 protected:
  void start(Bytes memory, bool virtual_memory, const Options& options = Options{}) {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = memory;
    spec.info.virtual_memory = virtual_memory;
    driver_ = std::make_unique<SimulatedDriver>(spec);
    counting_ = std::make_unique<CountingDriver>(*driver_);
    allocator_ = std::move(DeviceAllocator::create(*counting_, kDevice, options).value());
    allocator_->add_pressure_callback([this](DeviceOrdinal, Bytes) {
      Block block;
      if (!exchange_.take(0, &block)) {
        return false;
      }
      give_back(block);
      return true;
    });
  }

  void give_back(const Block& block) {
    EXPECT_TRUE(driver_->check_contents(block.address, block.size, block.tag).ok());
    EXPECT_TRUE(allocator_->free(block.address).ok());
  }

  // The careful order: `stream` waits for the block's own stream, uses it, and it is said so.
  void use_on(const Block& block, StreamId stream) {
    const EventId event = driver_->event_create(kDevice).value();
    driver_->event_record(kDevice, event, block.stream).ignore();
    driver_->stream_wait(kDevice, stream, event).ignore();
    driver_->event_destroy(kDevice, event).ignore();
    EXPECT_TRUE(allocator_->record_stream(block.address, stream).ok());
    EXPECT_TRUE(driver_->launch(stream, block.address, block.size, block.tag).ok());
  }

  void allocate(std::mt19937_64& random, StreamId stream, std::vector<Block>* own) {
    const Bytes size(1 + random() % (std::uint64_t{1} << (9 + random() % doublings_)));
    const Result<VirtAddr> address = allocator_->allocate(size, stream);
    if (!address.ok()) {
      ++refused_;
      return;
    }
    ++served_;
    const Block block{address.value(), size, stream, ++next_tag_};
    EXPECT_TRUE(driver_->write(stream, block.address, size, block.tag).ok());
    if (random() % 3 == 0) {
      exchange_.put(block);
    } else {
      own->push_back(block);
    }
  }

  void worker(int number, int steps) {
    std::mt19937_64 random(static_cast<std::uint64_t>(number) + 1);
    // Half the threads share two streams; the others have their own.
    const StreamId stream(number % 2 == 0 ? 0x100U + static_cast<unsigned>(number) % 4
                                          : 0x200U + static_cast<unsigned>(number));
    std::vector<Block> own;
    for (int step = 0; step < steps; ++step) {
      // A job's step ends: everything goes at once, so that whole handles become idle.
      if (burst_ != 0 && step % burst_ == burst_ - 1) {
        for (const Block& block : own) {
          give_back(block);
        }
        own.clear();
      }
      const std::uint64_t dice = random() % 100;
      Block block;
      if (dice < 45) {
        allocate(random, stream, &own);
      } else if (dice < 70 && !own.empty()) {
        std::swap(own[random() % own.size()], own.back());
        give_back(own.back());
        own.pop_back();
      } else if (dice < 85) {
        if (exchange_.take(random(), &block)) {
          give_back(block);
        }
      } else if (dice < 93 && !own.empty()) {
        use_on(own[random() % own.size()], StreamId(0x300));
      } else {
        other_call(random);
      }
    }
    for (const Block& block : own) {
      give_back(block);
    }
  }

  void other_call(std::mt19937_64& random) {
    const PoolKey pool{7, 1 + random() % 2};
    switch (random() % 8) {
      case 0:
        allocator_->trim(Bytes(random() % (64 * kMiB).count()));
        break;
      case 1: {
        const DeviceStats s = allocator_->stats();
        EXPECT_LE(s.allocated, s.reserved);
        EXPECT_FALSE(allocator_->last_oom_message().empty());
        break;
      }
      case 2:
        driver_->advance_us(200);
        break;
      case 3:
        EXPECT_FALSE(allocator_->owns(VirtAddr(std::uint64_t{512})));
        EXPECT_FALSE(allocator_->find(VirtAddr(std::uint64_t{512})).ok());
        break;
      case 4:
        // Filled by a stream of its own, so that no graph's rules apply.
        EXPECT_TRUE(
            allocator_->begin_allocate_to_pool(pool, [](StreamId s) { return s.value() == 0x400; })
                .ok());
        fill_pool(random);
        EXPECT_TRUE(allocator_->end_allocate_to_pool(pool).ok());
        EXPECT_TRUE(allocator_->release_pool(pool).ok());
        break;
      case 5:
        allocator_->reset_peaks();
        break;
      case 6:
        allocator_->set_limit(random() % 4 == 0 ? 80 * kMiB : kNoLimit);
        break;
      default:
        allocator_->check();
        break;
    }
  }

  void fill_pool(std::mt19937_64& random) {
    const Bytes size(1 + random() % (4 * kMiB).count());
    const Result<VirtAddr> address = allocator_->allocate(size, StreamId(0x400));
    if (address.ok()) {
      const Block block{address.value(), size, StreamId(0x400), ++next_tag_};
      EXPECT_TRUE(driver_->write(block.stream, block.address, size, block.tag).ok());
      exchange_.put(block);
    }
  }

  void run(int steps) {
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([this, i, steps] { worker(i, steps); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    Block block;
    while (exchange_.take(0, &block)) {
      give_back(block);
    }
    allocator_->check();
    EXPECT_EQ(allocator_->stats().live_blocks, 0U);
    allocator_->trim();
    EXPECT_EQ(allocator_->stats().reserved, Bytes(0));
    allocator_.reset();
    EXPECT_TRUE(driver_->leaks().none());
    EXPECT_EQ(driver_->violation_count(), 0U)
        << (driver_->violations().empty() ? "" : driver_->violations().front());
    EXPECT_GT(served_.load(), static_cast<std::uint64_t>(steps));
  }

  std::unique_ptr<SimulatedDriver> driver_;
  std::unique_ptr<CountingDriver> counting_;
  std::unique_ptr<DeviceAllocator> allocator_;
  Exchange exchange_;
  int burst_ = 0;                 // after how many steps a thread gives back all it has; 0 = never
  std::uint64_t doublings_ = 14;  // of the largest request above 512 bytes
  std::atomic<std::uint64_t> next_tag_{0};
  std::atomic<std::uint64_t> served_{0};
  std::atomic<std::uint64_t> refused_{0};
};

TEST_F(DeviceStress, EnoughMemory) {
  start(2 * kGiB, true);
  run(kSteps);
  EXPECT_EQ(driver_->violation_count(), 0U);
}

TEST_F(DeviceStress, TooLittleMemory) {
  start(96 * kMiB, true);
  run(kSteps);
  EXPECT_GT(refused_.load(), 0U);
}

// Memory in small handles at few or many addresses, under every policy: views come and go while other
// threads allocate and free through them.
class ArenaStress : public DeviceStress, public testing::WithParamInterface<std::int64_t> {};

TEST_P(ArenaStress, ViewsUnderEveryPolicy) {
  doublings_ = 16;
  for (const Policy policy : {Policy::kLean, Policy::kBalanced, Policy::kFast}) {
    Options options;
    options.policy = policy;
    options.max_aliases = GetParam();
    options.handle_size = policy == Policy::kLean ? 2 * kMiB : 8 * kMiB;
    start(128 * kMiB, true, options);
    run(kSteps / 2);
    const MappingCounts counts = counting_->counts();
    std::printf("%llu aliases, %llu evictions, %llu cuts\n",
                static_cast<unsigned long long>(counts.aliases),
                static_cast<unsigned long long>(counts.evictions),
                static_cast<unsigned long long>(counts.cuts));
    EXPECT_EQ(counts.aliases > 0, GetParam() > 1);
    EXPECT_LE(counts.most_mappings, static_cast<std::uint64_t>(GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Addresses, ArenaStress, testing::Values(1, 2, 8));

// Steps that end leave idle handles, which are cut under the blocks of the next ones.
TEST_F(DeviceStress, CutsBetweenThreads) {
  doublings_ = 15;
  burst_ = 40;
  Options options;
  options.policy = Policy::kLean;
  options.handle_size = 32 * kMiB;
  start(512 * kMiB, true, options);
  driver_->set_stream_lag_us(0);
  run(kSteps / 2);
  const MappingCounts counts = counting_->counts();
  std::printf("%llu aliases, %llu cuts\n",
              static_cast<unsigned long long>(counts.aliases),
              static_cast<unsigned long long>(counts.cuts));
  EXPECT_GT(counts.cuts, 0U);
}

// Plain memory stays where it was made, and what one thread keeps in every slab keeps the others'
// requests out for as long as that thread does not run: steps that end keep the mix from depending on
// the machine's load.
TEST_F(DeviceStress, PlainBackend) {
  burst_ = 200;
  start(256 * kMiB, false);
  run(kSteps);
}

}  // namespace
}  // namespace nofrag
