// map_handles: all or nothing, for a failure at every call it makes.
#include "range/mapping.h"

#include <vector>

#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice(0);
constexpr std::size_t kHandles = 4;

class Mapping : public testing::Test {
 protected:
  Mapping() : physical_(driver_, kDevice, 2 * kMiB) {
    base_ = driver_.reserve(64 * kMiB, Bytes(0)).value();
    for (std::size_t i = 0; i < kHandles; ++i) {
      handles_.push_back(physical_.create(2 * kMiB * (i + 1)).value());
    }
  }
  MapOutcome map() { return map_handles(driver_, kDevice, base_, handles_); }
  [[nodiscard]] std::uint64_t mappings() const { return driver_.leaks().mappings; }

  SimulatedDriver driver_{SimulatedDeviceSpec{}};
  PhysicalMemory physical_;
  VirtAddr base_;
  std::vector<PhysicalHandle> handles_;
};

TEST_F(Mapping, EverythingIsReachableInOrder) {
  const MapOutcome outcome = map();
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.stuck, 0U);
  EXPECT_EQ(mappings(), kHandles);
  EXPECT_TRUE(driver_.write(StreamId(1), base_, 20 * kMiB, 5).ok());
  EXPECT_EQ(driver_.ledger().count(DriverCall::kSetAccess), 1U);
}

TEST_F(Mapping, AFailureAtAnyCallUndoesExactlyWhatWasDone) {
  for (std::uint64_t nth = 1; nth <= kHandles + 1; ++nth) {
    driver_.fail_any_call(nth, Errc::kOutOfMemory);
    const MapOutcome outcome = map();
    EXPECT_EQ(outcome.status.code(), Errc::kOutOfMemory) << nth;
    EXPECT_EQ(outcome.stuck, 0U);
    EXPECT_EQ(mappings(), 0U) << nth;
    driver_.check();
  }
  EXPECT_TRUE(map().status.ok()) << "and everything can be mapped afterwards";
}

// The undo unmaps from the last handle on; where it is refused the rest stays mapped, counted.
TEST_F(Mapping, ARefusedUndoIsReportedAsStuck) {
  for (std::uint64_t refused = 1; refused <= kHandles; ++refused) {
    driver_.fail_call(DriverCall::kSetAccess, 1, Errc::kDriverFailure);
    driver_.fail_call(DriverCall::kUnmap, refused, Errc::kDriverFailure);
    const MapOutcome outcome = map();
    EXPECT_EQ(outcome.status.code(), Errc::kDriverFailure);
    EXPECT_EQ(outcome.stuck, kHandles - (refused - 1));
    EXPECT_EQ(mappings(), outcome.stuck);
    Bytes at;
    for (std::size_t i = 0; i < outcome.stuck; ++i) {
      EXPECT_TRUE(driver_.unmap(base_ + at, handles_[i].size).ok());
      at += handles_[i].size;
    }
  }
}

TEST_F(Mapping, NothingToMapIsAnError) {
  // set_access of nothing is refused by the driver, and nothing stays behind.
  handles_.clear();
  EXPECT_FALSE(map().status.ok());
  EXPECT_EQ(mappings(), 0U);
}

}  // namespace
}  // namespace nofrag
