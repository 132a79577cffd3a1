// The simulated driver under several threads (run under ThreadSanitizer, too).
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};
constexpr Bytes kUnit = 2 * kMiB;
constexpr int kThreads = 8;
constexpr int kRounds = 500;

// Each thread lives on its own stream and address range and shares one physical memory, one clock
// and one ledger with the others.
void live(SimulatedDriver& driver, int number) {
  const StreamId stream(static_cast<std::uint64_t>(number) + 1);
  const VirtAddr range = driver.reserve(kUnit * 8, Bytes(0)).value();
  const EventId event = driver.event_create(kDevice).value();
  for (int round = 0; round < kRounds; ++round) {
    const Bytes size = kUnit * static_cast<std::uint64_t>(round % 4 + 1);
    const Result<HandleId> handle = driver.create(kDevice, size);
    if (!handle) {
      ASSERT_EQ(handle.code(), Errc::kOutOfMemory);
      continue;
    }
    const auto tag = static_cast<std::uint64_t>(number * kRounds + round + 1);
    ASSERT_TRUE(driver.map(range, size, handle.value()));
    ASSERT_TRUE(driver.set_access(range, size, kDevice));
    ASSERT_TRUE(driver.write(stream, range, size, tag));
    ASSERT_TRUE(driver.check_contents(range, size, tag));
    ASSERT_TRUE(driver.event_record(kDevice, event, stream));
    driver.advance_us(1);
    ASSERT_TRUE(driver.event_synchronize(kDevice, event));
    ASSERT_TRUE(driver.unmap(range, size));
    ASSERT_TRUE(driver.release(handle.value()));
  }
  ASSERT_TRUE(driver.event_destroy(kDevice, event));
  ASSERT_TRUE(driver.free_range(range, kUnit * 8));
}

TEST(SimulatedThreads, ManyThreadsLeaveNothingBehind) {
  SimulatedDriver driver(SimulatedDeviceSpec{});
  driver.set_physical_memory(kDevice, kUnit * 16);  // so that some creates fail
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&driver, i] { live(driver, i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(driver.violation_count(), 0U);
  EXPECT_TRUE(driver.leaks().none());
  EXPECT_TRUE(driver.physical_in_use(kDevice).is_zero());
  const DriverLedger ledger = driver.ledger();
  EXPECT_EQ(ledger.count(DriverCall::kCreate), std::uint64_t{kThreads} * kRounds);
  EXPECT_EQ(ledger.count(DriverCall::kMap), ledger.count(DriverCall::kRelease));
  driver.check();
}

}  // namespace
}  // namespace nofrag
