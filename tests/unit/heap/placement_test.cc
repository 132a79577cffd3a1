// find_placement against every possible place in a small region; gaps and take.
#include <algorithm>
#include <random>

#include "heap_fixture.h"

namespace nofrag {
namespace {

class PlacementTest : public HeapFixture {
 protected:
  // Missing bytes of [offset, offset + size), or no value if it is not all usable.
  std::optional<Bytes> missing_at(Bytes offset, Bytes size, const StreamClock& clock, bool any) {
    Bytes missing;
    const VirtAddr start = at(offset);
    const VirtAddr end = start + size;
    if (end > region().range.end()) {
      return std::nullopt;
    }
    for (const Block* b = region().first; b != nullptr; b = b->next) {
      if (b->end() <= start || b->address >= end) {
        continue;
      }
      if (b->state == BlockState::kUnbacked) {
        const Bytes from = round_down(std::max(b->address, start) - kBase, kGranule);
        const Bytes to = round_up(std::min(b->end(), end) - kBase, kGranule);
        missing += to - from;
      } else if (b->state != BlockState::kFree ||
                 !(any || b->clock == nullptr || b->clock == &clock)) {
        return std::nullopt;
      }
    }
    return missing;
  }

  std::optional<Bytes> best(Bytes size, const StreamClock& clock, bool any) {
    std::optional<Bytes> best;
    for (Bytes offset; offset + size <= 64 * kMiB; offset += 256 * kKiB) {
      const std::optional<Bytes> here = missing_at(offset, size, clock, any);
      if (here.has_value() && (!best.has_value() || *here < *best)) {
        best = here;
      }
    }
    return best;
  }
};

TEST_F(PlacementTest, EmptyRegionStartsAtItsFront) {
  const auto placement =
      heap_->find_placement(3 * kMiB, streams_.clock(kA), RangeHeap::Scope::kUsable);
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(placement->address, kBase);
  EXPECT_EQ(placement->missing, 4 * kMiB);
  const std::vector<Gap> gaps = heap_->gaps(*placement);
  ASSERT_EQ(gaps.size(), 1U);
  EXPECT_EQ(gaps[0].range.size, 4 * kMiB);
  EXPECT_EQ(gaps[0].room_after, 60 * kMiB);
}

TEST_F(PlacementTest, UsesFreeMemoryBeforeAndAfterAGap) {
  attach(Bytes(0), 2 * kMiB);
  attach(4 * kMiB, 2 * kMiB);
  const auto placement =
      heap_->find_placement(6 * kMiB, streams_.clock(kA), RangeHeap::Scope::kUsable);
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(placement->address, kBase);
  EXPECT_EQ(placement->missing, 2 * kMiB);
  attach(2 * kMiB, 2 * kMiB);
  live_.push_back(heap_->take(*placement, 6 * kMiB, streams_.clock(kA)));
  heap_->check();
  EXPECT_EQ(heap_->used(), 6 * kMiB);
}

TEST_F(PlacementTest, UnbackedScopeTouchesNothingMapped) {
  attach(Bytes(0), 2 * kMiB);
  const auto placement =
      heap_->find_placement(3 * kMiB, streams_.clock(kA), RangeHeap::Scope::kUnbacked);
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(placement->address, at(2 * kMiB));
  EXPECT_EQ(placement->missing, 4 * kMiB);
}

TEST_F(PlacementTest, TooLongForTheRegionIsRefused) {
  EXPECT_FALSE(
      heap_->find_placement(64 * kMiB + Bytes(512), streams_.clock(kA), RangeHeap::Scope::kUsable)
          .has_value());
}

TEST_F(PlacementTest, ForeignMemoryIsNamedToTheCaller) {
  streams_.clock(kB);
  attach(Bytes(0), 64 * kMiB);
  Block* a = allocate(32 * kMiB, kA);
  Block* b = allocate(32 * kMiB, kB);
  free(a);
  free(b);
  StreamClock& clock = streams_.clock(kA);
  EXPECT_FALSE(heap_->find_placement(40 * kMiB, clock, RangeHeap::Scope::kUsable).has_value());
  const auto placement = heap_->find_placement(40 * kMiB, clock, RangeHeap::Scope::kAny);
  ASSERT_TRUE(placement.has_value());
  int named = 0;
  heap_->for_each_foreign(*placement, clock, [&](const StreamClock& other, Tick tick) {
    EXPECT_EQ(other.stream, kB);
    EXPECT_EQ(tick, other.stamp());
    ++named;
  });
  EXPECT_EQ(named, 1);
  Block* taken = heap_->take(*placement, 40 * kMiB, clock);
  live_.push_back(taken);
  heap_->check();
  EXPECT_EQ(taken->clock, &clock);
}

// Its index lies beyond the marks that the heap has seen (AddressSanitizer looks at the access).
TEST_F(PlacementTest, AStreamThatFreedNothingYetHasNoMemoryOfItsOwn) {
  streams_.clock(kA);
  attach(Bytes(0), 4 * kMiB);
  free(allocate(4 * kMiB, kA));
  for (std::uint64_t i = 0; i < 64; ++i) {
    const StreamClock& fresh = streams_.clock(StreamId(0x1000 + i));
    const auto placement = heap_->find_placement(3 * kMiB, fresh, RangeHeap::Scope::kUsable);
    ASSERT_TRUE(placement.has_value());
    EXPECT_EQ(placement->address, at(4 * kMiB)) << "beside what stream A freed";
  }
}

TEST_F(PlacementTest, NoPlaceMissesFewerBytes) {
  std::mt19937_64 random(5);
  streams_.clock(kB);
  for (int round = 0; round < 400; ++round) {
    for (int step = 0; step < 12; ++step) {
      const std::uint64_t dice = random() % 10;
      if (dice < 4) {
        allocate(256 * kKiB * (1 + random() % 12), random() % 2 == 0 ? kA : kB);
      } else if (dice < 6 && !live_.empty()) {
        free(live_[random() % live_.size()]);
      } else if (dice < 9) {
        const Bytes offset = kGranule * (random() % 32);
        if (context_.block_at(at(offset))->state == BlockState::kUnbacked) {
          attach(offset, kGranule);
        }
      } else if (Handle* idle = heap_->first_idle()) {
        heap_->detach(idle);
      }
    }
    const StreamClock& clock = streams_.clock(random() % 2 == 0 ? kA : kB);
    const Bytes size = 256 * kKiB * (1 + random() % 250);
    for (const bool any : {false, true}) {
      const auto placement = heap_->find_placement(
          size, clock, any ? RangeHeap::Scope::kAny : RangeHeap::Scope::kUsable);
      const std::optional<Bytes> expected = best(size, clock, any);
      ASSERT_EQ(placement.has_value(), expected.has_value());
      if (placement.has_value()) {
        ASSERT_EQ(placement->missing, *expected) << "round " << round << " size " << size.count();
        ASSERT_EQ(missing_at(placement->address - kBase, size, clock, any), placement->missing);
        Bytes gaps;
        for (const Gap& gap : heap_->gaps(*placement)) {
          gaps += gap.range.size;
        }
        ASSERT_EQ(gaps, placement->missing);
      }
    }
  }
}

}  // namespace
}  // namespace nofrag
