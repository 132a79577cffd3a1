// Handles at several addresses: what one mapping is used for shows in all others, marks are the same
// everywhere, and free memory merges wherever mappings meet.
#include <algorithm>

#include "heap_fixture.h"

namespace nofrag {
namespace {

using Runs = std::vector<std::string>;

class AliasesTest : public HeapFixture {
 protected:
  Mapping* alias(Region& to, Bytes offset, Handle* handle) {
    Mapping* mapping = heap_->alias(to, to.range.address + offset, handle);
    heap_->check();
    return mapping;
  }
  // A block of `size` at a chosen place, which must be free.
  Block* take(Region& from, Bytes offset, Bytes size, StreamId stream = kA) {
    const Placement placement{&from, from.range.address + offset, size, Bytes(0)};
    Block* block = heap_->take(placement, size, streams_.clock(stream));
    live_.push_back(block);
    heap_->check();
    return block;
  }
  // What lies under the first `size` bytes of a region, in KiB: "free 2048", "free A 512", "shadow 512".
  [[nodiscard]] Runs runs(const Region& of, Bytes size) const {
    Runs found;
    const VirtAddr end = of.range.address + size;
    for (const Block* b = of.first; b != nullptr && b->address < end; b = b->next) {
      std::string text = name(b->state);
      if (b->state == BlockState::kFree && b->clock != nullptr) {
        text += b->clock->stream == kA ? " A" : " B";
      }
      found.push_back(text + " " + std::to_string((std::min(b->end(), end) - b->address) / kKiB));
    }
    return found;
  }
  static std::string name(BlockState state) {
    switch (state) {
      case BlockState::kUnbacked:
        return "unbacked";
      case BlockState::kFree:
        return "free";
      case BlockState::kShadow:
        return "shadow";
      case BlockState::kLost:
        return "lost";
      default:
        return "live";
    }
  }
};

TEST_F(AliasesTest, AFreeHandleIsFreeAtAllItsAddresses) {
  Handle* handle = attach(Bytes(0), 4 * kMiB);
  Region& there = view(8 * kMiB);
  alias(there, 2 * kMiB, handle);
  EXPECT_EQ(handle->mapping_count, 2U);
  EXPECT_EQ(heap_->mapped(), 4 * kMiB) << "the same memory";
  EXPECT_EQ(context_.idle_bytes, 4 * kMiB);
  EXPECT_EQ(runs(there, 8 * kMiB), (Runs{"unbacked 2048", "free 4096", "unbacked 2048"}));
  EXPECT_NE(allocate(4 * kMiB), nullptr);
  EXPECT_EQ(allocate(Bytes(512)), nullptr) << "handed out twice";
  EXPECT_EQ(heap_->used(), 4 * kMiB);
}

// Three handles lie side by side at home and, in other orders and with gaps, in up to seven views. A
// block over all three, wherever it was taken, shows as exactly its parts everywhere else.
class Shadows : public AliasesTest, public testing::WithParamInterface<std::uint32_t> {
 protected:
  static constexpr Bytes kOffsets[][3] = {{Bytes(0), kMiB * 2, kMiB * 6},
                                          {kMiB * 2, kMiB * 8, Bytes(0)},
                                          {kMiB * 10, Bytes(0), kMiB * 6},
                                          {Bytes(0), kMiB * 4, kMiB * 12}};
};

TEST_P(Shadows, AppearAndGoUnderABlockOfSeveralHandles) {
  Handle* handles[] = {
      attach(Bytes(0), 2 * kMiB), attach(2 * kMiB, 4 * kMiB), attach(6 * kMiB, 2 * kMiB)};
  std::vector<Region*> views;
  std::vector<Runs> before;
  for (std::uint32_t i = 1; i < GetParam(); ++i) {
    views.push_back(&view(16 * kMiB));
    for (std::size_t h = 0; h < 3; ++h) {
      alias(*views.back(), kOffsets[i % 4][h], handles[h]);
    }
    before.push_back(runs(*views.back(), 16 * kMiB));
  }
  // From the middle of the first handle to the middle of the third.
  Block* block = take(region(), kMiB, 6 * kMiB);
  for (Handle* handle : handles) {
    EXPECT_EQ(handle->mapping_count, GetParam());
    for (const Mapping* m = handle->mappings; m != nullptr; m = m->next) {
      EXPECT_EQ(m->blocks, m->region == &region() ? 1U : 0U);
    }
  }
  EXPECT_EQ(handles[0]->used, kMiB);
  EXPECT_EQ(handles[1]->used, 4 * kMiB);
  EXPECT_EQ(handles[2]->used, kMiB);
  for (Region* there : views) {
    Bytes shadows;
    int count = 0;
    for (const Block* b = there->first; b != nullptr; b = b->next) {
      shadows += b->state == BlockState::kShadow ? b->size : Bytes(0);
      count += b->state == BlockState::kShadow ? 1 : 0;
    }
    EXPECT_EQ(shadows, 6 * kMiB);
    EXPECT_EQ(count, 3) << "one a handle, side by side or not";
  }
  EXPECT_EQ(allocate(2 * kMiB + Bytes(512)), nullptr) << "only the two ends are left";
  free(block);
  for (std::size_t i = 0; i < views.size(); ++i) {
    EXPECT_EQ(runs(*views[i], 16 * kMiB).size(), before[i].size());
  }
  EXPECT_EQ(heap_->used(), Bytes(0));
  EXPECT_EQ(heap_->largest_free_run(), 8 * kMiB);
}

// The same through a view, where the handles lie in another order.
TEST_P(Shadows, AppearAtHomeToo) {
  Handle* first = attach(Bytes(0), 2 * kMiB);
  attach(2 * kMiB, 2 * kMiB);
  Handle* last = attach(4 * kMiB, 2 * kMiB);
  free(allocate(6 * kMiB));  // all is marked alike from here on
  for (std::uint32_t i = 1; i < GetParam(); ++i) {
    Region& there = view(4 * kMiB);
    alias(there, Bytes(0), last);
    alias(there, 2 * kMiB, first);
    Block* block = take(there, kMiB, 2 * kMiB);
    EXPECT_EQ(runs(region(), 6 * kMiB), (Runs{"shadow 1024", "free A 4096", "shadow 1024"}));
    free(block);
    EXPECT_EQ(runs(region(), 6 * kMiB), (Runs{"free A 6144"})) << "one stream: all merges";
  }
}

INSTANTIATE_TEST_SUITE_P(Mappings, Shadows, testing::Range(1U, 9U));

TEST_F(AliasesTest, MarksAreTheSameAtAllAddresses) {
  streams_.clock(kB);
  Handle* handle = attach(Bytes(0), 4 * kMiB);
  Region& early = view(4 * kMiB);
  alias(early, Bytes(0), handle);
  Block* a = allocate(kMiB, kA);
  Block* b = allocate(kMiB, kB);
  free(a);
  free(b);
  const Runs marked = {"free A 1024", "free B 1024", "free 2048"};
  EXPECT_EQ(runs(region(), 4 * kMiB), marked);
  EXPECT_EQ(runs(early, 4 * kMiB), marked);
  Region& late = view(4 * kMiB);
  alias(late, Bytes(0), handle);
  EXPECT_EQ(runs(late, 4 * kMiB), marked) << "an alias made later takes the marks over";
  for (const Region* there : {&region(), &early, &late}) {
    EXPECT_EQ(there->first->tick, streams_.clock(kA).stamp());
    EXPECT_EQ(there->first->next->tick, streams_.clock(kB).stamp());
  }
  EXPECT_EQ(allocate(3 * kMiB, kA), nullptr);
  complete(kA);
  for (const Region* there : {&region(), &early, &late}) {
    EXPECT_EQ(runs(*there, 4 * kMiB), (Runs{"free 1024", "free B 1024", "free 2048"}));
  }
  complete(kB);
  for (const Region* there : {&region(), &early, &late}) {
    EXPECT_EQ(runs(*there, 4 * kMiB), (Runs{"free 4096"}));
  }
  EXPECT_NE(allocate(4 * kMiB, kA), nullptr);
}

TEST_F(AliasesTest, CleanAllCleansAllAddresses) {
  make(RangeHeap::Sharing::kPrivate);
  streams_.clock(kB);
  Handle* handle = attach(Bytes(0), 4 * kMiB);
  Region& there = view(4 * kMiB);
  alias(there, Bytes(0), handle);
  streams_.clock(kA);
  free(take(there, kMiB, kMiB, kA));
  complete(kA);
  EXPECT_EQ(runs(region(), 4 * kMiB), (Runs{"free 1024", "free A 1024", "free 2048"}))
      << "a private heap's marks stay";
  heap_->clean_all();
  heap_->check();
  EXPECT_EQ(runs(region(), 4 * kMiB), (Runs{"free 4096"}));
  EXPECT_EQ(runs(there, 4 * kMiB), (Runs{"free 4096"}));
}

// Apart at home, side by side in a view: there a block may lie across.
TEST_F(AliasesTest, FreeMemoryMergesWhereMappingsMeet) {
  Handle* left = attach(Bytes(0), 2 * kMiB);
  Handle* right = attach(8 * kMiB, 2 * kMiB);
  EXPECT_EQ(allocate(3 * kMiB), nullptr);
  Region& there = view(8 * kMiB);
  alias(there, 2 * kMiB, left);
  alias(there, 4 * kMiB, right);
  EXPECT_EQ(heap_->largest_free_run(), 4 * kMiB);
  Block* block = allocate(3 * kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->region, &there);
  EXPECT_EQ(left->used + right->used, 3 * kMiB);
  EXPECT_EQ(heap_->first_idle(), nullptr);
  free(block);
  EXPECT_EQ(heap_->largest_free_run(), 4 * kMiB);
  // What is taken at home parts them again.
  Block* home = take(region(), kMiB, kMiB);
  EXPECT_EQ(runs(there, 8 * kMiB),
            (Runs{"unbacked 2048", "free A 1024", "shadow 1024", "free A 2048", "unbacked 2048"}));
  free(home);
  heap_->drop(left->in(there));
  heap_->check();
  EXPECT_EQ(heap_->largest_free_run(), 2 * kMiB);
}

TEST_F(AliasesTest, FreeEndsOfAHandle) {
  streams_.clock(kB);
  Handle* neighbour = attach(Bytes(0), 2 * kMiB);
  Handle* handle = attach(2 * kMiB, 6 * kMiB);
  attach(8 * kMiB, 2 * kMiB);
  EXPECT_EQ(heap_->free_ends(*handle).front, 6 * kMiB);
  EXPECT_EQ(heap_->free_ends(*handle).back, 6 * kMiB);
  Block* middle = take(region(), 3 * kMiB, kMiB);
  EXPECT_EQ(heap_->free_ends(*handle).front, kMiB) << "not beyond the handle";
  EXPECT_EQ(heap_->free_ends(*handle).back, 4 * kMiB);
  Region& there = view(8 * kMiB);
  alias(there, Bytes(0), handle);
  Block* far = take(there, 4 * kMiB, kMiB);
  EXPECT_EQ(heap_->free_ends(*handle).front, kMiB);
  EXPECT_EQ(heap_->free_ends(*handle).back, kMiB) << "taken through another mapping";
  // Runs of different marks side by side are one end.
  free(take(there, 5 * kMiB, 512 * kKiB, kB));
  EXPECT_EQ(heap_->free_ends(*handle).back, kMiB);
  Block* first = take(region(), Bytes(0), 2 * kMiB + Bytes(512));
  EXPECT_EQ(heap_->free_ends(*handle).front, Bytes(0));
  EXPECT_EQ(heap_->free_ends(*neighbour).front, Bytes(0));
  free(first);
  free(far);
  free(middle);
  EXPECT_EQ(heap_->free_ends(*handle).back, 6 * kMiB);
}

TEST_F(AliasesTest, AllMarksOfAPart) {
  streams_.clock(kA);
  streams_.clock(kB);
  attach(Bytes(0), 2 * kMiB);
  Handle* handle = attach(2 * kMiB, 6 * kMiB);
  free(take(region(), Bytes(0), 2 * kMiB, kB));
  free(take(region(), 3 * kMiB, kMiB, kA));
  take(region(), 4 * kMiB, kMiB, kB);
  free(take(region(), 5 * kMiB, kMiB, kB));
  const auto marks = [&](Bytes from, Bytes to) {
    std::string found;
    RangeHeap::all_marks(*handle, from, to, [&found](const StreamClock* clock, Tick tick) {
      found += clock == nullptr ? "." : clock->stream == kA ? "A" : "B";
      EXPECT_TRUE(clock == nullptr || tick == clock->stamp());
      return true;
    });
    return found;
  };
  EXPECT_EQ(marks(Bytes(0), 6 * kMiB), ".AB.");
  EXPECT_EQ(marks(Bytes(0), kMiB), ".");
  EXPECT_EQ(marks(Bytes(0), kMiB + Bytes(512)), ".A");
  EXPECT_EQ(marks(2 * kMiB, 3 * kMiB), "") << "in use: no mark";
  EXPECT_EQ(marks(3 * kMiB, 6 * kMiB), "B.");
  EXPECT_EQ(marks(4 * kMiB, 6 * kMiB), ".");
  int asked = 0;
  EXPECT_FALSE(RangeHeap::all_marks(
      *handle, Bytes(0), 6 * kMiB, [&asked](const StreamClock*, Tick) { return ++asked < 2; }));
  EXPECT_EQ(asked, 2) << "goes on after a no";
}

TEST_F(AliasesTest, ADroppedMappingLeavesItsWorkToTheHandle) {
  Handle* handle = attach(Bytes(0), 4 * kMiB);
  Region& there = view(4 * kMiB);
  Mapping* mapping = alias(there, Bytes(0), handle);
  Block* block = take(there, Bytes(0), kMiB);
  const Tick tick = block->clock->stamp();
  free(block);
  EXPECT_TRUE(handle->first_address() == at(Bytes(0)));
  heap_->drop(mapping);
  heap_->check();
  EXPECT_EQ(there.mapping_count, 0U);
  EXPECT_EQ(runs(there, 4 * kMiB), (Runs{"unbacked 4096"}));
  EXPECT_EQ(handle->mapping_count, 1U);
  bool seen = false;
  handle->mappings->last_uses.all_of([&](const StreamClock& clock, Tick last) {
    seen = seen || (clock.stream == kA && last == tick);
    return true;
  });
  EXPECT_TRUE(seen) << "the handle's bytes may still be written";
}

// The home addresses may go while a block lives in a view; then the handle leaves through the view.
TEST_F(AliasesTest, TheFirstMappingIsNothingSpecial) {
  Handle* handle = attach(Bytes(0), 4 * kMiB);
  Region& there = view(4 * kMiB);
  alias(there, Bytes(0), handle);
  Block* block = take(there, kMiB, kMiB);
  heap_->drop(handle->in(region()));
  heap_->check();
  EXPECT_EQ(handle->first_address(), there.range.address);
  EXPECT_EQ(heap_->used(), kMiB);
  free(block);
  EXPECT_EQ(heap_->detach(handle).size, 4 * kMiB);
  heap_->check();
  EXPECT_EQ(heap_->mapped(), Bytes(0));
}

TEST_F(AliasesTest, AStuckAliasServesNobodyAndPinsItsHandle) {
  Handle* handle = attach(Bytes(0), 4 * kMiB);
  Region& there = view(8 * kMiB);
  heap_->alias_stuck(there, there.range.address, handle);
  heap_->check();
  EXPECT_FALSE(handle->movable());
  EXPECT_EQ(handle->mapping_count, 1U);
  EXPECT_EQ(there.mapping_count, 1U);
  EXPECT_EQ(heap_->used(), Bytes(0)) << "its memory serves on where it was";
  EXPECT_EQ(runs(there, 8 * kMiB), (Runs{"lost 4096", "unbacked 4096"}));
  Block* block = allocate(4 * kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(runs(there, 8 * kMiB), (Runs{"lost 4096", "unbacked 4096"}));
  free(block);
  ASSERT_EQ(heap_->stuck().size(), 1U);
  heap_->drop(heap_->stuck().front());
  heap_->check();
  EXPECT_TRUE(heap_->stuck().empty());
  EXPECT_TRUE(handle->movable());
  EXPECT_EQ(runs(there, 8 * kMiB), (Runs{"unbacked 8192"}));
}

TEST_F(AliasesTest, ALostHandleOfAViewComesBackAlone) {
  Handle* handle = attach(Bytes(0), 2 * kMiB);
  Region& there = view(8 * kMiB);
  alias(there, Bytes(0), handle);
  heap_->attach_lost(there, there.range.address + 2 * kMiB, {HandleId{99}, 2 * kMiB});
  heap_->check();
  EXPECT_EQ(runs(there, 8 * kMiB), (Runs{"free 2048", "lost 2048", "unbacked 4096"}));
  EXPECT_EQ(heap_->used(), 2 * kMiB);
  EXPECT_EQ(heap_->detach_lost(heap_->lost().front()).id, HandleId{99});
  heap_->check();
  EXPECT_EQ(runs(there, 8 * kMiB), (Runs{"free 2048", "unbacked 6144"}));
}

TEST_F(AliasesTest, ARegionGoesWhenNothingIsMappedInIt) {
  Handle* handle = attach(Bytes(0), 4 * kMiB);
  Region& first = view(4 * kMiB);
  Region& second = view(4 * kMiB);
  const VirtAddr first_at = first.range.address;
  const VirtAddr second_at = second.range.address;
  alias(first, Bytes(0), handle);
  alias(second, Bytes(0), handle);
  heap_->drop(handle->in(first));
  heap_->remove_region(first);
  heap_->check();
  EXPECT_EQ(heap_->regions().size(), 2U);
  EXPECT_EQ(context_.block_at(first_at), nullptr);
  EXPECT_EQ(context_.block_at(second_at), second.first);
  // Its addresses may be a region again, of another heap of the device too.
  RangeHeap other(context_, RangeHeap::Sharing::kPrivate);
  Region& again = other.add_region({first_at, 4 * kMiB}, false);
  EXPECT_EQ(context_.block_at(first_at + kMiB), again.first);
}

TEST_F(AliasesTest, BlockAtKnowsAllRegions) {
  Handle* handle = attach(Bytes(0), 4 * kMiB);
  Region& there = view(4 * kMiB);
  alias(there, Bytes(0), handle);
  Block* block = take(there, kMiB, kMiB);
  EXPECT_EQ(context_.block_at(block->address), block);
  EXPECT_EQ(context_.block_at(block->end() - Bytes(1)), block);
  const Block* shadow = context_.block_at(at(kMiB));
  ASSERT_NE(shadow, nullptr);
  EXPECT_EQ(shadow->state, BlockState::kShadow);
  EXPECT_EQ(context_.block_at(there.range.address - Bytes(1)), nullptr);
  EXPECT_EQ(context_.block_at(there.range.end()), nullptr);
}

TEST_F(AliasesTest, IdleHandlesStayListedOnceWhateverTheirMappings) {
  Handle* first = attach(Bytes(0), 2 * kMiB);
  Handle* second = attach(2 * kMiB, 2 * kMiB);
  Region& there = view(4 * kMiB);
  alias(there, Bytes(0), second);
  EXPECT_EQ(heap_->first_idle(), first);
  Block* block = take(there, Bytes(0), Bytes(512));
  EXPECT_EQ(first->next_idle, nullptr);
  EXPECT_EQ(context_.idle_bytes, 2 * kMiB);
  free(block);
  EXPECT_EQ(first->next_idle, second);
  EXPECT_EQ(context_.idle_bytes, 4 * kMiB);
}

#if NOFRAG_CHECK_LEVEL >= 1
using AliasesDeathTest = AliasesTest;

TEST_F(AliasesDeathTest, AHandleIsNeverTwiceInARegion) {
  Handle* handle = attach(Bytes(0), 2 * kMiB);
  EXPECT_DEATH(heap_->alias(region(), at(4 * kMiB), handle), "twice in one region");
  Region& there = view(8 * kMiB);
  alias(there, Bytes(0), handle);
  EXPECT_DEATH(heap_->alias(there, there.range.address + 4 * kMiB, handle), "twice in one region");
}

TEST_F(AliasesDeathTest, NothingIsMappedOverBackedAddresses) {
  attach(Bytes(0), 2 * kMiB);
  Region& there = view(8 * kMiB);
  Handle* handle = heap_->attach(there, there.range.address, {HandleId{50}, 4 * kMiB});
  EXPECT_DEATH(heap_->alias(region(), at(Bytes(0)), handle), "over backed addresses");
  attach(6 * kMiB, 2 * kMiB);
  EXPECT_DEATH(heap_->alias(region(), at(4 * kMiB), handle), "over backed addresses");
}

TEST_F(AliasesDeathTest, MappingsInUseStay) {
  Handle* handle = attach(Bytes(0), 2 * kMiB);
  EXPECT_DEATH(heap_->drop(handle->mappings), "last mapping");
  Region& there = view(4 * kMiB);
  Mapping* mapping = alias(there, Bytes(0), handle);
  EXPECT_DEATH(heap_->detach(handle), "in use") << "mapped elsewhere too";
  EXPECT_DEATH(heap_->remove_region(there), "something mapped");
  take(there, Bytes(0), Bytes(512));
  EXPECT_DEATH(heap_->drop(mapping), "in use");
  heap_->drop(handle->in(region()));
  EXPECT_DEATH(heap_->detach(handle), "in use");
}
#endif

// A server that makes a stream for each request: only streams that may still be at work are remembered.
TEST_F(AliasesTest, LastUsesForgetWhatIsDone) {
  Handle* handle = attach(Bytes(0), 4 * kMiB);
  const LastUses& uses = handle->mappings->last_uses;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    StreamClock& clock = streams_.clock(StreamId(0x1000 + i));
    handle->mappings->last_uses.note(&clock, clock.stamp());
    ASSERT_TRUE(streams_.wait_host(clock, clock.stamp()).ok());
    ASSERT_LE(uses.count(), 4U);
  }
  StreamClock& busy = streams_.clock(kA);
  const Tick tick = busy.stamp();
  handle->mappings->last_uses.note(&busy, tick);
  for (std::uint64_t i = 0; i < 10; ++i) {
    StreamClock& clock = streams_.clock(StreamId(0x9000 + i));
    handle->mappings->last_uses.note(&clock, clock.stamp());
    ASSERT_TRUE(streams_.wait_host(clock, clock.stamp()).ok());
  }
  bool remembered = false;
  uses.all_of([&](const StreamClock& clock, Tick until) {
    remembered = remembered || (&clock == &busy && until == tick);
    return true;
  });
  EXPECT_TRUE(remembered) << "work that may still run was forgotten";
}

TEST_F(AliasesTest, StreamsThatAreGoneLeaveNoShelvesBehind) {
  attach(Bytes(0), 8 * kMiB);
  streams_.clock(kB);  // several streams
  std::size_t first = 0;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const StreamId stream(0x1000 + i);
    StreamClock& clock = streams_.clock(stream);
    std::vector<Block*> blocks;
    for (int n = 0; n < 6; ++n) {
      blocks.push_back(heap_->allocate(kMiB, kMiB, clock));
      ASSERT_NE(blocks.back(), nullptr);
    }
    for (const std::size_t n : {0U, 2U, 4U, 1U, 3U, 5U}) {
      heap_->free(blocks[n], clock.stamp());
    }
    ASSERT_TRUE(streams_.retire(stream).ok());
    driver_.complete_all();
    streams_.poll(clock);
    heap_->clean_done(clock);
    first = i == 0 ? host_page_bytes() : first;
  }
  EXPECT_EQ(host_page_bytes(), first);
}

}  // namespace
}  // namespace nofrag
