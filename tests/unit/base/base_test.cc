// Units, results, object pools, ranked locks.
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/object_pool.h"
#include "base/ranked_mutex.h"
#include "base/result.h"
#include "base/units.h"

namespace nofrag {
namespace {

TEST(Bytes, RoundsToAnyUnit) {
  EXPECT_EQ(round_up(Bytes(0), Bytes(512)), Bytes(0));
  EXPECT_EQ(round_up(Bytes(1), Bytes(512)), Bytes(512));
  EXPECT_EQ(round_up(Bytes(512), Bytes(512)), Bytes(512));
  EXPECT_EQ(round_up(Bytes(10), Bytes(7)), Bytes(14));  // not a power of two
  EXPECT_EQ(round_down(Bytes(13), Bytes(7)), Bytes(7));
}

TEST(BytesDeathTest, SubtractionNeverWraps) {
  EXPECT_DEATH({ (void)(Bytes(1) - Bytes(2)).count(); }, "underflow");
  EXPECT_DEATH({ (void)(VirtAddr(std::uint64_t{1}) - VirtAddr(std::uint64_t{2})).count(); },
               "underflow");
}

TEST(Result, CarriesValueOrError) {
  const Result<int> good = 7;
  const Result<int> bad = Error{Errc::kLimit, 42};
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 7);
  EXPECT_EQ(good.code(), Errc::kOk);
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.code(), Errc::kLimit);
  EXPECT_EQ(bad.error().driver_code, 42);
}

TEST(ResultDeathTest, ValueOfAFailureAborts) {
  const Result<int> bad = Errc::kOutOfMemory;
  EXPECT_DEATH({ (void)bad.value(); }, "failed Result");
}

TEST(Result, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(Errc::kCapturing); ++code) {
    names.insert(to_string(static_cast<Errc>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Errc::kCapturing) + 1);
  EXPECT_FALSE(names.contains("unknown error"));
}

TEST(ObjectPool, ItsPagesAreCounted) {
  const std::size_t before = host_page_bytes();
  {
    ObjectPool<std::uint64_t, std::size_t{64} << 10> pool;
    EXPECT_EQ(host_page_bytes(), before);
    for (int i = 0; i < 10000; ++i) {
      ASSERT_NE(pool.make(), nullptr);
    }
    EXPECT_EQ(host_page_bytes(), before + 2 * (std::size_t{64} << 10));
  }
  EXPECT_EQ(host_page_bytes(), before);
}

TEST(HostPages, HugeOnesAreAlignedAndZeroAndGoBack) {
  const std::size_t before = host_page_bytes();
  for (const std::size_t bytes : {kHugePage, 3 * kHugePage, 2 * kHugePage + 64}) {
    auto* const pages = static_cast<unsigned char*>(map_huge_host_pages(bytes));
    ASSERT_NE(pages, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages) % kHugePage, 0U);
    EXPECT_EQ(host_page_bytes(), before + bytes);
    for (std::size_t at = 0; at < bytes; at += 4096) {
      EXPECT_EQ(pages[at], 0);
      pages[at] = 1;
    }
    pages[bytes - 1] = 1;
    unmap_host_pages(pages, bytes);
  }
  EXPECT_EQ(host_page_bytes(), before);
}

TEST(ObjectPool, ItGrowsBeyondItsSmallSlabs) {
  const std::size_t before = host_page_bytes();
  {
    struct alignas(128) Node {
      std::uint64_t number;
    };
    ObjectPool<Node> pool;
    std::vector<Node*> nodes;
    constexpr std::size_t kMany =
        9 * kHugePage / sizeof(Node);  // small slabs end after one huge page
    for (std::uint64_t i = 0; i < kMany; ++i) {
      nodes.push_back(pool.make(Node{i}));
      ASSERT_NE(nodes.back(), nullptr);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(nodes.back()) % alignof(Node), 0U);
    }
    for (std::uint64_t i = 0; i < kMany; ++i) {
      ASSERT_EQ(nodes[i]->number, i);
    }
    EXPECT_GE(host_page_bytes() - before, 9 * kHugePage);
    EXPECT_LE(host_page_bytes() - before, 10 * kHugePage);
  }
  EXPECT_EQ(host_page_bytes(), before);
}

TEST(ObjectPool, ManyObjectsKeepApartAndAreRecycledLastFirst) {
  struct Node {
    explicit Node(std::uint64_t v) : value(v) {}
    std::uint64_t value;
    std::uint64_t filler[9] = {};
  };
  ObjectPool<Node> pool;
  std::vector<Node*> made;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    made.push_back(pool.make(i));
    ASSERT_NE(made.back(), nullptr);
  }
  EXPECT_EQ(pool.live(), 20000U);
  for (std::uint64_t i = 0; i < made.size(); ++i) {
    ASSERT_EQ(made[i]->value, i);
  }
  pool.destroy(made[5]);
  pool.destroy(made[17]);
  EXPECT_EQ(pool.make(1U), made[17]);
  EXPECT_EQ(pool.make(2U), made[5]);
  EXPECT_EQ(pool.live(), 20000U);
}

TEST(RankedMutex, AscendingRanksAreFine) {
  RankedMutex low(LockRank::kDevice);
  RankedMutex high(LockRank::kDriver);
  for (int i = 0; i < 2; ++i) {
    low.lock();
    EXPECT_TRUE(high.try_lock());
    high.unlock();
    low.unlock();
  }
}

#if NOFRAG_CHECK_LEVEL >= 1
TEST(RankedMutexDeathTest, DescendingRanksAbort) {
  RankedMutex low(LockRank::kDevice);
  RankedMutex high(LockRank::kDriver);
  EXPECT_DEATH(
      {
        high.lock();
        low.lock();
      },
      "rank");
}
#endif

}  // namespace
}  // namespace nofrag
