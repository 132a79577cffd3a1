// FreeIndex: bins swept exhaustively, searches and random programs against ordered sets.
#include "index/free_index.h"

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace nofrag {
namespace {

Bytes units(std::uint64_t n) {
  return FreeIndex::kUnit * n;
}

TEST(FreeIndexBins, GrowWithTheSizeAndLeaveNoGap) {
  std::uint32_t previous = FreeIndex::bin_of(units(1));
  EXPECT_EQ(previous, 1U);
  for (std::uint64_t n = 2; n < (1U << 18); ++n) {
    const std::uint32_t bin = FreeIndex::bin_of(units(n));
    ASSERT_TRUE(bin == previous || bin == previous + 1) << n;
    previous = bin;
  }
}

TEST(FreeIndexBins, AreExactBelowSixteenUnitsAndAnEighthWideAbove) {
  for (std::uint64_t n = 1; n < 16; ++n) {
    EXPECT_EQ(FreeIndex::bin_of(units(n)), n);
  }
  // First size of each bin up to the largest that fits: the bin's last size is below 9/8 of it.
  for (int exponent = 4; exponent < 41; ++exponent) {
    for (std::uint64_t sub = 0; sub < 8; ++sub) {
      const std::uint64_t first = (std::uint64_t{8} + sub) << (exponent - 3);
      const std::uint64_t last = ((std::uint64_t{9} + sub) << (exponent - 3)) - 1;
      const std::uint32_t bin = FreeIndex::bin_of(units(first));
      EXPECT_EQ(FreeIndex::bin_of(units(last)), bin);
      EXPECT_EQ(FreeIndex::bin_of(units(first - 1)), bin - 1);
      EXPECT_EQ(FreeIndex::bin_of(units(last + 1)), bin + 1);
    }
  }
}

TEST(FreeIndexBins, HoldEveryDeviceThereIs) {
  EXPECT_EQ(FreeIndex::bin_of(Bytes((std::uint64_t{1} << 51) - 512)), FreeIndex::kBins - 1);
}

class FreeIndexSearch : public testing::Test {
 protected:
  ~FreeIndexSearch() override { index_.check(); }

  FreeNode* add(std::uint64_t address_units, Bytes size) {
    nodes_.push_back({});
    FreeNode* node = &nodes_.back();
    node->address = VirtAddr(0x10000000 + address_units * 512);
    node->size = size;
    index_.insert(node);
    return node;
  }
  std::deque<FreeNode> nodes_;
  FreeIndex index_;
};

TEST_F(FreeIndexSearch, EmptyIndexFindsNothing) {
  EXPECT_EQ(index_.find(units(1)), nullptr);
  EXPECT_EQ(index_.find(20 * kMiB), nullptr);
  EXPECT_EQ(index_.largest(), nullptr);
  index_.for_largest(5, [](const FreeNode*) { ADD_FAILURE(); });
}

TEST_F(FreeIndexSearch, FindsTheBestFitAndTheLowestAddressAmongEquals) {
  add(500, units(40));
  FreeNode* high = add(900, units(33));
  FreeNode* low = add(100, units(33));
  EXPECT_EQ(index_.find(units(33)), low);
  index_.remove(low);
  EXPECT_EQ(index_.find(units(33)), high);
  EXPECT_EQ(index_.find(units(41)), nullptr);
}

TEST_F(FreeIndexSearch, LargeRequestsTakeTheLowestAddress) {
  FreeNode* large = add(100, 64 * kMiB);
  add(900000, 20 * kMiB);
  EXPECT_EQ(index_.find(20 * kMiB), large);
  EXPECT_EQ(index_.find(16 * kMiB + Bytes(512)), large);
}

TEST_F(FreeIndexSearch, SmallRequestsSpareTheLongestRuns) {
  add(100, 64 * kMiB);
  FreeNode* shorter = add(900000, 20 * kMiB);
  EXPECT_EQ(index_.find(16 * kMiB), shorter);
}

TEST_F(FreeIndexSearch, WithinABinTheAddressDecides) {
  // 1024 to 1151 units share a bin.
  add(9000, units(1030));
  FreeNode* low = add(1000, units(1050));
  add(1, units(1024));
  EXPECT_EQ(index_.find(units(1029)), low);
}

TEST_F(FreeIndexSearch, GoesOnToLongerRunsWhenTheOwnBinIsTooShort) {
  // 1024 and 1151 units share a bin, 1152 starts the next.
  add(1, units(1024));
  EXPECT_EQ(index_.find(units(1100)), nullptr);
  FreeNode* next = add(5000, units(1152));
  EXPECT_EQ(index_.find(units(1100)), next);
}

// The one run that fits stands behind thousands of its bin that do not, small and large.
TEST_F(FreeIndexSearch, CrowdedBinHidesNothing) {
  for (std::uint64_t i = 0; i < 5000; ++i) {
    add(200000 * i, i % 2 == 0 ? units(1024) : 32 * kMiB);
  }
  FreeNode* small = add(200000 * 5001, units(1025));
  EXPECT_EQ(index_.find(units(1025)), small);
  EXPECT_EQ(index_.find(32 * kMiB + Bytes(512)), nullptr);
  FreeNode* large = add(200000 * 5002, 32 * kMiB + Bytes(512));
  EXPECT_EQ(index_.find(32 * kMiB + Bytes(512)), large);
  EXPECT_EQ(index_.largest(), large);
}

TEST_F(FreeIndexSearch, RequestsBeyondEveryDeviceFindNothing) {
  add(1, units(4096));
  EXPECT_EQ(index_.find(Bytes(std::uint64_t{1} << 47)), nullptr);
  EXPECT_EQ(index_.find(Bytes(std::uint64_t{1} << 60)), nullptr);
  EXPECT_EQ(index_.find(Bytes(UINT64_MAX)), nullptr);
}

TEST_F(FreeIndexSearch, VisitsBinsFromTheLongestDown) {
  for (std::uint64_t i = 0; i < 3000; ++i) {
    add(5000 * i, units(1 + i));
  }
  std::vector<FreeNode*> seen;
  index_.for_largest(1000, [&](FreeNode* node) { seen.push_back(node); });
  ASSERT_EQ(seen.size(), 1000U);
  EXPECT_EQ(std::set<FreeNode*>(seen.begin(), seen.end()).size(), 1000U);
  for (std::size_t i = 1; i < seen.size(); ++i) {
    ASSERT_LE(FreeIndex::bin_of(seen[i]->size), FreeIndex::bin_of(seen[i - 1]->size));
  }
  EXPECT_GE(FreeIndex::bin_of(seen.back()->size), FreeIndex::bin_of(units(2001)));
}

// Runs that grow, shrink and move between their neighbours, in an index with a random crowd of others; with each
// change made in place, and by taking it out and putting it in.
TEST(FreeIndexChange, IsARemovalAndAnInsertion) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const std::uint64_t places = 1 + random() % (seed % 2 == 0 ? 40 : 3000);
    // Each run has a stretch of its own, which it fills as it likes.
    const std::uint64_t stretch = seed % 3 == 0 ? 400 : 200'000;
    std::vector<FreeNode> changed(places);
    std::vector<FreeNode> replaced(places);
    std::vector<bool> there(places, false);
    FreeIndex one;
    FreeIndex other;
    for (int step = 0; step < 6000; ++step) {
      const std::size_t at = random() % places;
      const std::uint64_t from = random() % stretch;
      const std::uint64_t size =
          1 + (random() % 4 == 0 ? random() % 8 : random()) % (stretch - from);
      const FreeNode to{VirtAddr(0x10000000 + (at * stretch + from) * 512), units(size)};
      if (there[at]) {
        other.remove(&replaced[at]);
      }
      const bool leaves = there[at] && random() % 5 == 0;
      if (leaves) {
        one.remove(&changed[at]);
      } else if (there[at]) {
        one.change(&changed[at], to.address, to.size);
      } else {
        changed[at] = to;
        one.insert(&changed[at]);
      }
      there[at] = !leaves;
      if (there[at]) {
        replaced[at] = to;
        other.insert(&replaced[at]);
        ASSERT_EQ(changed[at].address, to.address);
        ASSERT_EQ(changed[at].size, to.size);
      }
      const Bytes wanted = units(1 + random() % stretch);
      const FreeNode* found = one.find(wanted);
      const FreeNode* expected = other.find(wanted);
      ASSERT_EQ(found == nullptr, expected == nullptr) << "seed " << seed << " step " << step;
      ASSERT_TRUE(found == nullptr || found->address == expected->address)
          << "seed " << seed << " step " << step;
      if (step % 64 == 0) {
        one.check();
      }
    }
    one.check();
    ASSERT_EQ(one.bytes(), other.bytes());
    ASSERT_EQ(one.count(), other.count());
  }
}

TEST(FreeIndexDeathTest, RemoveOfARunThatMovedAborts) {
  FreeIndex index;
  FreeNode node{VirtAddr(std::uint64_t{1} << 20), units(10)};
  FreeNode other{VirtAddr(std::uint64_t{1} << 21), units(10)};
  index.insert(&node);
  index.insert(&other);
  node.size = units(1000);
  EXPECT_DEATH(index.remove(&node), "not in the index where its address and size say");
  node.size = units(10);
  node.address = node.address + units(1);
  EXPECT_DEATH(index.remove(&node), "not in the index where its address and size say");
}

TEST(FreeIndexDeathTest, CheckNoticesASecondInsert) {
  FreeIndex index;
  FreeNode node{VirtAddr(std::uint64_t{1} << 20), units(10)};
  index.insert(&node);
  index.insert(&node);
  EXPECT_DEATH(index.check(), "in the index twice");
}

// A random program of inserts and removes beside sets whose answers are plain to see.
class FreeIndexModel : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  struct ByBin {
    bool operator()(const FreeNode* a, const FreeNode* b) const {
      const std::uint32_t bin_a = FreeIndex::bin_of(a->size);
      const std::uint32_t bin_b = FreeIndex::bin_of(b->size);
      return bin_a != bin_b ? bin_a < bin_b : a->address < b->address;
    }
  };
  struct ByAddress {
    bool operator()(const FreeNode* a, const FreeNode* b) const { return a->address < b->address; }
  };

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  Bytes random_size() {
    switch (std::get<0>(GetParam())) {
      case 0:  // every size
        return units(1 + below(std::uint64_t{1} << below(24)));
      case 1:  // few sizes: crowded bins, in which some fit and some do not
        return units(1024 + below(3)) * (below(8) == 0 ? 64 : 1);
      default:  // around the bound between the two kinds of request
        return FreeIndex::kBestFitMax + units(below(40000)) - units(20000);
    }
  }
  FreeNode* model_find(Bytes size) const {
    const auto fits = [size](const FreeNode* node) { return node->size >= size; };
    if (size > FreeIndex::kBestFitMax) {
      const auto it = std::find_if(by_address_.begin(), by_address_.end(), fits);
      return it == by_address_.end() ? nullptr : *it;
    }
    FreeNode probe{VirtAddr(), size};
    const auto it = std::find_if(by_bin_.lower_bound(&probe), by_bin_.end(), fits);
    return it == by_bin_.end() ? nullptr : *it;
  }
  void insert_one() {
    storage_.push_back({VirtAddr(below(std::uint64_t{1} << 40) * 512), random_size()});
    FreeNode* node = &storage_.back();
    if (!by_address_.insert(node).second) {
      return;
    }
    index_.insert(node);
    by_bin_.insert(node);
    longest_.insert(node->size);
    total_ += node->size;
  }
  void remove_one() {
    // First, last, any, or what the index finds: the orders in which heaps empty it.
    const std::uint64_t how = below(4);
    FreeNode* node = *by_bin_.begin();
    if (how == 1) {
      node = *std::prev(by_bin_.end());
    } else if (how == 2) {
      FreeNode probe{VirtAddr(below(std::uint64_t{1} << 40) * 512), Bytes()};
      const auto it = by_address_.lower_bound(&probe);
      node = it == by_address_.end() ? *by_address_.begin() : *it;
    } else if (FreeNode* found = how == 3 ? index_.find(random_size()) : nullptr) {
      node = found;
    }
    index_.remove(node);
    by_bin_.erase(node);
    by_address_.erase(node);
    longest_.erase(longest_.find(node->size));
    total_ -= node->size;
  }
  void compare() {
    ASSERT_EQ(index_.bytes(), total_);
    ASSERT_EQ(index_.count(), by_bin_.size());
    const Bytes wanted = random_size();
    ASSERT_EQ(index_.find(wanted), model_find(wanted)) << wanted.count();
    const FreeNode* largest = index_.largest();
    ASSERT_EQ(largest == nullptr, longest_.empty());
    if (largest != nullptr) {
      ASSERT_EQ(largest->size, *longest_.rbegin());
    }
    auto expected = by_bin_.rbegin();
    std::size_t visited = 0;
    index_.for_largest(3, [&](const FreeNode* node) {
      EXPECT_EQ(FreeIndex::bin_of(node->size), FreeIndex::bin_of((*expected++)->size));
      ++visited;
    });
    ASSERT_EQ(visited, std::min<std::size_t>(3, by_bin_.size()));
  }

  std::mt19937_64 random_{static_cast<std::uint64_t>(std::get<1>(GetParam()))};
  std::deque<FreeNode> storage_;
  FreeIndex index_;
  std::set<FreeNode*, ByBin> by_bin_;
  std::set<FreeNode*, ByAddress> by_address_;
  std::multiset<Bytes> longest_;
  Bytes total_;
};

// The number of runs swings between none and thousands, so that the tree grows and shrinks by levels.
TEST_P(FreeIndexModel, AgreesWithSets) {
  for (int step = 0; step < 40000; ++step) {
    const bool growing = step / 5000 % 2 == 0;
    if (by_bin_.empty() || (below(8) != 0) == growing) {
      insert_one();
    } else {
      remove_one();
    }
    compare();
    if (step % 500 == 0) {
      index_.check();
    }
    ASSERT_FALSE(HasFailure()) << "seed " << std::get<1>(GetParam()) << ", step " << step;
  }
  while (!by_bin_.empty()) {
    remove_one();
  }
  compare();
  index_.check();
}

INSTANTIATE_TEST_SUITE_P(SizesAndSeeds,
                         FreeIndexModel,
                         testing::Combine(testing::Values(0, 1, 2), testing::Range(1, 6)));

}  // namespace
}  // namespace nofrag
