// RangeHeap: merging, streams, attach and detach, lost mappings.
#include "heap/range_heap.h"

#include <random>

#include "heap_fixture.h"

namespace nofrag {
namespace {

class RangeHeapTest : public HeapFixture {};

TEST_F(RangeHeapTest, NothingMappedServesNothing) {
  EXPECT_EQ(allocate(Bytes(512)), nullptr);
  EXPECT_EQ(heap_->mapped(), Bytes(0));
}

TEST_F(RangeHeapTest, SplitsAndMergesOnOneStream) {
  attach(Bytes(0), 4 * kMiB);
  Block* a = allocate(kMiB);
  Block* b = allocate(kMiB);
  Block* c = allocate(kMiB);
  EXPECT_EQ(a->address, at(Bytes(0)));
  EXPECT_EQ(b->address, at(kMiB));
  EXPECT_EQ(heap_->used(), 3 * kMiB);
  free(a);
  free(c);
  EXPECT_EQ(heap_->largest_free_run(), 2 * kMiB);
  free(b);
  EXPECT_EQ(heap_->largest_free_run(), 4 * kMiB);
  EXPECT_NE(allocate(4 * kMiB), nullptr) << "a block may span granules";
}

TEST_F(RangeHeapTest, BlocksSpanHandlesAndKeepEachBusy) {
  Handle* first = attach(Bytes(0), 2 * kMiB);
  Handle* second = attach(2 * kMiB, 4 * kMiB);
  Block* block = allocate(3 * kMiB);
  EXPECT_EQ(first->used, 2 * kMiB);
  EXPECT_EQ(second->used, kMiB);
  EXPECT_EQ(heap_->first_idle(), nullptr);
  EXPECT_EQ(heap_->mapped_in_use(), 6 * kMiB);
  free(block);
  EXPECT_EQ(heap_->first_idle(), first);
  EXPECT_EQ(heap_->mapped_in_use(), Bytes(0));
}

TEST_F(RangeHeapTest, AStreamTakesItsOwnFreedMemoryAtOnceAndOthersWait) {
  streams_.clock(kB);
  attach(Bytes(0), 2 * kMiB);
  Block* block = allocate(2 * kMiB, kA);
  free(block);
  EXPECT_EQ(allocate(kMiB, kB), nullptr);
  Block* again = allocate(kMiB, kA);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(allocate(kMiB, kB), nullptr);
  complete(kA);
  EXPECT_NE(allocate(kMiB, kB), nullptr);
}

TEST_F(RangeHeapTest, DifferentMarksDoNotMergeUntilClean) {
  streams_.clock(kB);
  attach(Bytes(0), 4 * kMiB);
  Block* a = allocate(2 * kMiB, kA);
  Block* b = allocate(2 * kMiB, kB);
  free(a);
  free(b);
  EXPECT_EQ(heap_->largest_free_run(), 2 * kMiB);
  EXPECT_EQ(allocate(4 * kMiB, kA), nullptr);
  complete(kA);
  EXPECT_EQ(heap_->largest_free_run(), 2 * kMiB) << "clean beside dirty";
  complete(kB);
  EXPECT_EQ(heap_->largest_free_run(), 4 * kMiB);
}

// Merging takes the later of two ticks: the earlier part must not become clean first.
TEST_F(RangeHeapTest, AMergedBlockIsAsLateAsItsLatestPart) {
  streams_.clock(kB);
  attach(Bytes(0), 4 * kMiB);
  Block* early = allocate(2 * kMiB, kA);
  Block* late = allocate(2 * kMiB, kA);
  free(early);
  ASSERT_TRUE(streams_.mark(streams_.clock(kA)).ok());
  driver_.complete_stream(kA);
  free(late);
  streams_.poll(streams_.clock(kA));
  heap_->clean_done(streams_.clock(kA));
  EXPECT_EQ(allocate(kMiB, kB), nullptr);
  complete(kA);
  EXPECT_NE(allocate(4 * kMiB, kB), nullptr);
}

TEST_F(RangeHeapTest, MemoryFreedWhileOneStreamWasAloneIsNotTheNextStreamsAtOnce) {
  attach(Bytes(0), 8 * kMiB);
  Block* block = allocate(2 * kMiB, kA);
  free(block);  // merges with the clean rest, one stream having been seen
  EXPECT_EQ(allocate(kMiB, kB), nullptr);
  complete(kA);
  EXPECT_NE(allocate(8 * kMiB, kB), nullptr);
}

TEST_F(RangeHeapTest, PrivateMemoryNeverChangesStreams) {
  make(RangeHeap::Sharing::kPrivate);
  streams_.clock(kB);
  attach(Bytes(0), 2 * kMiB);
  free(allocate(2 * kMiB, kA));
  complete(kA);
  EXPECT_EQ(allocate(kMiB, kB), nullptr) << "a graph may replay its work at any time";
  Block* own = allocate(2 * kMiB, kA);
  ASSERT_NE(own, nullptr);
  free(own);
  heap_->clean_all();
  EXPECT_NE(allocate(2 * kMiB, kB), nullptr);
}

TEST_F(RangeHeapTest, DetachLeavesTheNeighboursFree) {
  attach(Bytes(0), 2 * kMiB);
  Handle* middle = attach(2 * kMiB, 2 * kMiB);
  attach(4 * kMiB, 2 * kMiB);
  EXPECT_EQ(heap_->largest_free_run(), 6 * kMiB);
  EXPECT_EQ(heap_->detach(middle).size, 2 * kMiB);
  heap_->check();
  EXPECT_EQ(heap_->largest_free_run(), 2 * kMiB);
  EXPECT_EQ(heap_->mapped(), 4 * kMiB);
  attach(2 * kMiB, 2 * kMiB);
  EXPECT_EQ(heap_->largest_free_run(), 6 * kMiB);
}

TEST_F(RangeHeapTest, DetachUnderDirtyBlocksOfTwoStreams) {
  streams_.clock(kB);
  attach(Bytes(0), 2 * kMiB);
  Handle* middle = attach(2 * kMiB, 2 * kMiB);
  attach(4 * kMiB, 2 * kMiB);
  Block* a = allocate(3 * kMiB, kA);
  Block* b = allocate(3 * kMiB, kB);
  free(a);
  free(b);
  heap_->detach(middle);
  heap_->check();
  EXPECT_EQ(heap_->mapped(), 4 * kMiB);
  EXPECT_NE(allocate(2 * kMiB, kA), nullptr);
  EXPECT_NE(allocate(2 * kMiB, kB), nullptr);
}

#if NOFRAG_CHECK_LEVEL >= 1
using RangeHeapDeathTest = RangeHeapTest;
TEST_F(RangeHeapDeathTest, DetachOfAUsedHandleAborts) {
  Handle* handle = attach(Bytes(0), 2 * kMiB);
  Block* block = allocate(Bytes(512));
  EXPECT_DEATH(heap_->detach(handle), "in use");
  free(block);
}
#endif

TEST_F(RangeHeapTest, HandleRemembersEveryStreamThatFreedInIt) {
  Handle* handle = attach(Bytes(0), 8 * kMiB);
  for (std::uint64_t i = 0; i < 5; ++i) {
    streams_.clock(StreamId(0x1000 + i));
  }
  std::vector<Block*> blocks;
  for (std::uint64_t i = 0; i < 5; ++i) {
    blocks.push_back(allocate(kMiB, StreamId(0x1000 + i)));
  }
  for (Block* block : blocks) {
    free(block);
  }
  int seen = 0;
  EXPECT_TRUE(handle->mappings->last_uses.all_of([&seen](const StreamClock& clock, Tick tick) {
    ++seen;
    return tick == clock.stamp();
  }));
  EXPECT_EQ(seen, 5);
}

TEST_F(RangeHeapTest, IdleHandlesAreListedByHowLongTheyAreIdle) {
  Handle* first = attach(Bytes(0), 2 * kMiB);
  Handle* second = attach(8 * kMiB, 2 * kMiB);
  EXPECT_EQ(heap_->first_idle(), first);
  Block* block = allocate(Bytes(512));
  EXPECT_EQ(heap_->first_idle(), second);
  free(block);
  EXPECT_EQ(heap_->first_idle(), second);
  EXPECT_EQ(second->next_idle, first);
}

TEST_F(RangeHeapTest, LostMappingsServeNobodyAndCanBeGivenUpLater) {
  attach(Bytes(0), 2 * kMiB);
  heap_->attach_lost(region(), at(2 * kMiB), {HandleId{77}, 4 * kMiB});
  attach(6 * kMiB, 2 * kMiB);
  heap_->check();
  EXPECT_EQ(heap_->mapped(), 8 * kMiB);
  EXPECT_EQ(heap_->used(), 4 * kMiB);
  EXPECT_EQ(heap_->largest_free_run(), 2 * kMiB);
  EXPECT_EQ(allocate(4 * kMiB), nullptr);
  ASSERT_EQ(heap_->lost().size(), 1U);
  const PhysicalHandle physical = heap_->detach_lost(heap_->lost().front());
  EXPECT_EQ(physical.id, HandleId{77});
  EXPECT_EQ(heap_->used(), Bytes(0));
  EXPECT_EQ(heap_->mapped(), 4 * kMiB);
  EXPECT_TRUE(heap_->lost().empty());
  heap_->check();
  attach(2 * kMiB, 4 * kMiB);
  EXPECT_EQ(heap_->largest_free_run(), 8 * kMiB);
}

TEST_F(RangeHeapTest, BlockAtFindsTheCoveringBlock) {
  attach(Bytes(0), 4 * kMiB);
  Block* a = allocate(3 * kMiB);
  EXPECT_EQ(context_.block_at(a->address), a);
  EXPECT_EQ(context_.block_at(a->end() - Bytes(1)), a);
  EXPECT_NE(context_.block_at(a->end()), a);
  EXPECT_EQ(context_.block_at(kBase - Bytes(1)), nullptr);
  EXPECT_EQ(context_.block_at(kBase + 64 * kMiB), nullptr);
}

// check() looks every block up by its first and its last address.
TEST_F(RangeHeapTest, BlocksAreFoundWhateverTheGranularity) {
  HeapContext context{streams_, 3 * kMiB};
  RangeHeap heap(context, RangeHeap::Sharing::kShared);
  Region& region = heap.add_region({kBase + kGiB, 30 * kMiB}, true);
  Handle* handle = heap.attach(region, region.range.address, {HandleId{1}, 30 * kMiB});
  std::vector<Block*> blocks;
  for (int i = 0; i < 40; ++i) {
    const Bytes size = i % 3 == 0 ? kMiB : Bytes(std::uint64_t{512} << (i % 11));
    blocks.push_back(heap.allocate(size, size, streams_.clock(kA)));
    ASSERT_NE(blocks.back(), nullptr);
    heap.check();
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Block* block = blocks[i * 7 % blocks.size()];
    for (Bytes in; in < block->size; in += 96 * kKiB) {
      ASSERT_EQ(RangeHeap::covering(region, block->address + in), block);
    }
    heap.free(block, block->clock->stamp());
    heap.check();
  }
  heap.detach(handle);
}

TEST_F(RangeHeapTest, RandomAttachDetachAllocateFree) {
  std::mt19937_64 random(11);
  std::vector<StreamId> ids = {kA, kB, StreamId(0x300)};
  for (int step = 0; step < 6000; ++step) {
    const std::uint64_t dice = random() % 100;
    if (dice < 40) {
      allocate(Bytes(512) * (1 + random() % (std::uint64_t{1} << (random() % 13))),
               ids[random() % 3]);
    } else if (dice < 70 && !live_.empty()) {
      free(live_[random() % live_.size()]);
    } else if (dice < 80) {
      const Bytes offset = kGranule * (random() % 30);
      const Bytes size = kGranule * (1 + random() % 2);
      const Block* block = context_.block_at(at(offset));
      if (block->state == BlockState::kUnbacked && at(offset) + size <= block->end()) {
        attach(offset, size);
      }
    } else if (dice < 88) {
      if (Handle* idle = heap_->first_idle()) {
        heap_->detach(idle);
      }
    } else {
      complete(ids[random() % 3]);
    }
  }
}

}  // namespace
}  // namespace nofrag
