// Threads that pass blocks on through a depot. Nobody else orders them: what one wrote to a block before it
// put it, the other must see (ThreadSanitizer watches the plain fields).
#include <atomic>
#include <deque>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "heap/kept_blocks.h"

namespace nofrag {
namespace {

constexpr StreamId kStream{0x100};
constexpr Bytes kPlenty = kGiB;

class DepotThreads : public testing::Test {
 protected:
  DepotThreads() { depot_.add_thread(2); }

  void make(std::size_t count, Bytes size) {
    for (std::size_t i = 0; i < count; ++i) {
      Block& block = blocks_.emplace_back();
      block.size = size;
      block.clock = &clock_;
    }
  }

  StreamClock clock_;
  Depot depot_;
  std::deque<Block> blocks_;
};

// One thread only puts, the other only takes.
TEST_F(DepotThreads, ProducerAndConsumer) {
  const Bytes size = 16 * kKiB;
  make(20000, size);
  std::atomic<bool> ended{false};
  std::thread producer([&] {
    KeptBlocks kept(kStream, clock_, depot_);
    for (Block& block : blocks_) {
      block.requested = Bytes(1);
      ASSERT_TRUE(kept.put(&block, kPlenty));
    }
    // What its own magazines still hold.
    for (Block* block = kept.take_all(); block != nullptr; block = block->next_kept) {
      block->requested = Bytes(2);
    }
    ended = true;
  });
  KeptBlocks kept(kStream, clock_, depot_);
  std::size_t taken = 0;
  for (bool last = false;;) {
    if (Block* block = kept.take(size, Fit::kExact, 0)) {
      EXPECT_EQ(block->requested, Bytes(1)) << "a block came twice";
      block->requested = Bytes(2);
      ++taken;
    } else if (last) {
      break;
    } else {
      last = ended;
    }
  }
  producer.join();
  EXPECT_GT(taken, blocks_.size() / 2);
  for (const Block& block : blocks_) {
    EXPECT_EQ(block.requested, Bytes(2));
  }
  EXPECT_EQ(depot_.bytes(), Bytes(0));
}

// Both put and take, of classes that both use, and now and then one empties the depot.
TEST_F(DepotThreads, BothWays) {
  constexpr std::size_t kThreads = 3;
  constexpr std::size_t kEach = 600;
  const Bytes sizes[] = {Bytes(512), 8 * kKiB, 512 * kKiB};
  make(kThreads * kEach, Bytes(512));
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].size = sizes[i % 3];
  }
  std::vector<std::vector<Block*>> left(kThreads);
  const auto work = [&](std::size_t me) {
    KeptBlocks kept(kStream, clock_, depot_);
    std::vector<Block*>& own = left[me];
    for (std::size_t i = 0; i < kEach; ++i) {
      own.push_back(&blocks_[me * kEach + i]);
    }
    std::uint64_t random = me + 1;
    for (int round = 0; round < 300; ++round) {
      // All out, then back whatever comes: the magazines wander.
      std::erase_if(own, [&](Block* block) {
        block->requested += Bytes(1);
        return kept.put(block, 64 * kMiB);
      });
      random = random * 6364136223846793005U + 1442695040888963407U;
      if (random >> 60 == 0) {
        for (Block* chain = depot_.take_down_to(kMiB); chain != nullptr;) {
          Block* next = chain->next_kept;
          own.push_back(chain);
          chain = next;
        }
      }
      for (const Bytes size : sizes) {
        while (own.size() < kEach + (random >> 56)) {
          Block* block = kept.take(size, Fit::kExact, 0);
          if (block == nullptr) {
            break;
          }
          block->requested += Bytes(1);
          own.push_back(block);
        }
      }
    }
    for (Block* chain = kept.take_all(); chain != nullptr;) {
      Block* next = chain->next_kept;
      own.push_back(chain);
      chain = next;
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back(work, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::set<Block*> all;
  for (Block* chain = depot_.take_all(); chain != nullptr; chain = chain->next_kept) {
    EXPECT_TRUE(all.insert(chain).second);
  }
  for (const std::vector<Block*>& own : left) {
    for (Block* block : own) {
      EXPECT_TRUE(all.insert(block).second) << "two have the same block";
    }
  }
  EXPECT_EQ(all.size(), blocks_.size());
  EXPECT_EQ(depot_.bytes(), Bytes(0));
}

}  // namespace
}  // namespace nofrag
