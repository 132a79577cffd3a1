// KeptBlocks and Depot against the simplest model: a set of the blocks that were put and not yet taken.
#include "heap/kept_blocks.h"

#include <array>
#include <deque>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace nofrag {
namespace {

constexpr StreamId kStream{0x100};
constexpr Bytes kPlenty = kGiB;

std::vector<Block*> listed(Block* chain) {
  std::vector<Block*> all;
  for (; chain != nullptr; chain = chain->next_kept) {
    all.push_back(chain);
  }
  return all;
}

Bytes sum(const std::vector<Block*>& blocks) {
  Bytes total;
  for (const Block* block : blocks) {
    total += block->size;
  }
  return total;
}

class KeptBlocksTest : public testing::Test {
 protected:
  Block* make(Bytes size, std::uint64_t epoch = 0) {
    Block& block = blocks_.emplace_back();
    block.address = VirtAddr(blocks_.size() * kGiB.count());
    block.size = size;
    block.clock = &clock_;
    block.epoch = epoch;
    return &block;
  }

  StreamClock clock_;
  Depot depot_;
  KeptBlocks kept_{kStream, clock_, depot_};
  std::deque<Block> blocks_;
};

TEST(SizeClasses, EverySizeOfABinHasAClassAtMostAnEighthAbove) {
  std::uint32_t before = 0;
  for (std::uint64_t units = 1; units * 512 <= KeptBlocks::kLargestBinned.count(); ++units) {
    const Bytes size(units * 512);
    const std::uint32_t mine = KeptBlocks::class_of(size);
    ASSERT_LT(mine, Depot::kClasses);
    ASSERT_TRUE(mine == before || mine == before + 1) << size.count() << ": classes without a gap";
    before = mine;
    const Bytes largest = KeptBlocks::class_size(size);
    ASSERT_GE(largest, size);
    ASSERT_EQ(largest % Bytes(512), Bytes(0));
    ASSERT_LE((largest - size) * 8, size);
    ASSERT_LE(largest, KeptBlocks::kLargestBinned);
    ASSERT_EQ(KeptBlocks::class_of(largest), mine);
    ASSERT_EQ(KeptBlocks::class_size(largest), largest);
    if (largest < KeptBlocks::kLargestBinned) {
      ASSERT_EQ(KeptBlocks::class_of(largest + Bytes(512)), mine + 1);
    }
    ASSERT_GE(KeptBlocks::batch(mine), 2U);
    ASSERT_LE(KeptBlocks::batch(mine), 64U);
  }
  EXPECT_EQ(KeptBlocks::class_of(KeptBlocks::kLargestBinned), Depot::kClasses - 1);
}

TEST_F(KeptBlocksTest, TheBlockPutLastComesFirst) {
  Block* first = make(4 * kKiB);
  Block* second = make(4 * kKiB);
  ASSERT_TRUE(kept_.put(first, kPlenty));
  ASSERT_TRUE(kept_.put(second, kPlenty));
  EXPECT_EQ(kept_.bytes(), 8 * kKiB);
  EXPECT_EQ(kept_.take(4 * kKiB, Fit::kExact, 0), second);
  EXPECT_EQ(kept_.take(4 * kKiB, Fit::kEighth, 0), first);
  EXPECT_EQ(kept_.take(4 * kKiB, Fit::kEighth, 0), nullptr);
  EXPECT_EQ(kept_.bytes(), Bytes(0));
}

// All pairs of a kept size and a request around every border of a class.
TEST_F(KeptBlocksTest, NeverASmallerBlockNorOneLargerThanMayBe) {
  std::set<std::uint64_t> sizes;
  for (std::uint64_t units = 1; units <= 2048; ++units) {
    const Bytes size(units * 512);
    const Bytes largest = KeptBlocks::class_size(size);
    if (units <= 40 || size == largest || size + Bytes(512) == largest ||
        KeptBlocks::class_of(size) != KeptBlocks::class_of(size - Bytes(512))) {
      sizes.insert(size.count());
    }
  }
  for (const std::uint64_t have : sizes) {
    Block* block = make(Bytes(have));
    for (const std::uint64_t want : sizes) {
      const std::uint32_t above =
          KeptBlocks::class_of(Bytes(have)) - KeptBlocks::class_of(Bytes(want));
      for (const Fit fit : {Fit::kExact, Fit::kEighth, Fit::kDouble}) {
        ASSERT_TRUE(kept_.put(block, kPlenty));
        Block* taken = kept_.take(Bytes(want), fit, 0);
        const bool fits =
            have >= want && (fit == Fit::kExact    ? have == want
                             : fit == Fit::kEighth ? have <= want + want / 8 && above <= 1
                                                   : above <= 7);
        ASSERT_TRUE(!fits || fit != Fit::kDouble || want < 4096 || have <= 2 * want);
        ASSERT_EQ(taken, fits ? block : nullptr) << have << " kept, " << want << " wanted";
        ASSERT_EQ(listed(kept_.take_all()).size(), fits ? 0U : 1U);
      }
    }
  }
}

// Two threads, of which one only takes and the other only puts: a block says whether whoever took it has gone on
// to another magazine, which is when the other fetches ahead.
TEST_F(KeptBlocksTest, ABlockKnowsTheMagazineThatItWasTakenFrom) {
  const Bytes size = 4 * kKiB;
  const std::uint32_t size_class = KeptBlocks::class_of(size);
  const std::uint32_t batch = KeptBlocks::batch(size_class);
  depot_.add_thread(2);
  KeptBlocks taker(kStream, clock_, depot_);
  for (std::uint32_t i = 0; i < 4 * batch; ++i) {
    ASSERT_TRUE(kept_.put(make(size), kPlenty));
  }
  for (std::uint32_t magazine = 1; magazine <= 2; ++magazine) {
    for (std::uint32_t i = 0; i < batch; ++i) {
      const Block* block = taker.take(size, Fit::kExact, 0);
      ASSERT_NE(block, nullptr);
      EXPECT_EQ(block->drawn, magazine);
      EXPECT_EQ(depot_.drawn(size_class), magazine);
    }
  }
  // A thread's own blocks are of the magazine that it has at hand.
  Block* own = make(size);
  ASSERT_TRUE(taker.put(own, kPlenty));
  EXPECT_EQ(taker.take(size, Fit::kExact, 0), own);
  EXPECT_EQ(own->drawn, 2);
  EXPECT_EQ(depot_.drawn(KeptBlocks::class_of(8 * kKiB)), 0);
}

TEST_F(KeptBlocksTest, LargeBlocksServeTheirVerySizeAndEpoch) {
  Block* block = make(3 * kMiB, 7);
  ASSERT_TRUE(kept_.put_large(block, kPlenty));
  EXPECT_EQ(kept_.take(3 * kMiB, Fit::kEighth, 8), nullptr);
  EXPECT_EQ(kept_.take(3 * kMiB - Bytes(512), Fit::kEighth, 7), nullptr);
  EXPECT_EQ(kept_.take(3 * kMiB + Bytes(512), Fit::kEighth, 7), nullptr);
  EXPECT_EQ(kept_.bytes(), 3 * kMiB);
  EXPECT_EQ(kept_.take(3 * kMiB, Fit::kExact, 7), block);
  EXPECT_EQ(kept_.take(3 * kMiB, Fit::kExact, 7), nullptr);
  EXPECT_EQ(kept_.bytes(), Bytes(0));
}

TEST_F(KeptBlocksTest, LargeBlocksAreFewAndBounded) {
  EXPECT_FALSE(kept_.put_large(make(9 * kMiB), 8 * kMiB));
  EXPECT_TRUE(kept_.put_large(make(8 * kMiB), 8 * kMiB));
  EXPECT_FALSE(kept_.put_large(make(2 * kMiB), 8 * kMiB));
  EXPECT_EQ(kept_.bytes(), 8 * kMiB);
  EXPECT_EQ(listed(kept_.take_all()).size(), 1U);
  for (std::uint32_t i = 0; i < KeptBlocks::kLargeEntries; ++i) {
    EXPECT_TRUE(kept_.put_large(make(2 * kMiB), kPlenty));
  }
  EXPECT_FALSE(kept_.put_large(make(2 * kMiB), kPlenty));
  EXPECT_EQ(listed(kept_.take_all()).size(), KeptBlocks::kLargeEntries);
}

TEST_F(KeptBlocksTest, NoMoreThanMostIsKeptHereAndInTheDepot) {
  depot_.add_thread(2);
  std::mt19937_64 random(1);
  const Bytes most = 96 * kKiB;
  Bytes accepted;
  for (int i = 0; i < 3000; ++i) {
    Block* block = make(Bytes(512 * (1 + random() % 40)));
    accepted += kept_.put(block, most) ? block->size : Bytes(0);
    ASSERT_LE(kept_.bytes(), most);
    ASSERT_LE(depot_.bytes(), most);
    ASSERT_EQ(kept_.bytes() + depot_.bytes(), accepted);
  }
  EXPECT_FALSE(kept_.put(make(97 * kKiB), most));
  EXPECT_EQ(sum(listed(kept_.take_all())) + sum(listed(depot_.take_all())), accepted);
}

// While nobody else knows the stream nothing goes to the depot, and what it might hold is kept here.
TEST_F(KeptBlocksTest, AloneAThreadKeepsAllToItself) {
  depot_.add_thread(1);
  const Bytes size = 8 * kKiB;
  const Bytes most = kMiB;
  std::vector<Block*> put;
  while (kept_.put(make(size), most)) {
    put.push_back(&blocks_.back());
  }
  EXPECT_EQ(kept_.bytes(), 2 * most);
  EXPECT_EQ(depot_.bytes(), Bytes(0));
  // Now there are two: the stack goes to the depot, whole.
  EXPECT_EQ(kept_.take(size, Fit::kExact, 0), put.back());
  depot_.add_thread(1);
  EXPECT_FALSE(kept_.put(put.back(), most)) << "too much for the depot";
  const std::vector<Block*> older = listed(kept_.take_down_to(most));
  EXPECT_EQ(older.size(), put.size() / 2);
  EXPECT_EQ(older.back(), put.front()) << "what was kept first goes";
  EXPECT_TRUE(kept_.put(put.back(), most));
  EXPECT_EQ(kept_.bytes(), most);
  EXPECT_TRUE(kept_.put(make(size), most));
  EXPECT_EQ(kept_.bytes(), 2 * size);
  EXPECT_EQ(depot_.bytes(), most - size);
}

TEST_F(KeptBlocksTest, WhatHasMostGoesFirst) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(kept_.put(make(4 * kKiB), kPlenty));
  }
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(kept_.put(make(512 * kKiB), kPlenty));
  }
  const Bytes before = kept_.bytes();
  const std::vector<Block*> gone = listed(kept_.take_down_to(kMiB));
  EXPECT_EQ(sum(gone) + kept_.bytes(), before);
  EXPECT_LE(kept_.bytes(), kMiB);
  for (const Block* block : gone) {
    EXPECT_EQ(block->size, 512 * kKiB);
  }
  EXPECT_EQ(listed(kept_.take_down_to(Bytes(0))).size() + gone.size(), 108U);
  EXPECT_EQ(kept_.bytes(), Bytes(0));
  EXPECT_EQ(kept_.take(4 * kKiB, Fit::kDouble, 0), nullptr);
}

TEST_F(KeptBlocksTest, TheNearestClassAboveServesWithWhatTheDepotHas) {
  KeptBlocks other(kStream, clock_, depot_);
  depot_.add_thread(2);
  for (const std::uint64_t kib : {64U, 96U, 100U, 200U}) {
    for (std::uint32_t i = 0; i < 3 * KeptBlocks::batch(KeptBlocks::class_of(Bytes(kib * 1024)));
         ++i) {
      ASSERT_TRUE(other.put(make(Bytes(kib * 1024)), kPlenty));
    }
  }
  ASSERT_TRUE(kept_.put(make(112 * kKiB), kPlenty));
  EXPECT_EQ(kept_.take(62 * kKiB, Fit::kDouble, 0)->size, 64 * kKiB)
      << "its own class's, of the depot";
  EXPECT_EQ(kept_.take(72 * kKiB, Fit::kDouble, 0)->size, 112 * kKiB) << "what is at hand";
  EXPECT_EQ(kept_.take(72 * kKiB, Fit::kDouble, 0)->size, 96 * kKiB) << "the nearest in the depot";
  EXPECT_EQ(kept_.take(72 * kKiB, Fit::kEighth, 0), nullptr);
  EXPECT_EQ(kept_.take(112 * kKiB, Fit::kDouble, 0)->size, 200 * kKiB);
  EXPECT_EQ(kept_.take(101 * kKiB, Fit::kExact, 0), nullptr);
}

TEST_F(KeptBlocksTest, FullMagazinesGoToTheDepotAndComeBackToAnother) {
  depot_.add_thread(2);
  const Bytes size = 8 * kKiB;
  const std::uint32_t batch = KeptBlocks::batch(KeptBlocks::class_of(size));
  std::set<Block*> put;
  for (std::uint32_t i = 0; i < 4 * batch; ++i) {
    put.insert(make(size));
    ASSERT_TRUE(kept_.put(&blocks_.back(), kPlenty));
  }
  EXPECT_EQ(depot_.bytes(), size * (2 * batch)) << "two magazines stay";
  KeptBlocks other(kStream, clock_, depot_);
  std::set<Block*> taken;
  while (Block* block = other.take(size, Fit::kExact, 0)) {
    EXPECT_TRUE(taken.insert(block).second);
    EXPECT_EQ(other.bytes() + depot_.bytes(), size * (2 * batch - taken.size()));
  }
  EXPECT_EQ(taken.size(), 2 * batch);
  while (Block* block = kept_.take(size, Fit::kExact, 0)) {
    EXPECT_TRUE(taken.insert(block).second);
  }
  EXPECT_EQ(taken, put);
}

TEST_F(KeptBlocksTest, AMagazineOfOtherSizesStaysForThem) {
  // One class, two sizes: what does not fit in the first looked at is not lost.
  const Bytes large = 20 * kKiB;
  const Bytes small = large - Bytes(512);
  ASSERT_EQ(KeptBlocks::class_of(large), KeptBlocks::class_of(small));
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(kept_.put(make(small), kPlenty));
  }
  EXPECT_EQ(kept_.take(large, Fit::kEighth, 0), nullptr);
  EXPECT_EQ(kept_.take(large, Fit::kExact, 0), nullptr);
  EXPECT_EQ(listed(kept_.take_all()).size(), 12U);
}

TEST_F(KeptBlocksTest, TheDepotGoesDownToWhatIsAsked) {
  depot_.add_thread(2);
  const Bytes most = 4 * kMiB;
  for (int i = 0; i < 2000; ++i) {
    kept_.put(make(Bytes(512 * (1 + static_cast<std::uint64_t>(i) % 64))), most);
  }
  const Bytes before = depot_.bytes();
  ASSERT_GT(before, kMiB);
  const std::vector<Block*> gone = listed(depot_.take_down_to(kMiB));
  EXPECT_LE(depot_.bytes(), kMiB);
  EXPECT_EQ(sum(gone) + depot_.bytes(), before);
  EXPECT_EQ(depot_.take_down_to(kMiB), nullptr) << "nothing more than was asked";
  EXPECT_EQ(sum(listed(depot_.take_all())), before - sum(gone));
  EXPECT_EQ(depot_.bytes(), Bytes(0));
  EXPECT_EQ(depot_.take_all(), nullptr);
}

TEST_F(KeptBlocksTest, OfOneClassNoMoreGoesThanIsAsked) {
  depot_.add_thread(2);
  const Bytes size = 8 * kKiB;
  const Bytes batch = size * KeptBlocks::batch(KeptBlocks::class_of(size));
  while (depot_.bytes() < 8 * kMiB) {
    ASSERT_TRUE(kept_.put(make(size), kPlenty));
  }
  depot_.take_down_to(7 * kMiB);
  EXPECT_LE(depot_.bytes(), 7 * kMiB);
  EXPECT_GE(depot_.bytes(), 7 * kMiB - batch);
}

// A random program of two caches on one depot.
TEST_F(KeptBlocksTest, RandomProgramsLoseNothingAndInventNothing) {
  std::mt19937_64 random(2);
  KeptBlocks other(kStream, clock_, depot_);
  depot_.add_thread(2);
  const Bytes most = kMiB;
  std::vector<Block*> free;
  std::set<Block*> in;
  const auto take_in = [&](Block* chain) {
    for (Block* block : listed(chain)) {
      ASSERT_EQ(in.erase(block), 1U) << "a block that was never put, or twice";
      free.push_back(block);
    }
  };
  for (int i = 0; i < 4000; ++i) {
    const bool large = i % 50 == 0;
    free.push_back(
        make(large ? kMiB + Bytes(512 * (1 + random() % 3))
                   : Bytes(std::uint64_t{512} << random() % 11) + Bytes(512 * (random() % 2))));
  }
  for (int step = 0; step < 200000; ++step) {
    KeptBlocks& cache = random() % 2 == 0 ? kept_ : other;
    const std::uint64_t dice = random() % 1000;
    if (dice < 500 && !free.empty()) {
      std::swap(free[random() % free.size()], free.back());
      Block* block = free.back();
      const bool put = block->size > KeptBlocks::kLargestBinned ? cache.put_large(block, 8 * kMiB)
                                                                : cache.put(block, most);
      if (put) {
        free.pop_back();
        ASSERT_TRUE(in.insert(block).second);
      }
    } else if (dice < 990) {
      const Fit fit = std::array{Fit::kExact, Fit::kEighth, Fit::kDouble}[random() % 3];
      const Bytes size = blocks_[random() % blocks_.size()].size;
      if (Block* block = cache.take(size, fit, 0)) {
        ASSERT_EQ(in.erase(block), 1U);
        ASSERT_GE(block->size, size);
        if (fit != Fit::kDouble) {
          ASSERT_LE(block->size, fit == Fit::kExact ? size : size + Bytes(size.count() / 8));
        }
        free.push_back(block);
      }
    } else if (dice < 993) {
      take_in(cache.take_all());
      ASSERT_EQ(cache.bytes(), Bytes(0));
    } else if (dice < 996) {
      take_in(depot_.take_down_to(depot_.bytes() - Bytes(depot_.bytes().count() / 8)));
      take_in(cache.take_down_to(Bytes(random() % most.count())));
    } else if (dice < 997) {
      take_in(depot_.take_all());
      ASSERT_EQ(depot_.bytes(), Bytes(0));
    }
    if (step % 64 == 0) {
      ASSERT_EQ(sum({in.begin(), in.end()}), kept_.bytes() + other.bytes() + depot_.bytes());
    }
  }
  take_in(kept_.take_all());
  take_in(other.take_all());
  take_in(depot_.take_all());
  EXPECT_TRUE(in.empty());
  EXPECT_EQ(free.size(), blocks_.size());
}

}  // namespace
}  // namespace nofrag
