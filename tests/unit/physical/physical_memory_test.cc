// PhysicalMemory: the limit, the driver's refusals, spares.
#include "physical/physical_memory.h"

#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice(0);

class PhysicalMemoryTest : public testing::Test {
 protected:
  static SimulatedDeviceSpec spec() {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = 64 * kMiB;
    return spec;
  }
  SimulatedDriver driver_{spec()};
  PhysicalMemory memory_{driver_, kDevice, 2 * kMiB};
};

TEST_F(PhysicalMemoryTest, CountsWhatItHolds) {
  const PhysicalHandle a = memory_.create(2 * kMiB).value();
  const PhysicalHandle b = memory_.create(8 * kMiB).value();
  EXPECT_EQ(memory_.reserved(), 10 * kMiB);
  EXPECT_EQ(driver_.physical_in_use(kDevice), 10 * kMiB);
  memory_.release(a);
  EXPECT_EQ(memory_.reserved(), 8 * kMiB);
  EXPECT_EQ(memory_.peak_reserved(), 10 * kMiB);
  memory_.reset_peak();
  EXPECT_EQ(memory_.peak_reserved(), 8 * kMiB);
  memory_.release(b);
  EXPECT_TRUE(driver_.leaks().none());
}

TEST_F(PhysicalMemoryTest, OwnLimitAndTheDriversAreToldApart) {
  memory_.set_limit(10 * kMiB);
  EXPECT_EQ(memory_.create(12 * kMiB).code(), Errc::kLimit);
  const PhysicalHandle exact = memory_.create(10 * kMiB).value();
  EXPECT_EQ(memory_.create(2 * kMiB).code(), Errc::kLimit);
  memory_.set_limit(4 * kMiB);  // below what is held: nothing more, and no wrap
  EXPECT_FALSE(memory_.fits_limit(Bytes(0)));
  EXPECT_EQ(memory_.create(2 * kMiB).code(), Errc::kLimit);
  memory_.set_limit(kNoLimit);
  EXPECT_EQ(memory_.create(60 * kMiB).code(), Errc::kOutOfMemory);
  EXPECT_EQ(memory_.reserved(), 10 * kMiB);
  memory_.release(exact);
}

TEST_F(PhysicalMemoryTest, KnowsWhatOthersHoldAsOfTheLastLook) {
  driver_.set_memory_of_others(kDevice, 20 * kMiB);
  EXPECT_EQ(memory_.others(), Bytes(0));
  const PhysicalHandle a = memory_.create(2 * kMiB).value();
  EXPECT_EQ(memory_.others(), 20 * kMiB);
  driver_.set_memory_of_others(kDevice, 60 * kMiB);
  EXPECT_EQ(memory_.create(4 * kMiB).code(), Errc::kOutOfMemory);
  EXPECT_EQ(memory_.others(), 60 * kMiB);
  driver_.set_memory_of_others(kDevice, Bytes(0));
  EXPECT_EQ(memory_.others(), 60 * kMiB);
  EXPECT_EQ(memory_.look().value().free, 62 * kMiB);
  EXPECT_EQ(memory_.others(), Bytes(0));
  memory_.release(a);
}

TEST_F(PhysicalMemoryTest, PlainAllocationsShareTheLimit) {
  memory_.set_limit(4 * kMiB);
  EXPECT_TRUE(memory_.fits_limit(3 * kMiB));
  memory_.charge(3 * kMiB);
  EXPECT_FALSE(memory_.fits_limit(2 * kMiB));
  EXPECT_EQ(memory_.create(2 * kMiB).code(), Errc::kLimit);
  memory_.uncharge(3 * kMiB);
  EXPECT_EQ(memory_.reserved(), Bytes(0));
}

TEST_F(PhysicalMemoryTest, RefusedReleaseIsASpareThatIsUsedAgain) {
  const PhysicalHandle handle = memory_.create(4 * kMiB).value();
  driver_.fail_call(DriverCall::kRelease, 1, Errc::kDriverFailure);
  memory_.release(handle);
  EXPECT_EQ(memory_.reserved(), 4 * kMiB) << "the driver still holds it for us";
  EXPECT_EQ(memory_.spare_bytes(), 4 * kMiB);
  const PhysicalHandle other = memory_.create(2 * kMiB).value();
  EXPECT_NE(other.id, handle.id);
  memory_.set_limit(6 * kMiB);
  const PhysicalHandle again = memory_.create(4 * kMiB).value();
  EXPECT_EQ(again.id, handle.id) << "a spare of the size costs no driver call";
  EXPECT_EQ(memory_.reserved(), 6 * kMiB);
  memory_.release(again);
  memory_.release(other);
  EXPECT_TRUE(driver_.leaks().none());
}

TEST_F(PhysicalMemoryTest, SparesAreOfferedAgainUntilTaken) {
  const PhysicalHandle handle = memory_.create(4 * kMiB).value();
  driver_.fail_call(DriverCall::kRelease, 1, Errc::kDriverFailure);
  driver_.fail_call(DriverCall::kRelease, 2, Errc::kDriverFailure);
  memory_.release(handle);
  memory_.release_spares();
  EXPECT_EQ(memory_.spare_bytes(), 4 * kMiB);
  memory_.release_spares();
  EXPECT_EQ(memory_.spare_bytes(), Bytes(0));
  EXPECT_EQ(memory_.reserved(), Bytes(0));
  EXPECT_TRUE(driver_.leaks().none());
}

}  // namespace
}  // namespace nofrag
