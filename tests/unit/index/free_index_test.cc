// FreeIndex: bins swept exhaustively, searches against a plain multimap.
#include "index/free_index.h"

#include <deque>
#include <map>
#include <random>
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

TEST(FreeIndexBins, AreExactBelowEightUnitsAndAnEighthWideAbove) {
  for (std::uint64_t n = 1; n < 16; ++n) {
    EXPECT_EQ(FreeIndex::bin_of(units(n)), n);
  }
  // First size of each bin up to the largest that fits: the bin's last size is below 9/8 of it.
  for (int exponent = 4; exponent < 37; ++exponent) {
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
  EXPECT_LT(FreeIndex::bin_of(Bytes((std::uint64_t{1} << 47) - 512)), FreeIndex::kBins);
}

class FreeIndexSearch : public testing::Test {
 protected:
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

TEST_F(FreeIndexSearch, GoesOnToLongerRunsWhenTheOwnBinIsTooShort) {
  // 1024 and 1151 units share a bin, 1152 starts the next.
  add(1, units(1024));
  EXPECT_EQ(index_.find(units(1100)), nullptr);
  FreeNode* next = add(5000, units(1152));
  EXPECT_EQ(index_.find(units(1100)), next);
}

// The scan of one bin is bounded: a run behind many that are too short may be missed there, but
// never one in a longer bin.
TEST_F(FreeIndexSearch, CrowdedBinHidesNothingLonger) {
  FreeNode* longer = add(1000000, units(1300));
  for (std::uint64_t i = 0; i < 5000; ++i) {
    add(2000 * i, units(1024));
  }
  EXPECT_EQ(index_.find(units(1100)), longer);
  index_.check();
}

TEST_F(FreeIndexSearch, RequestsBeyondTheLastBinFindNothing) {
  add(1, units(4096));
  EXPECT_EQ(index_.find(Bytes(std::uint64_t{1} << 47)), nullptr);
  EXPECT_EQ(index_.find(Bytes(std::uint64_t{1} << 60)), nullptr);
}

TEST(FreeIndexModel, AgreesWithAMultimap) {
  std::mt19937_64 random(7);
  std::deque<FreeNode> storage(400);
  std::vector<FreeNode*> out;
  for (FreeNode& node : storage) {
    out.push_back(&node);
  }
  std::vector<FreeNode*> in;
  FreeIndex index;
  std::multimap<std::uint64_t, FreeNode*> model;
  std::uint64_t total = 0;
  for (int step = 0; step < 60000; ++step) {
    const bool insert = in.empty() || (!out.empty() && random() % 2 == 0);
    if (insert) {
      FreeNode* node = out.back();
      out.pop_back();
      node->address = VirtAddr((1 + random() % (1U << 30)) * 512);
      node->size = units(1 + random() % (std::uint64_t{1} << (random() % 20)));
      index.insert(node);
      model.emplace(node->size.count(), node);
      total += node->size.count();
      in.push_back(node);
    } else {
      std::swap(in[random() % in.size()], in.back());
      FreeNode* node = in.back();
      in.pop_back();
      index.remove(node);
      auto [from, to] = model.equal_range(node->size.count());
      while (from->second != node) {
        ASSERT_NE(from, to);
        ++from;
      }
      model.erase(from);
      total -= node->size.count();
      out.push_back(node);
    }
    ASSERT_EQ(index.bytes(), Bytes(total));
    ASSERT_EQ(index.count(), model.size());
    const Bytes wanted = units(1 + random() % (std::uint64_t{1} << (random() % 20)));
    const FreeNode* found = index.find(wanted);
    const auto best = model.lower_bound(wanted.count());
    // 400 nodes over 150 bins: no bin is crowded, so the answer is exact.
    ASSERT_EQ(found == nullptr, best == model.end());
    if (found != nullptr) {
      ASSERT_GE(found->size, wanted);
      if (wanted <= FreeIndex::kBestFitMax) {
        ASSERT_EQ(found->size.count(), best->first);
      } else {
        for (auto it = best; it != model.end(); ++it) {
          ASSERT_LE(found->address, it->second->address);
        }
      }
    }
    ASSERT_EQ(index.largest() == nullptr, model.empty());
    if (!model.empty()) {
      ASSERT_EQ(index.largest()->size.count(), std::prev(model.end())->first);
    }
    if (step % 1000 == 0) {
      index.check();
    }
  }
}

}  // namespace
}  // namespace nofrag
