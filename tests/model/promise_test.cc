// The promise of docs/design.md for this engine: a request fails only if free whole handles and
// what the driver still has, within the limit, do not cover it. Free bytes beside live blocks
// (stranded) are left out. One stream, nothing captured: every idle handle can be moved.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice(0);
constexpr StreamId kStream(0x100);

struct Setting {
  Bytes memory;
  Bytes handle;
  Bytes granularity;
  Bytes limit;
  Completion completion;
  std::uint64_t seed;
};

class Promise : public testing::TestWithParam<Setting> {
 protected:
  Promise() : driver_(spec()) {
    driver_.set_completion(GetParam().completion);
    Options options;
    options.handle_size = GetParam().handle;
    options.limit = GetParam().limit;
    allocator_ = std::move(DeviceAllocator::create(driver_, kDevice, options).value());
  }

  static SimulatedDeviceSpec spec() {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = GetParam().memory;
    spec.info.granularity = GetParam().granularity;
    return spec;
  }

  // What a request could be made of, in whole granules.
  Bytes obtainable() {
    const DeviceStats s = allocator_->stats();
    const Bytes device = driver_.memory_info(kDevice).value().free;
    const Bytes limit = s.limit > s.reserved ? s.limit - s.reserved : Bytes(0);
    return s.free_handles + round_down(std::min(device, limit), GetParam().granularity);
  }

  void allocate(Bytes size) {
    const Bytes before = obtainable();
    const Bytes others = driver_.memory_info(kDevice).value().total;
    const Result<VirtAddr> address = allocator_->allocate(size, kStream);
    driver_.advance_us(10);
    if (address.ok()) {
      ASSERT_TRUE(driver_.write(kStream, address.value(), size, ++tag_).ok());
      live_.push_back({address.value(), size, tag_});
      return;
    }
    ++refused_;
    EXPECT_LT(before, round_up(size, GetParam().granularity))
        << size.count() << " bytes were refused although " << before.count()
        << " could be had; device " << others.count();
    // And the report says the same.
    const OomReport report = allocator_->last_oom();
    EXPECT_EQ(report.requested, size);
  }

  void free(std::size_t index) {
    const Block block = live_[index];
    EXPECT_TRUE(driver_.check_contents(block.address, block.size, block.tag).ok());
    EXPECT_TRUE(allocator_->free(block.address).ok());
    live_[index] = live_.back();
    live_.pop_back();
  }

  struct Block {
    VirtAddr address;
    Bytes size;
    std::uint64_t tag;
  };
  SimulatedDriver driver_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::vector<Block> live_;
  std::uint64_t tag_ = 0;
  std::uint64_t refused_ = 0;
};

TEST_P(Promise, WhatFitsIsServed) {
  std::mt19937_64 random(GetParam().seed);
  const auto below = [&random](std::uint64_t bound) { return random() % bound; };
  const Bytes capacity =
      round_down(std::min(GetParam().memory, GetParam().limit), GetParam().granularity);
  for (int round = 0; round < 12; ++round) {
    // Fill, in a mix of sizes that changes by round, and thin out; several times.
    for (int step = 0; step < 400 && !HasFatalFailure(); ++step) {
      const std::uint64_t top = std::uint64_t{1} << (9 + below(16));
      if (below(100) < (round % 3 == 0 ? 70U : 52U) || live_.empty()) {
        allocate(Bytes(1 + below(std::min(top * 4, capacity.count() / 2))));
      } else {
        free(below(live_.size()));
      }
    }
    // Just what can be had must be had; a granule more need not.
    const Bytes all = obtainable();
    if (!all.is_zero()) {
      allocate(all);
    }
    while (!live_.empty()) {
      free(below(live_.size()));
    }
    allocate(capacity);
    ASSERT_EQ(live_.size(), 1U) << "the whole capacity is not one block's in round " << round;
    free(0);
    allocator_->check();
  }
  EXPECT_GT(refused_, 0U);
  EXPECT_EQ(driver_.violation_count(), 0U);
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  std::uint64_t seed = 1;
  for (const Bytes handle : {2 * kMiB, 8 * kMiB, 32 * kMiB}) {
    for (const Bytes granularity : {2 * kMiB, 4 * kMiB}) {
      for (const Bytes limit : {kNoLimit, 100 * kMiB}) {
        for (const Completion completion : {Completion::kClock, Completion::kByHand}) {
          all.push_back({256 * kMiB, handle, granularity, limit, completion, seed++});
        }
      }
    }
  }
  all.push_back({64 * kMiB, 8 * kMiB, 2 * kMiB, kNoLimit, Completion::kByHand, seed++});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Settings, Promise, testing::ValuesIn(settings()));

}  // namespace
}  // namespace nofrag
