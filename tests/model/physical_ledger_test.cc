// The ledger that judges the promise, against layouts laid out by hand: aliases, holes, ends.
#include "physical_ledger.h"

#include <gtest/gtest.h>

namespace nofrag::model {
namespace {

constexpr DeviceOrdinal kCard(0);

class LedgerTest : public testing::Test {
 protected:
  static SimulatedDeviceSpec spec() {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = 64 * kMiB;
    return spec;
  }
  HandleId make(Bytes size) { return ledger_.create(kCard, size).value(); }
  // The handles in a row at addresses of their own.
  VirtAddr view(const std::vector<std::pair<HandleId, Bytes>>& handles) {
    Bytes total;
    for (const auto& [id, size] : handles) {
      total += size;
    }
    const VirtAddr begin = ledger_.reserve(total, Bytes(0)).value();
    VirtAddr at = begin;
    for (const auto& [id, size] : handles) {
      EXPECT_TRUE(ledger_.map(at, size, id).ok());
      at = at + size;
    }
    return begin;
  }
  static Extent block(VirtAddr view, Bytes offset, Bytes size) {
    return {(view + offset).value(), (view + offset + size).value()};
  }

  SimulatedDriver sim_{spec()};
  PhysicalLedger ledger_{sim_};
};

TEST_F(LedgerTest, EndsHolesAndIdleHandles) {
  const HandleId a = make(8 * kMiB);
  const HandleId b = make(8 * kMiB);
  const HandleId idle = make(4 * kMiB);
  const VirtAddr at = view({{a, 8 * kMiB}, {b, 8 * kMiB}, {idle, 4 * kMiB}});
  // a: 1 free, 2 used, 1 free, 1 used, 3 free; b: 5 free, 3 used.
  const Layout found = ledger_.layout(
      {block(at, kMiB, 2 * kMiB), block(at, 4 * kMiB, kMiB), block(at, 13 * kMiB, 3 * kMiB)}, {});
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.handles, 20 * kMiB);
  EXPECT_EQ(found.idle, 4 * kMiB);
  EXPECT_EQ(found.in_use, 16 * kMiB);
  EXPECT_EQ(found.beside, 10 * kMiB);
  EXPECT_EQ(found.stranded, kMiB);
  EXPECT_EQ(found.composable_whole, 4 * kMiB);
  EXPECT_EQ(found.composable_ends, 8 * kMiB) << "the suffix of a, then the prefix of b";
}

TEST_F(LedgerTest, BothEndsOfOneHandleAreNoPair) {
  const HandleId a = make(8 * kMiB);
  const VirtAddr at = view({{a, 8 * kMiB}});
  const Layout found = ledger_.layout({block(at, 3 * kMiB, kMiB)}, {});
  EXPECT_EQ(found.composable_ends, 4 * kMiB);
  EXPECT_EQ(found.stranded, Bytes(0));
}

TEST_F(LedgerTest, BytesTakenThroughAnAliasAreTaken) {
  const HandleId a = make(4 * kMiB);
  const HandleId b = make(4 * kMiB);
  const VirtAddr first = view({{a, 4 * kMiB}});
  const VirtAddr second = view({{b, 4 * kMiB}, {a, 4 * kMiB}});
  EXPECT_EQ(ledger_.most_mappings(), 2U);
  const Layout found =
      ledger_.layout({block(first, Bytes(0), kMiB), block(second, 6 * kMiB, kMiB)}, {});
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.stranded, kMiB) << "between the two, each seen through another mapping";
  EXPECT_EQ(found.beside, 2 * kMiB);
  EXPECT_EQ(found.composable_whole, 4 * kMiB);
  EXPECT_NE(
      ledger_.layout({block(first, Bytes(0), kMiB), block(second, 4 * kMiB, kMiB)}, {}).problem, "")
      << "the same bytes twice";
}

TEST_F(LedgerTest, ABlockWithNothingBehindItIsNoticed) {
  const HandleId a = make(4 * kMiB);
  const VirtAddr at = view({{a, 4 * kMiB}});
  EXPECT_NE(ledger_.layout({block(at, 3 * kMiB, 2 * kMiB)}, {}).problem, "");
  ASSERT_TRUE(ledger_.unmap(at, 4 * kMiB).ok());
  EXPECT_NE(ledger_.layout({block(at, Bytes(0), kMiB)}, {}).problem, "");
}

TEST_F(LedgerTest, AReleasedHandleLivesWhileItIsMapped) {
  const HandleId a = make(4 * kMiB);
  const VirtAddr at = view({{a, 4 * kMiB}});
  ASSERT_TRUE(ledger_.release(a).ok());
  EXPECT_EQ(ledger_.layout({}, {}).handles, 4 * kMiB);
  ASSERT_TRUE(ledger_.unmap(at, 4 * kMiB).ok());
  EXPECT_EQ(ledger_.layout({}, {}).handles, Bytes(0));
}

TEST_F(LedgerTest, ExemptHandlesAreNotCounted) {
  const HandleId a = make(4 * kMiB);
  const HandleId b = make(4 * kMiB);
  const VirtAddr at = view({{a, 4 * kMiB}, {b, 4 * kMiB}});
  const Layout found = ledger_.layout({block(at, kMiB, kMiB)}, {a.raw, b.raw});
  EXPECT_EQ(found.composable_whole, Bytes(0));
  EXPECT_EQ(found.composable_ends, Bytes(0));
  EXPECT_EQ(found.idle, 4 * kMiB);
}

}  // namespace
}  // namespace nofrag::model
