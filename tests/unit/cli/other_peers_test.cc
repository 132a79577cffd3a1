// CUB's caching allocator and cudaMallocAsync, as models, against traces small enough to work out by hand.
#include <gtest/gtest.h>

#include "cli/peers/replay_allocator.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

class OtherPeers : public testing::Test {
 protected:
  static constexpr StreamId kStream{0};
  using Maker = std::unique_ptr<ReplayAllocator> (*)(const PeerConfig&);

  void start(Maker maker, Bytes memory = 4 * kGiB) {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = memory;
    driver_ = std::make_unique<SimulatedDriver>(spec);
    driver_->set_streams_busy(true);
    driver_->set_stream_lag_us(500);
    other_ = driver_->stream_create(DeviceOrdinal(0)).value();
    PeerConfig config;
    config.driver = driver_.get();
    config.info = driver_->device_info(DeviceOrdinal(0)).value();
    config.blocks = 64;
    model_ = maker(config);
  }
  bool allocate(std::uint32_t block, Bytes size, StreamId stream = kStream) {
    return model_->allocate(block, size, stream).ok();
  }
  void free(std::uint32_t block, StreamId stream = kStream) {
    EXPECT_TRUE(model_->free(block, stream).ok());
  }
  std::uint64_t calls(DriverCall call) { return driver_->ledger().count(call); }
  void TearDown() override {
    EXPECT_TRUE(model_->retire(other_).ok());
    EXPECT_EQ(driver_->physical_in_use(DeviceOrdinal(0)), model_->reserved())
        << "the model miscounts";
    model_.reset();
    EXPECT_TRUE(driver_->stream_destroy(DeviceOrdinal(0), other_).ok());
    EXPECT_TRUE(driver_->leaks().none());
    EXPECT_EQ(driver_->violation_count(), 0U);
  }

  std::unique_ptr<SimulatedDriver> driver_;
  std::unique_ptr<ReplayAllocator> model_;
  StreamId other_;
};

TEST_F(OtherPeers, CubKeepsABlockOfItsBin) {
  start(&make_cub_caching_model);
  ASSERT_TRUE(allocate(0, Bytes(5000)));  // 32 KiB bin
  free(0);
  ASSERT_TRUE(allocate(1, Bytes(30000)));
  EXPECT_EQ(calls(DriverCall::kMalloc), 1U) << "the same bin";
  ASSERT_TRUE(allocate(2, Bytes(4096)));
  EXPECT_EQ(calls(DriverCall::kMalloc), 2U) << "a smaller bin";
}

TEST_F(OtherPeers, CubCachesNothingBeyondItsLargestBinNorItsLimit) {
  start(&make_cub_caching_model);
  ASSERT_TRUE(allocate(0, 2 * kMiB + Bytes(1)));
  free(0);
  EXPECT_EQ(calls(DriverCall::kFree), 1U);
  for (std::uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(allocate(i, 2 * kMiB));
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    free(i);
  }
  EXPECT_EQ(calls(DriverCall::kFree), 3U) << "6 MiB less a byte hold two blocks of 2 MiB";
  EXPECT_EQ(model_->free_granules(), 4 * kMiB);
}

TEST_F(OtherPeers, CubWaitsForTheStreamOfTheAllocation) {
  start(&make_cub_caching_model);
  ASSERT_TRUE(allocate(0, 1 * kMiB, other_));
  free(0, other_);
  ASSERT_TRUE(allocate(1, 1 * kMiB, kStream));
  EXPECT_EQ(calls(DriverCall::kMalloc), 2U) << "the other stream's work still runs";
  driver_->set_time_us(1000);
  ASSERT_TRUE(allocate(2, 1 * kMiB, kStream));
  EXPECT_EQ(calls(DriverCall::kMalloc), 2U) << "it is done";
}

TEST_F(OtherPeers, CubDropsItsCacheBeforeItFails) {
  start(&make_cub_caching_model, 8 * kMiB);
  ASSERT_TRUE(allocate(0, 2 * kMiB));
  ASSERT_TRUE(allocate(1, 2 * kMiB));
  free(0);
  free(1);
  EXPECT_TRUE(allocate(2, 8 * kMiB));
  EXPECT_FALSE(allocate(3, 2 * kMiB));
}

TEST_F(OtherPeers, AsyncGrowsByChunksAndReusesAtOnceOnOneStream) {
  start(&make_driver_async_model);
  ASSERT_TRUE(allocate(0, 1 * kMiB));
  EXPECT_EQ(model_->reserved(), 32 * kMiB);
  ASSERT_TRUE(allocate(1, 31 * kMiB));
  EXPECT_EQ(model_->reserved(), 32 * kMiB);
  free(0);
  free(1);
  ASSERT_TRUE(allocate(2, 32 * kMiB)) << "neighbours of one stream join";
  EXPECT_EQ(model_->reserved(), 32 * kMiB);
  ASSERT_TRUE(allocate(3, 33 * kMiB));
  EXPECT_EQ(model_->reserved(), 66 * kMiB);
}

TEST_F(OtherPeers, AsyncTakesAnotherStreamsMemoryBehindAWait) {
  start(&make_driver_async_model);
  ASSERT_TRUE(allocate(0, 16 * kMiB, kStream));
  ASSERT_TRUE(allocate(1, 16 * kMiB, other_));
  free(1, other_);
  ASSERT_TRUE(allocate(2, 16 * kMiB, kStream));
  EXPECT_EQ(model_->reserved(), 32 * kMiB);
  EXPECT_EQ(calls(DriverCall::kStreamWait), 1U);
}

TEST_F(OtherPeers, AsyncGivesBackWholeChunksBeforeItFails) {
  start(&make_driver_async_model, 64 * kMiB);
  ASSERT_TRUE(allocate(0, 20 * kMiB));
  ASSERT_TRUE(allocate(1, 20 * kMiB));
  free(0);
  EXPECT_FALSE(allocate(2, 40 * kMiB));
  EXPECT_EQ(model_->reserved(), 32 * kMiB);
  free(1);
  EXPECT_TRUE(allocate(2, 40 * kMiB));
  EXPECT_EQ(model_->reserved(), 40 * kMiB);
}

TEST_F(OtherPeers, AsyncTakesLessThanAChunkWhereNoMoreIsLeft) {
  start(&make_driver_async_model, 40 * kMiB);
  ASSERT_TRUE(allocate(0, 20 * kMiB));
  EXPECT_TRUE(allocate(1, 7 * kMiB));
  EXPECT_TRUE(allocate(2, 7 * kMiB));
  EXPECT_EQ(model_->reserved(), 40 * kMiB);
}

}  // namespace
}  // namespace nofrag
