// AddressSpace: one reservation, cut into regions and put together again.
#include "range/address_space.h"

#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

SimulatedDeviceSpec spec() {
  SimulatedDeviceSpec spec;
  spec.info.total_memory = 64 * kMiB;
  return spec;
}

TEST(AddressSpace, ReservesAtTheFirstRegionAndOnce) {
  SimulatedDriver driver(spec());
  {
    AddressSpace space(driver, 64 * kMiB, 2 * kMiB);
    EXPECT_EQ(driver.ledger().count(DriverCall::kReserve), 0U);
    EXPECT_FALSE(space.contains(VirtAddr(std::uint64_t{0x10000})));
    const AddressRange a = space.take_region(3 * kMiB).value();
    EXPECT_EQ(a.size, 4 * kMiB) << "whole granules";
    const AddressRange b = space.take_region(2 * kMiB).value();
    EXPECT_EQ(b.address, a.end());
    EXPECT_EQ(driver.ledger().count(DriverCall::kReserve), 1U);
    EXPECT_TRUE(space.contains(a.address));
    EXPECT_TRUE(space.contains(b.end() - Bytes(1)));
    EXPECT_FALSE(space.contains(a.address - Bytes(1)));
    space.return_region(a);
    space.return_region(b);
  }
  EXPECT_TRUE(driver.leaks().none());
}

TEST(AddressSpace, TakesLessWhenTheDriverRefuses) {
  SimulatedDriver driver(spec());
  driver.fail_call(DriverCall::kReserve, 1, Errc::kDriverFailure);
  driver.fail_call(DriverCall::kReserve, 2, Errc::kDriverFailure);
  AddressSpace space(driver, 64 * kMiB, 2 * kMiB);
  const AddressRange region = space.take_region(2 * kMiB).value();
  const Bytes size = driver.leaks().reserved_bytes;
  EXPECT_EQ(size, 64 * kMiB * (AddressSpace::kSpan / 4));
  space.return_region(region);
}

TEST(AddressSpace, PassesTheDriversErrorOnAndTriesAgainLater) {
  SimulatedDriver driver(spec());
  driver.fail_call(DriverCall::kReserve, 1, Errc::kDriverFailure, true);
  AddressSpace space(driver, 64 * kMiB, 2 * kMiB);
  EXPECT_EQ(space.take_region(2 * kMiB).code(), Errc::kDriverFailure);
  driver.clear_faults();
  const Result<AddressRange> region = space.take_region(2 * kMiB);
  ASSERT_TRUE(region.ok());
  space.return_region(region.value());
}

TEST(AddressSpace, KeptAddressesNeverComeAgain) {
  SimulatedDriver driver(spec());
  // So large that the third is given the first one's addresses, if it gave them back.
  const Bytes memory = Bytes(std::uint64_t{140} << 30);
  for (const bool kept : {false, true}) {
    AddressRange first;
    {
      AddressSpace space(driver, memory, 2 * kMiB);
      first = space.take_region(2 * kMiB).value();
      space.return_region(first);
      if (kept) {
        space.keep();
      }
    }
    EXPECT_EQ(driver.leaks().reservations, kept ? 1U : 0U);
    EXPECT_EQ(driver.leaks().mappings, 0U);
    bool again = false;
    for (int i = 0; i < 4; ++i) {
      AddressSpace space(driver, memory, 2 * kMiB);
      const AddressRange region = space.take_region(2 * kMiB).value();
      again = again || space.contains(first.address);
      space.return_region(region);
    }
    EXPECT_EQ(again, !kept);
  }
  EXPECT_EQ(driver.leaks().reserved_bytes, memory * AddressSpace::kSpan);
}

TEST(AddressSpace, KeepsNothingThatItDoesNotHave) {
  SimulatedDriver driver(spec());
  AddressSpace(driver, 64 * kMiB, 2 * kMiB).keep();
  EXPECT_TRUE(driver.leaks().none());
}

TEST(AddressSpace, AFrugalOneTakesLittle) {
  SimulatedDriver driver(spec());
  AddressSpace space(driver, 64 * kMiB, 2 * kMiB);
  space.be_one_of(64);
  EXPECT_EQ(space.free_bytes(), 64 * kMiB * AddressSpace::kFrugalSpan);
  space.return_region(space.take_region(2 * kMiB).value());
  EXPECT_EQ(driver.leaks().reserved_bytes, 64 * kMiB * AddressSpace::kFrugalSpan);
  EXPECT_EQ(space.free_bytes(), 64 * kMiB * AddressSpace::kFrugalSpan);
}

TEST(AddressSpace, SeveralShareTheAddresses) {
  SimulatedDriver driver(spec());
  for (const auto& [count, span] :
       {std::pair{1U, 256U}, {2U, 128U}, {3U, 64U}, {8U, 32U}, {17U, 16U}}) {
    AddressSpace space(driver, 64 * kMiB, 2 * kMiB);
    space.be_one_of(count);
    EXPECT_EQ(space.free_bytes(), 64 * kMiB * span) << count;
  }
}

TEST(AddressSpaceDeathTest, RegionReturnedTwiceAborts) {
  SimulatedDriver driver(spec());
  AddressSpace space(driver, 64 * kMiB, 2 * kMiB);
  const AddressRange a = space.take_region(2 * kMiB).value();
  const AddressRange b = space.take_region(2 * kMiB).value();
  space.return_region(a);
  EXPECT_DEATH(space.return_region(a), "returned twice");
  space.return_region(b);
}

TEST(AddressSpace, RandomRegionsNeverOverlapAndComeTogetherAgain) {
  SimulatedDriver driver(spec());
  AddressSpace space(driver, 64 * kMiB, 2 * kMiB);
  const Bytes all = 64 * kMiB * AddressSpace::kSpan;
  std::mt19937_64 random(3);
  std::vector<AddressRange> held;
  std::map<std::uint64_t, std::uint64_t> extents;
  for (int step = 0; step < 20000; ++step) {
    if (held.empty() || random() % 2 == 0) {
      const Result<AddressRange> region = space.take_region(Bytes(1 + random() % (kGiB.count())));
      if (!region.ok()) {
        EXPECT_EQ(region.code(), Errc::kOutOfMemory);
        continue;
      }
      const std::uint64_t begin = region.value().address.value();
      const std::uint64_t end = region.value().end().value();
      const auto after = extents.lower_bound(begin);
      ASSERT_TRUE(after == extents.end() || after->first >= end);
      ASSERT_TRUE(after == extents.begin() || std::prev(after)->second <= begin);
      extents.emplace(begin, end);
      held.push_back(region.value());
    } else {
      std::swap(held[random() % held.size()], held.back());
      extents.erase(held.back().address.value());
      space.return_region(held.back());
      held.pop_back();
    }
  }
  for (const AddressRange& region : held) {
    space.return_region(region);
  }
  const Result<AddressRange> whole = space.take_region(all);
  ASSERT_TRUE(whole.ok()) << "free spans did not merge";
  EXPECT_EQ(space.take_region(2 * kMiB).code(), Errc::kOutOfMemory);
  space.return_region(whole.value());
}

}  // namespace
}  // namespace nofrag
