#include "cli/replay/capacity.h"

#include <set>

#include <gtest/gtest.h>

#include "cli/errors.h"

namespace nofrag {
namespace {

TEST(Capacity, ParsesBytesAndMultiples) {
  const Bytes peak(1000 * kMiB);
  const Bytes granule = 2 * kMiB;
  const auto resolved = [&](const char* text) {
    return Capacity::parse(text).resolve(peak, granule);
  };
  EXPECT_EQ(resolved("24469569536B"), Bytes(24469569536));
  EXPECT_EQ(resolved("24469569536"), Bytes(24469569536));
  EXPECT_EQ(resolved("24GiB"), 24 * kGiB);
  EXPECT_EQ(resolved("500MiB"), 500 * kMiB);
  EXPECT_EQ(resolved("1x"), 1000 * kMiB);
  EXPECT_EQ(resolved("1.02x"), 1020 * kMiB);
  EXPECT_EQ(resolved("1.0201x"), 1022 * kMiB) << "rounded up to a granule";
  EXPECT_EQ(resolved("0.5x"), 500 * kMiB);
}

TEST(Capacity, RefusesEverythingElse) {
  for (const char* text : {"",
                           "x",
                           "-1x",
                           "0x",
                           "nanx",
                           "infx",
                           "1.02 x",
                           "1e99x",
                           "24GB!",
                           "-5",
                           "0",
                           "abc",
                           "1.02xx",
                           "24",
                           "1048575",
                           "99999999999GiB"}) {
    EXPECT_THROW(Capacity::parse(text), UsageError) << text;
  }
}

CapacitySearch search_of(Bytes peak, Bytes known) {
  return {peak, 2 * kMiB, known, peak * 64};
}

TEST(MinCapacity, FindsTheThresholdOnTheGrid) {
  // Peak 8 GiB: steps of 0.1 % rounded up to 10 MiB.
  for (const std::uint64_t threshold_mib : {8192U, 8193U, 8300U, 9000U, 20000U}) {
    const Bytes threshold = threshold_mib * kMiB;
    int runs = 0;
    const auto found = find_min_capacity(search_of(8 * kGiB, 24 * kGiB), [&](Bytes capacity) {
      ++runs;
      return capacity >= threshold;
    });
    ASSERT_TRUE(found.has_value());
    EXPECT_GE(*found, threshold);
    EXPECT_LT(*found, threshold + 10 * kMiB);
    EXPECT_LE(runs, 25);
  }
}

TEST(MinCapacity, ClimbsWhenTheKnownCapacityFails) {
  const auto found =
      find_min_capacity(search_of(kGiB, kGiB), [](Bytes capacity) { return capacity >= 5 * kGiB; });
  ASSERT_TRUE(found.has_value());
  EXPECT_GE(*found, 5 * kGiB);
  EXPECT_LE(*found, 5 * kGiB + 2 * kMiB);
}

TEST(MinCapacity, GivesUpAtTheBound) {
  EXPECT_FALSE(find_min_capacity(search_of(kGiB, 2 * kGiB), [](Bytes) { return false; }));
}

TEST(MinCapacity, LooksBelowAnIsolatedFailure) {
  // 1 GiB peak, steps of 2 MiB. Completes from 1100 MiB on, but not at 1200 to 1206 MiB.
  const auto completes = [](Bytes capacity) {
    const bool in_gap = capacity >= 1200 * kMiB && capacity <= 1206 * kMiB;
    return capacity >= 1100 * kMiB && !in_gap;
  };
  for (std::uint64_t known = 1208; known < 1800; known += 2) {
    const auto found = find_min_capacity(search_of(kGiB, known * kMiB), completes);
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(completes(*found));
    EXPECT_EQ(*found, 1100 * kMiB) << "from " << known;
  }
}

}  // namespace
}  // namespace nofrag
