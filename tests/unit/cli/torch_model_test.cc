// The models of PyTorch's policies against traces small enough to work out by hand.
#include <gtest/gtest.h>

#include "cli/peers/replay_allocator.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

class TorchModelTest : public testing::Test {
 protected:
  static constexpr StreamId kStream{0};
  static constexpr StreamId kOther{17};
  using Maker = std::unique_ptr<ReplayAllocator> (*)(const PeerConfig&);

  void start(Maker maker, Bytes memory = 4 * kGiB, Bytes limit = kNoLimit) {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = memory;
    driver_ = std::make_unique<SimulatedDriver>(spec);
    PeerConfig config;
    config.driver = driver_.get();
    config.info = driver_->device_info(DeviceOrdinal(0)).value();
    config.limit = limit;
    config.blocks = 64;
    model_ = maker(config);
  }
  bool allocate(std::uint32_t block, Bytes size, StreamId stream = kStream) {
    return model_->allocate(block, size, stream).ok();
  }
  void free(std::uint32_t block, StreamId stream = kStream) {
    EXPECT_TRUE(model_->free(block, stream).ok());
  }
  void expect_reserved(Bytes bytes) {
    EXPECT_EQ(model_->reserved(), bytes);
    EXPECT_EQ(driver_->physical_in_use(DeviceOrdinal(0)), bytes) << "the model miscounts";
  }
  std::uint64_t calls(DriverCall call) { return driver_->ledger().count(call); }
  void TearDown() override {
    model_.reset();
    EXPECT_TRUE(driver_->leaks().none());
    EXPECT_EQ(driver_->violation_count(), 0U);
  }

  std::unique_ptr<SimulatedDriver> driver_;
  std::unique_ptr<ReplayAllocator> model_;
};

TEST_F(TorchModelTest, NativeSegmentSizesFollowTheRequest) {
  start(&make_torch_native_model);
  ASSERT_TRUE(allocate(0, Bytes(1)));
  expect_reserved(2 * kMiB);
  ASSERT_TRUE(allocate(1, 1 * kMiB));  // the largest small request: fits beside the first
  expect_reserved(2 * kMiB);
  ASSERT_TRUE(allocate(2, 1 * kMiB + Bytes(1)));  // the smallest large one
  expect_reserved(22 * kMiB);
  ASSERT_TRUE(allocate(3, 10 * kMiB - Bytes(1)));  // fits beside it
  expect_reserved(22 * kMiB);
  ASSERT_TRUE(allocate(4, 10 * kMiB));  // rounds itself: from 10 MiB on, but the rest of the 20
                                        // MiB segment is 9 MiB - 512 B, so a new one
  expect_reserved(32 * kMiB);
  ASSERT_TRUE(allocate(5, 11 * kMiB));  // rounded up to 2 MiB
  expect_reserved(44 * kMiB);
}

TEST_F(TorchModelTest, NativeSmallPoolSplitsAt512) {
  start(&make_torch_native_model);
  // 4096 blocks of 512 B fill 2 MiB exactly; test with four quarters instead.
  for (std::uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(allocate(i, 512 * kKiB - Bytes(100)));  // each rounds to 512 KiB
  }
  expect_reserved(2 * kMiB);
  ASSERT_TRUE(allocate(4, Bytes(512)));
  expect_reserved(4 * kMiB);
}

TEST_F(TorchModelTest, NativeLargePoolWastesUpToOneMiB) {
  start(&make_torch_native_model);
  ASSERT_TRUE(allocate(0, 20 * kMiB));
  free(0);
  ASSERT_TRUE(allocate(0 + 1, 19 * kMiB));  // rest of exactly 1 MiB is not split off
  ASSERT_TRUE(allocate(2, 2 * kMiB));
  expect_reserved(40 * kMiB);
  free(1);
  free(2);
  // 20 MiB whole again (best fit prefers equals by lowest address); a rest above 1 MiB is split.
  ASSERT_TRUE(allocate(3, 19 * kMiB - Bytes(512)));
  ASSERT_TRUE(allocate(4, 1 * kMiB + Bytes(512)));
  expect_reserved(40 * kMiB);
  EXPECT_EQ(calls(DriverCall::kMalloc), 2U);
}

TEST_F(TorchModelTest, NativeCoalescesBothNeighbours) {
  start(&make_torch_native_model);
  ASSERT_TRUE(allocate(0, 64 * kMiB));
  free(0);
  ASSERT_TRUE(allocate(1, 16 * kMiB));
  ASSERT_TRUE(allocate(2, 16 * kMiB));
  ASSERT_TRUE(allocate(3, 16 * kMiB));
  ASSERT_TRUE(allocate(4, 16 * kMiB));
  free(1);
  free(3);
  free(2);
  ASSERT_TRUE(allocate(5, 48 * kMiB));
  expect_reserved(64 * kMiB);
}

TEST_F(TorchModelTest, NativeStreamsDoNotShareTheirCaches) {
  start(&make_torch_native_model);
  ASSERT_TRUE(allocate(0, 100 * kMiB));
  free(0);
  ASSERT_TRUE(allocate(1, 100 * kMiB, kOther));
  expect_reserved(200 * kMiB);
}

TEST_F(TorchModelTest, NativeFlushesWholeSegmentsBeforeItFails) {
  start(&make_torch_native_model, 256 * kMiB);
  ASSERT_TRUE(allocate(0, 100 * kMiB));
  ASSERT_TRUE(allocate(1, 100 * kMiB, kOther));
  free(0);
  free(1, kOther);
  ASSERT_TRUE(allocate(2, 20 * kMiB));  // cut from the 100 MiB segment of its stream: pins it
  expect_reserved(200 * kMiB);
  ASSERT_TRUE(allocate(3, 150 * kMiB));  // the other stream's idle segment goes back
  expect_reserved(250 * kMiB);
  EXPECT_EQ(calls(DriverCall::kFree), 1U);
  EXPECT_FALSE(allocate(4, 81 * kMiB)) << "80 MiB are free behind block 2, and nothing can go back";
  EXPECT_EQ(model_->free_granules(), 80 * kMiB);
  ASSERT_TRUE(allocate(4, 80 * kMiB));
}

TEST_F(TorchModelTest, NativeRespectsALimitOfItsOwn) {
  start(&make_torch_native_model, 4 * kGiB, 100 * kMiB);
  ASSERT_TRUE(allocate(0, 60 * kMiB));
  EXPECT_EQ(model_->allocate(1, 60 * kMiB, kStream).code(), Errc::kLimit);
  free(0);
  ASSERT_TRUE(allocate(2, 62 * kMiB)) << "the cached 60 MiB go back first";
  expect_reserved(62 * kMiB);
}

TEST_F(TorchModelTest, FreeOnAnotherStreamWaitsForThatStreamsWork) {
  for (const Maker maker : {&make_torch_native_model, &make_torch_expandable_model}) {
    start(maker);
    driver_->set_stream_lag_us(500);
    driver_->set_time_us(0);
    ASSERT_TRUE(allocate(0, 40 * kMiB));
    free(0, kOther);
    ASSERT_TRUE(allocate(1, 40 * kMiB));
    expect_reserved(80 * kMiB);
    driver_->set_time_us(501);
    ASSERT_TRUE(allocate(2, 40 * kMiB));
    expect_reserved(80 * kMiB);
    model_.reset();
  }
}

TEST_F(TorchModelTest, PendingFreesAreWaitedForBeforeFailing) {
  start(&make_torch_native_model, 64 * kMiB);
  ASSERT_TRUE(allocate(0, 40 * kMiB));
  free(0, kOther);
  ASSERT_TRUE(allocate(1, 60 * kMiB)) << "waits for the event, gives the segment back";
  EXPECT_EQ(calls(DriverCall::kEventSynchronize), 1U);
  expect_reserved(60 * kMiB);
}

TEST_F(TorchModelTest, ExpandableGrowsByGranulesAndSplitsAt512) {
  start(&make_torch_expandable_model);
  ASSERT_TRUE(allocate(0, Bytes(1)));
  expect_reserved(2 * kMiB);
  ASSERT_TRUE(allocate(1, 21 * kMiB));
  expect_reserved(42 * kMiB);
  ASSERT_TRUE(allocate(2, 19 * kMiB));  // the 19 MiB behind it, to the byte
  expect_reserved(42 * kMiB);
  ASSERT_TRUE(allocate(3, 2 * kMiB));
  expect_reserved(62 * kMiB);
  ASSERT_TRUE(allocate(4, 30 * kMiB));  // 18 MiB are there: one granule more
  expect_reserved(82 * kMiB);
  EXPECT_EQ(calls(DriverCall::kCreate), 5U);
  EXPECT_EQ(calls(DriverCall::kSetAccess), 4U);
}

TEST_F(TorchModelTest, ExpandableSparesTheGrowingEnd) {
  start(&make_torch_expandable_model);
  ASSERT_TRUE(allocate(0, 40 * kMiB));
  ASSERT_TRUE(allocate(1, 15 * kMiB));
  ASSERT_TRUE(allocate(2, 20 * kMiB));  // ends at 75 MiB; 5 MiB free before the unbacked tail
  free(1);                              // a hole of 15 MiB
  ASSERT_TRUE(allocate(3, 4 * kMiB));   // 5 MiB would fit tighter, but could still grow
  expect_reserved(80 * kMiB);
  ASSERT_TRUE(allocate(4, 25 * kMiB));  // uses those 5 MiB and one new granule
  expect_reserved(100 * kMiB);
}

TEST_F(TorchModelTest, ExpandableUnmapsWholeGranulesBeforeItFails) {
  start(&make_torch_expandable_model, 100 * kMiB);
  ASSERT_TRUE(allocate(0, 30 * kMiB));
  ASSERT_TRUE(allocate(1, 30 * kMiB));
  ASSERT_TRUE(allocate(2, 30 * kMiB));
  expect_reserved(100 * kMiB);  // 90 of 100 MiB
  free(1);                      // granules 20..40 and 40..60: only the second is wholly inside
  EXPECT_EQ(model_->free_granules(), 30 * kMiB + 10 * kMiB) << "in units of 2 MiB";
  ASSERT_TRUE(allocate(3, 12 * kMiB, kOther)) << "one granule moves to the other stream";
  expect_reserved(100 * kMiB);
  EXPECT_EQ(calls(DriverCall::kUnmap), 1U);
  EXPECT_FALSE(allocate(4, 21 * kMiB, kOther));
  expect_reserved(100 * kMiB);
  free(0);
  free(2);
  free(3, kOther);
  ASSERT_TRUE(allocate(5, 100 * kMiB, kOther));
  expect_reserved(100 * kMiB);
}

TEST_F(TorchModelTest, ExpandableReusesAnUnmappedHoleAtTheLowestAddress) {
  start(&make_torch_expandable_model, 100 * kMiB);
  ASSERT_TRUE(allocate(0, 20 * kMiB));
  ASSERT_TRUE(allocate(1, 40 * kMiB));
  ASSERT_TRUE(allocate(2, 20 * kMiB));
  free(1);
  ASSERT_TRUE(allocate(3, 60 * kMiB, kOther));  // takes the 40 MiB hole's granules and 20 more
  free(3, kOther);
  const std::uint64_t reservations = calls(DriverCall::kReserve);
  ASSERT_TRUE(allocate(4, 40 * kMiB));  // back into the hole between 0 and 2
  EXPECT_EQ(calls(DriverCall::kReserve), reservations);
  expect_reserved(80 * kMiB);
}

TEST_F(TorchModelTest, ExpandableSaysWhenItsAddressesRunOut) {
  start(&make_torch_expandable_model, 16384 * kGiB);
  std::uint32_t streams = 0;
  while (streams < 32 && allocate(streams, 2 * kMiB, StreamId(streams))) {
    EXPECT_EQ(model_->trouble({Errc::kDriverFailure, 2}), "");
    ++streams;
  }
  EXPECT_GE(streams, 4U);
  EXPECT_LE(streams, 7U) << "18 TiB for each, of 128 at most";
  const std::string said = model_->trouble({Errc::kDriverFailure, 2});
  EXPECT_EQ(model_->trouble({Errc::kDriverFailure, 719}), "") << "that comes from something else";
  EXPECT_NE(said.find("of addresses for each stream and pool, and none are left"),
            std::string::npos)
      << said;
  ASSERT_TRUE(allocate(40, 2 * kMiB, StreamId(0))) << "the others go on";
}

TEST_F(TorchModelTest, DriverPeerHoldsWhatIsLive) {
  start(&make_driver_peer, 10 * kMiB);
  ASSERT_TRUE(allocate(0, 3 * kMiB));
  expect_reserved(4 * kMiB);
  EXPECT_FALSE(allocate(1, 7 * kMiB));
  free(0);
  expect_reserved(Bytes(0));
  ASSERT_TRUE(allocate(1, 7 * kMiB));
  EXPECT_EQ(model_->peak_reserved(), 8 * kMiB);
}

}  // namespace
}  // namespace nofrag
