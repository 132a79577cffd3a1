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

// The measured rows (docs/driver.md): MiB, create, map, set_access, unmap, release, malloc, free.
struct Row {
  std::uint64_t mib;
  double create, map, set_access, unmap, release, malloc, free;
};
constexpr Row kRows[] = {{2, 13.5, 1.3, 35.5, 23.2, 16.0, 56.5, 48.8},
                         {32, 13.4, 0.9, 36.3, 23.4, 35.2, 74.9, 83.4},
                         {512, 22.3, 1.7, 65.4, 31.3, 311.0, 123.7, 376.5},
                         {4096, 63.1, 3.2, 219.7, 66.1, 2286.6, 825.1, 1506.2}};

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
  EXPECT_DOUBLE_EQ(spent(DriverCall::kEventCreate), 0.22);
  EXPECT_TRUE(driver_.event_record(kDevice, event, StreamId(1)));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kEventRecord), 0.19);
  EXPECT_FALSE(driver_.event_query(kDevice, event));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kEventQuery), 0.16) << "not ready costs the same";
  EXPECT_TRUE(driver_.stream_is_capturing(kDevice, StreamId(1)));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kStreamCaptureQuery), 0.06);
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

// 1 GiB in handles of each size, create to access, against the measured totals in milliseconds.
TEST_F(SimulatedCostsTest, ComposingOneGiBCostsWhatWasMeasured) {
  const std::vector<std::pair<std::uint64_t, double>> measured = {
      {2, 21.5}, {8, 4.9}, {32, 1.2}, {512, 0.17}};
  for (const auto& [mib, milliseconds] : measured) {
    driver_.reset_ledger();
    std::vector<HandleId> handles;
    for (Bytes at; at < kGiB; at += kMiB * mib) {
      handles.push_back(driver_.create(kDevice, kMiB * mib).value());
      ASSERT_TRUE(driver_.map(range_ + at, kMiB * mib, handles.back()));
    }
    ASSERT_TRUE(driver_.set_access(range_, kGiB, kDevice));
    EXPECT_NEAR(driver_.ledger().total_microseconds() / 1000, milliseconds, milliseconds * 0.12)
        << mib << " MiB handles";
    ASSERT_TRUE(driver_.unmap(range_, kGiB));
    for (const HandleId handle : handles) {
      ASSERT_TRUE(driver_.release(handle));
    }
  }
}

TEST_F(SimulatedCostsTest, FurtherMappingsOfOneCallCostLess) {
  const Bytes unit = 2 * kMiB;
  for (std::uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(driver_.map(range_ + unit * i, unit, driver_.create(kDevice, unit).value()));
  }
  EXPECT_TRUE(driver_.set_access(range_, unit * 10, kDevice));
  EXPECT_DOUBLE_EQ(spent(DriverCall::kSetAccess), 35.5 + 9 * 26.0);
  EXPECT_TRUE(driver_.unmap(range_, unit * 10));
  EXPECT_NEAR(spent(DriverCall::kUnmap), 23.2 + 9 * 18.0, 1e-9);
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
