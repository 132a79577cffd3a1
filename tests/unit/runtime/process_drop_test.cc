// Process::drop_device: what becomes of the addresses. One process for all tests, on a simulated driver, which gives
// addresses out round and round.
#include <gtest/gtest.h>

#include "runtime/process.h"

namespace nofrag {
namespace {

// Enough for the driver to come round several times, whatever an allocator reserves.
constexpr int kGenerations = 300;

DeviceAllocator& device() {
  return *Process::instance().device(0).value();
}

VirtAddr allocate() {
  return device().allocate(3 * kMiB, StreamId(0)).value();
}

std::uint64_t mappings() {
  const DriverLedger ledger = Process::instance().stats_report().ledger;
  return ledger.count(DriverCall::kMap) - ledger.count(DriverCall::kUnmap);
}

// Does an allocator of one of the next generations own `address`?
bool comes_again(VirtAddr address) {
  bool owned = false;
  for (int i = 0; i < kGenerations; ++i) {
    allocate();
    owned = owned || device().owns(address);
    Process::instance().drop_device(0);
  }
  return owned;
}

TEST(ProcessDrop, AddressesThatAreGivenBackComeAgain) {
  const VirtAddr block = allocate();
  Process::instance().drop_device(0);
  EXPECT_EQ(Process::instance().used_device(0), nullptr);
  EXPECT_EQ(mappings(), 0U);
  EXPECT_TRUE(comes_again(block));
}

TEST(ProcessDrop, KeptAddressesAreNobodysForGood) {
  const int before = Process::instance().kept_ranges();
  const VirtAddr first = allocate();
  Process::instance().drop_device(0, Process::Addresses::kKept);
  EXPECT_EQ(Process::instance().owner(first), nullptr);
  EXPECT_EQ(mappings(), 0U);
  EXPECT_EQ(Process::instance().kept_ranges(), before + 1);
  EXPECT_FALSE(comes_again(first));
  const VirtAddr second = allocate();
  Process::instance().drop_device(0, Process::Addresses::kKept);
  EXPECT_EQ(Process::instance().kept_ranges(), before + 2);
  EXPECT_FALSE(comes_again(first));
  EXPECT_FALSE(comes_again(second));
}

TEST(ProcessDrop, ADeviceThatWasNotUsedKeepsNothing) {
  const int before = Process::instance().kept_ranges();
  Process::instance().drop_device(0, Process::Addresses::kKept);
  EXPECT_EQ(Process::instance().kept_ranges(), before);
}

}  // namespace
}  // namespace nofrag
