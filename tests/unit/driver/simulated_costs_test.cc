// Prices: the table of the H100 file, its arithmetic, and what the ledger makes of calls.
#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};
constexpr DeviceOrdinal kPeer{1};

SimulatedDeviceSpec h100() {
  SimulatedDeviceFile file;
  std::string error;
  EXPECT_TRUE(load_simulated_device("h100-80g", &file, &error)) << error;
  return file.spec;
}

class SimulatedCostsTest : public testing::Test {
 protected:
  SimulatedCostsTest() : driver_({h100(), h100()}) {
    range_ = driver_.reserve(16 * kGiB, Bytes(0)).value();
    driver_.reset_ledger();
  }

  double spent(DriverCall call) {
    return driver_.ledger().microseconds[static_cast<std::size_t>(call)];
  }

  SimulatedDriver driver_;
  VirtAddr range_;
};

// Rows of the table (docs/driver.md): MiB, create, map, set_access, unmap, release, malloc, free.
struct Row {
  std::uint64_t mib;
  double create, map, set_access, unmap, release, malloc, free;
};
constexpr Row kRows[] = {{2, 21, 2.2, 34, 30, 16.0, 56.5, 48.8},
                         {32, 21, 2.2, 34, 30, 35.2, 74.9, 83.4},
                         {512, 35, 2.2, 65.4, 38, 311.0, 123.7, 376.5},
                         {4096, 90, 3.2, 219.7, 73, 2286.6, 825.1, 1506.2}};

TEST_F(SimulatedCostsTest, MeasuredPointsAreMetExactly) {
  for (const Row& row : kRows) {
    const Bytes size = kMiB * row.mib;
    driver_.reset_ledger();
    const HandleId handle = driver_.create(kDevice, size).value();
    EXPECT_TRUE(driver_.map(range_, size, handle));
    EXPECT_TRUE(driver_.set_access(range_, size, kDevice));
    EXPECT_TRUE(driver_.unmap(range_, size));
    EXPECT_TRUE(driver_.release(handle));
    EXPECT_TRUE(driver_.free(kDevice, driver_.malloc(kDevice, size).value()));
    EXPECT_DOUBLE_EQ(spent(DriverCall::kCreate), row.create) << row.mib;
    EXPECT_DOUBLE_EQ(spent(DriverCall::kMap), row.map) << row.mib;
    EXPECT_DOUBLE_EQ(spent(DriverCall::kSetAccess), row.set_access) << row.mib;
    EXPECT_DOUBLE_EQ(spent(DriverCall::kUnmap), row.unmap) << row.mib;
    EXPECT_DOUBLE_EQ(spent(DriverCall::kRelease), row.release) << row.mib;
    EXPECT_DOUBLE_EQ(spent(DriverCall::kMalloc), row.malloc) << row.mib;
    EXPECT_DOUBLE_EQ(spent(DriverCall::kFree), row.free) << row.mib;
  }
}

TEST_F(SimulatedCostsTest, FixedPrices) {
  const EventId event = driver_.event_create(kDevice).value();
  EXPECT_DOUBLE_EQ(spent(DriverCall::kEventCreate), 0.9);
  EXPECT_TRUE(driver_.event_record(kDevice, event, StreamId(1)));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kEventRecord), 0.6);
  EXPECT_FALSE(driver_.event_query(kDevice, event));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kEventQuery), 0.45) << "not ready costs the same";
  EXPECT_TRUE(driver_.stream_is_capturing(kDevice, StreamId(1)));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kStreamCaptureQuery), 0.013);
  EXPECT_TRUE(driver_.event_synchronize(kDevice, event));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kEventSynchronize), 500.40) << "the wait is added";
  EXPECT_TRUE(driver_.device_synchronize(kDevice));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kDeviceSynchronize), 0.40);
  EXPECT_TRUE(driver_.memory_info(kDevice));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kMemInfo), 4.8);
}

TEST_F(SimulatedCostsTest, InterpolatesAndExtrapolates) {
  CallCost cost;
  cost.points = {{2 * kMiB, 10}, {4 * kMiB, 20}, {8 * kMiB, 60}};
  EXPECT_DOUBLE_EQ(cost.microseconds(Bytes(0)), 10);
  EXPECT_DOUBLE_EQ(cost.microseconds(3 * kMiB), 15);
  EXPECT_DOUBLE_EQ(cost.microseconds(4 * kMiB), 20);
  EXPECT_DOUBLE_EQ(cost.microseconds(7 * kMiB), 50);
  EXPECT_DOUBLE_EQ(cost.microseconds(10 * kMiB), 80);
  cost.points.resize(1);
  EXPECT_DOUBLE_EQ(cost.microseconds(kGiB), 10);
  cost.points.clear();
  EXPECT_DOUBLE_EQ(cost.microseconds(kGiB), 0);
}

// What replayed jobs paid on the card: 57 us to create and map a handle of up to 64 MiB, 36 to map one
// at a further address.
TEST_F(SimulatedCostsTest, HandlesAndAliasesCostWhatReplaysPay) {
  for (const std::uint64_t mib : std::vector<std::uint64_t>{2, 8, 16, 32, 64}) {
    const Bytes size = kMiB * mib;
    driver_.reset_ledger();
    const HandleId handle = driver_.create(kDevice, size).value();
    ASSERT_TRUE(driver_.map(range_, size, handle));
    ASSERT_TRUE(driver_.set_access(range_, size, kDevice));
    EXPECT_NEAR(driver_.ledger().total_microseconds(), 57, 57 * 0.05) << mib << " MiB";
    driver_.reset_ledger();
    ASSERT_TRUE(driver_.map(range_ + kGiB, size, handle));
    ASSERT_TRUE(driver_.set_access(range_ + kGiB, size, kDevice));
    EXPECT_NEAR(driver_.ledger().total_microseconds(), 36, 36 * 0.07) << mib << " MiB";
    ASSERT_TRUE(driver_.unmap(range_, size));
    ASSERT_TRUE(driver_.unmap(range_ + kGiB, size));
    ASSERT_TRUE(driver_.release(handle));
  }
}

// On the card a call over ten mappings costs as much as ten calls; a device file may say otherwise.
TEST_F(SimulatedCostsTest, FurtherMappingsOfOneCall) {
  SimulatedDeviceSpec cheaper = h100();
  cheaper.costs[DriverCall::kSetAccess].call_overhead_us = 9.5;
  cheaper.costs[DriverCall::kUnmap].call_overhead_us = 5;
  SimulatedDriver driver({h100(), cheaper});
  const Bytes unit = 2 * kMiB;
  const auto spend_on = [&](DeviceOrdinal device) {
    const VirtAddr range = driver.reserve(kGiB, Bytes(0)).value();
    for (std::uint64_t i = 0; i < 10; ++i) {
      ASSERT_TRUE(driver.map(range + unit * i, unit, driver.create(device, unit).value()));
    }
    driver.reset_ledger();
    ASSERT_TRUE(driver.set_access(range, unit * 10, device));
    ASSERT_TRUE(driver.unmap(range, unit * 10));
  };
  const auto paid = [&](DriverCall call) {
    return driver.ledger().microseconds[static_cast<std::size_t>(call)];
  };
  spend_on(DeviceOrdinal{0});
  EXPECT_NEAR(paid(DriverCall::kSetAccess), 10 * 34, 1e-9);
  EXPECT_NEAR(paid(DriverCall::kUnmap), 10 * 30, 1e-9);
  spend_on(DeviceOrdinal{1});
  EXPECT_NEAR(paid(DriverCall::kSetAccess), 34 + 9 * 24.5, 1e-9);
  EXPECT_NEAR(paid(DriverCall::kUnmap), 30 + 9 * 25, 1e-9);
}

TEST_F(SimulatedCostsTest, PeersCostMore) {
  const Bytes unit = 2 * kMiB;
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(driver_.map(range_ + unit * i, unit, driver_.create(kDevice, unit).value()));
  }
  EXPECT_TRUE(driver_.set_access(range_, unit * 3, kPeer));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kSetAccess), 3 * 400.0);
}

TEST_F(SimulatedCostsTest, RefusedCreateHasItsOwnPrice) {
  driver_.set_physical_memory(kDevice, 2 * kMiB);
  EXPECT_FALSE(driver_.create(kDevice, 4 * kMiB));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kCreate), 36);
  EXPECT_EQ(driver_.ledger().count(DriverCall::kCreate), 1U);
}

TEST_F(SimulatedCostsTest, SameCallsSameNumbers) {
  const auto run = [] {
    SimulatedDriver driver(h100());
    const VirtAddr range = driver.reserve(kGiB, Bytes(0)).value();
    for (std::uint64_t i = 1; i < 16; ++i) {
      const Bytes size = 2 * kMiB * i;
      const HandleId handle = driver.create(kDevice, size).value();
      EXPECT_TRUE(driver.map(range, size, handle));
      EXPECT_TRUE(driver.set_access(range, size, kDevice));
      EXPECT_TRUE(driver.unmap(range, size));
    }
    return driver.ledger().total_microseconds();
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace nofrag
