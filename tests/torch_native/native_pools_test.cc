// Private pools: of graphs, of trees of graphs, of MemPools.
#include <thread>
#include <unordered_set>

#include "native_fixture.h"
#include "own_allocator.h"

namespace nofrag::test {
namespace {

class NativePoolsTest : public NativeTest {
 public:
  static constexpr PoolId kPool{0, 77};
  static constexpr PoolId kOther{3, 0};

  static bool always(cudaStream_t /*stream*/) { return true; }
  static void begin(PoolId pool) { allocator().beginAllocateToPool(0, pool, always); }
  static void end(PoolId pool) { allocator().endAllocateToPool(0, pool); }
  // To the end: no use is left, and nothing is held.
  static void release_all(PoolId pool) {
    while (allocator().getPoolUseCount(0, pool) > 0) {
      allocator().releasePool(0, pool);
    }
    allocator().emptyCache(pool);
    allocator().emptyCache({0, 0});
  }
  static std::unordered_set<void*> blocks_in(PoolId pool) {
    std::unordered_set<void*> found;
    for (const SegmentInfo& segment : segments(pool)) {
      std::size_t address = segment.address;
      for (const auto& block : segment.blocks) {
        if (block.allocated) {
          found.insert(reinterpret_cast<void*>(address));  // NOLINT(performance-no-int-to-ptr)
        }
        address += block.size;
      }
    }
    return found;
  }
};

TEST_F(NativePoolsTest, AllocationsGoWhereTheFilterSays) {
  begin(kPool);
  allocator().beginAllocateToPool(
      0, kOther, [](cudaStream_t stream) { return stream == stream_number(9); });
  c10::DataPtr in_pool = allocator().allocate(3 * kMiB);
  current().stream = stream_number(9);
  c10::DataPtr in_other = allocator().allocate(3 * kMiB);
  end(kOther);
  c10::DataPtr in_pool_again = allocator().allocate(kKiB);
  end(kPool);
  c10::DataPtr outside = allocator().allocate(kKiB);
  EXPECT_EQ(blocks_in(kPool), (std::unordered_set<void*>{in_pool.get(), in_pool_again.get()}));
  EXPECT_EQ(blocks_in(kOther), std::unordered_set<void*>{in_other.get()});
  expect_consistent(segments(), stats());
  for (c10::DataPtr* data : {&in_pool, &in_other, &in_pool_again, &outside}) {
    data->clear();
  }
  release_all(kPool);
  release_all(kOther);
  EXPECT_EQ(reserved(), 0);
}

TEST_F(NativePoolsTest, AFilterThatThrowsEndsTheAllocationAlone) {
  allocator().beginAllocateToPool(
      0, kPool, [](cudaStream_t) -> bool { TORCH_CHECK(false, "from the filter"); });
  EXPECT_NE(message_of([] { allocator().allocate(kMiB); }).find("from the filter"),
            std::string::npos);
  end(kPool);
  EXPECT_NE(allocator().allocate(kMiB).get(), nullptr);
  release_all(kPool);
}

TEST_F(NativePoolsTest, OnlyTheThreadThatTheFilterMeansIsServed) {
  const auto self = std::this_thread::get_id();
  allocator().beginAllocateToPool(
      0, kPool, [self](cudaStream_t) { return std::this_thread::get_id() == self; });
  c10::DataPtr mine = allocator().allocate(kMiB);
  c10::DataPtr theirs;
  std::thread([&theirs] { theirs = allocator().allocate(kMiB); }).join();
  EXPECT_EQ(blocks_in(kPool), std::unordered_set<void*>{mine.get()});
  end(kPool);
  mine.clear();
  theirs.clear();
  release_all(kPool);
}

TEST_F(NativePoolsTest, UsesAreCounted) {
  EXPECT_EQ(allocator().getPoolUseCount(0, kPool), 0);
  allocator().createOrIncrefPool(0, kPool, nullptr);
  EXPECT_EQ(allocator().getPoolUseCount(0, kPool), 1);
  begin(kPool);
  EXPECT_EQ(allocator().getPoolUseCount(0, kPool), 2);
  EXPECT_NE(message_of([] { begin(kPool); }).find("already recording"), std::string::npos);
  end(kPool);
  EXPECT_NE(message_of([] { end(kPool); }).find("not currently recording"), std::string::npos);
  allocator().releasePool(0, kPool);
  allocator().releasePool(0, kPool);
  EXPECT_EQ(allocator().getPoolUseCount(0, kPool), 0);
  EXPECT_NE(message_of([] { allocator().releasePool(0, kPool); }), "");
  EXPECT_NE(message_of([] { allocator().setNoSplit(0, kPool); }), "");
  EXPECT_NE(message_of([] { allocator().setUseOnOOM(0, kPool, true); }), "");
}

TEST_F(NativePoolsTest, APoolInUseKeepsItsMemoryWhenCachesAreEmptied) {
  begin(kPool);
  const void* const address = allocator().allocate(8 * kMiB).get();  // freed at once
  end(kPool);
  allocator().emptyCache({0, 0});
  EXPECT_GE(reserved(), static_cast<std::int64_t>(8 * kMiB));
  begin(kPool);
  EXPECT_EQ(allocator().allocate(8 * kMiB).get(), address);
  end(kPool);
  allocator().releasePool(0, kPool);
  allocator().emptyCache(kPool);  // still used once
  EXPECT_GE(reserved(), static_cast<std::int64_t>(8 * kMiB));
  allocator().releasePool(0, kPool);
  allocator().emptyCache(kPool);
  EXPECT_EQ(reserved(), 0);
}

TEST_F(NativePoolsTest, LiveAllocationsAreCompared) {
  begin(kPool);
  c10::DataPtr first = allocator().allocate(kMiB);
  c10::DataPtr second = allocator().allocate(3 * kMiB);
  end(kPool);
  EXPECT_TRUE(allocator().checkPoolLiveAllocations(0, kPool, {first.get(), second.get()}));
  EXPECT_FALSE(allocator().checkPoolLiveAllocations(0, kPool, {first.get()}));
  int other = 0;
  EXPECT_FALSE(allocator().checkPoolLiveAllocations(0, kPool, {first.get(), &other}));
  EXPECT_NE(message_of([] { allocator().checkPoolLiveAllocations(0, kOther, {}); }), "");
  first.clear();
  second.clear();
  EXPECT_TRUE(allocator().checkPoolLiveAllocations(0, kPool, {}));
  release_all(kPool);
}

// As trees of graphs use it: a second graph has allocated over what the first one left, and the first is to
// run again.
TEST_F(NativePoolsTest, ACheckpointBringsBackWhatLivedThen) {
  begin(kPool);
  c10::DataPtr kept = allocator().allocate(2 * kMiB);
  c10::DataPtr dies = allocator().allocate(5 * kMiB);
  const auto state = allocator().getCheckpointState(0, kPool);
  void* const kept_address = kept.get();
  void* const died_address = dies.get();
  dies.clear();
  c10::DataPtr over[3];
  for (c10::DataPtr& data : over) {
    data = allocator().allocate(kMiB);
  }
  end(kPool);
  auto delta = allocator().setCheckpointPoolState(0, state);
  const std::unordered_set<void*> freed(delta.ptrs_freed.begin(), delta.ptrs_freed.end());
  EXPECT_EQ(freed,
            (std::unordered_set<void*>{kept_address, over[0].get(), over[1].get(), over[2].get()}));
  std::unordered_set<void*> made;
  for (c10::DataPtr& data : delta.dataptrs_allocd) {
    EXPECT_EQ(data.get_deleter(), allocator().raw_deleter());
    made.insert(data.get());
  }
  EXPECT_EQ(made, (std::unordered_set<void*>{kept_address, died_address}));
  EXPECT_TRUE(allocator().checkPoolLiveAllocations(0, kPool, made));
  expect_consistent(segments(), stats());
  // The old owners own nothing any more; PyTorch takes their deleters away.
  kept.release_context();
  for (c10::DataPtr& data : over) {
    data.release_context();
  }
  delta.dataptrs_allocd.clear();
  EXPECT_EQ(allocated(), 0);
  release_all(kPool);
}

TEST_F(NativePoolsTest, CheckpointsOfNoPoolOrAnotherKindAreRefused) {
  EXPECT_NE(message_of([] { allocator().getCheckpointState(0, kOther); }), "");
  EXPECT_NE(message_of([] {
              allocator().setCheckpointPoolState(0, std::make_shared<torch_cuda::AllocatorState>());
            }),
            "");
  begin(kPool);
  c10::DataPtr data = allocator().allocate(kMiB);
  allocator().recordStream(data, stream(4));
  end(kPool);
  const auto state = allocator().getCheckpointState(0, kPool);
  EXPECT_NE(message_of([&] { allocator().setCheckpointPoolState(0, state); }), "");
  EXPECT_EQ(blocks_in(kPool).size(), 1U) << "a refusal changes nothing";
  data.clear();
  release_all(kPool);
}

TEST_F(NativePoolsTest, ACheckpointThatCannotBeRestoredChangesNothing) {
  begin(kPool);
  c10::DataPtr waits = allocator().allocate(2 * kMiB);
  c10::DataPtr stays = allocator().allocate(kMiB);
  void* const address = waits.get();
  const auto state = allocator().getCheckpointState(0, kPool);
  end(kPool);
  // Nothing but a wait for the device says when another thread's default stream is done.
  std::thread([&] { allocator().recordStream(waits, external(per_thread_stream())); }).join();
  waits.clear();
  begin(kPool);
  c10::DataPtr later = allocator().allocate(4 * kMiB);
  end(kPool);
  EXPECT_NE(message_of([&] { allocator().setCheckpointPoolState(0, state); }), "");
  EXPECT_EQ(blocks_in(kPool), (std::unordered_set<void*>{stays.get(), later.get()}));
  expect_consistent(segments(), stats());
  later.clear();  // it is still known
  allocator().emptyCache({0, 0});
  auto delta = allocator().setCheckpointPoolState(0, state);
  EXPECT_EQ(blocks_in(kPool), (std::unordered_set<void*>{stays.get(), address}));
  stays.release_context();
  delta.dataptrs_allocd.clear();
  release_all(kPool);
}

TEST_F(NativePoolsTest, AnUnsplitPoolGivesEachBlockMemoryOfItsOwn) {
  allocator().createOrIncrefPool(0, kPool, nullptr);
  allocator().setNoSplit(0, kPool);
  begin(kPool);
  {
    const c10::DataPtr first = allocator().allocate(kKiB);
    const c10::DataPtr second = allocator().allocate(3 * kMiB);
    EXPECT_EQ(allocated(), static_cast<std::int64_t>(6 * kMiB));
    std::size_t with_blocks = 0;
    for (const SegmentInfo& segment : segments(kPool)) {
      with_blocks += segment.allocated_size > 0 ? 1 : 0;
      EXPECT_EQ(segment.blocks.size(), 1U);
      EXPECT_EQ(segment.address % (2 * kMiB), 0U);
    }
    EXPECT_EQ(with_blocks, 2U);
    expect_consistent(segments(), stats());
  }
  end(kPool);
  release_all(kPool);
}

TEST_F(NativePoolsTest, APoolMayServeWhenMemoryIsShort) {
  allocator().createOrIncrefPool(0, kPool, nullptr);
  begin(kPool);
  void* const address = allocator().allocate(10 * kGiB).get();
  end(kPool);
  const c10::DataPtr most = allocator().allocate(68 * kGiB);
  EXPECT_THROW(allocator().allocate(8 * kGiB), c10::OutOfMemoryError);
  allocator().setUseOnOOM(0, kPool, true);
  {
    const c10::DataPtr lent = allocator().allocate(8 * kGiB);
    EXPECT_EQ(lent.get(), address);
    EXPECT_EQ(blocks_in(kPool), std::unordered_set<void*>{address});
    expect_consistent(segments(), stats());
  }
  allocator().setUseOnOOM(0, kPool, false);
  EXPECT_THROW(allocator().allocate(8 * kGiB), c10::OutOfMemoryError);
  release_all(kPool);
}

TEST_F(NativePoolsTest, APoolMayBringItsOwnAllocator) {
  const auto own = std::make_shared<OwnAllocator>();
  const std::int64_t before = reserved();
  allocator().createOrIncrefPool(0, kPool, own);
  begin(kPool);
  c10::DataPtr first = allocator().allocate(kMiB);
  c10::DataPtr second = allocator().allocate(kMiB);
  c10::DataPtr third = allocator().allocate(kMiB);
  c10::DataPtr large = allocator().allocate(3 * kMiB);
  EXPECT_EQ(own->sizes, (std::vector<std::size_t>{2 * kMiB, 2 * kMiB, 20 * kMiB}));
  EXPECT_EQ(segments(kPool).size(), 3U);
  EXPECT_EQ(reserved() - before, static_cast<std::int64_t>(24 * kMiB));
  EXPECT_EQ(static_cast<char*>(second.get()) - static_cast<char*>(first.get()),
            static_cast<std::ptrdiff_t>(kMiB));
  EXPECT_NE(message_of([&] { allocator().shareIpcHandle(large.get()); }), "");
  EXPECT_NE(message_of([] { allocator().getCheckpointState(0, kPool); }), "");
  // A block that another stream used waits for it.
  void* const third_address = third.get();
  allocator().recordStream(third, stream(6));
  third.clear();
  EXPECT_EQ(stats().active[0].current - stats().allocation[0].current, 1);
  EXPECT_NE(allocator().allocate(kMiB).get(), third_address);
  finish_events();
  first.clear();
  second.clear();
  end(kPool);
  large.clear();
  release_all(kPool);
  EXPECT_EQ(own->freed, static_cast<int>(own->sizes.size()));
  EXPECT_EQ(reserved(), before);
}

// While a pool is filled a capture may be under way, which no question to a stream may disturb.
TEST_F(NativePoolsTest, AnOwnAllocatorsPoolAsksNoStreamWhileAPoolIsFilled) {
  const auto own = std::make_shared<OwnAllocator>();
  allocator().createOrIncrefPool(0, kPool, own);
  begin(kPool);
  c10::DataPtr data = allocator().allocate(kMiB);
  void* const address = data.get();
  allocator().recordStream(data, stream(6));
  const std::size_t before = event_calls();
  data.clear();
  EXPECT_NE(allocator().allocate(kMiB).get(), address);
  allocator().emptyCache({0, 0});
  EXPECT_EQ(event_calls(), before);
  end(kPool);
  EXPECT_EQ(event_count(), 1U) << "asked as soon as it may be";
  finish_events();
  begin(kPool);
  data = allocator().allocate(kMiB);
  EXPECT_EQ(data.get(), address);
  end(kPool);
  data.clear();
  release_all(kPool);
  EXPECT_EQ(event_count(), 0U);
  EXPECT_EQ(own->freed, static_cast<int>(own->sizes.size()));
}

// A block is freed in a destructor: what the driver refuses there is tried again, and never taken for done.
TEST_F(NativePoolsTest, RefusedEventsAreNoErrorsAndNotDone) {
  const auto own = std::make_shared<OwnAllocator>();
  allocator().createOrIncrefPool(0, kPool, own);
  begin(kPool);
  c10::DataPtr data[2] = {allocator().allocate(kMiB), allocator().allocate(kMiB)};
  end(kPool);
  const std::unordered_set<void*> addresses{data[0].get(), data[1].get()};
  for (c10::DataPtr& each : data) {
    allocator().recordStream(each, stream(6));
  }
  data[0].clear();
  EXPECT_EQ(event_count(), 1U);
  refuse_events(true);
  EXPECT_NO_THROW(data[1].clear());
  const auto waiting = [] { return stats().active[0].current - stats().allocation[0].current; };
  begin(kPool);  // of the first nothing is known any more, the second is still to be recorded
  end(kPool);
  EXPECT_EQ(waiting(), 2);
  EXPECT_EQ(event_count(), 0U);
  refuse_events(false);
  begin(kPool);
  end(kPool);
  EXPECT_EQ(waiting(), 2);
  EXPECT_EQ(event_count(), 2U);
  finish_events();
  begin(kPool);
  EXPECT_EQ(waiting(), 0);
  data[0] = allocator().allocate(kMiB);
  EXPECT_EQ(addresses.count(data[0].get()), 1U);
  end(kPool);
  data[0].clear();
  release_all(kPool);
}

TEST_F(NativePoolsTest, AnAllocatorThatThrowsIsGivenNothingTwice) {
  const auto own = std::make_shared<OwnAllocator>();
  const std::int64_t before = reserved();
  allocator().createOrIncrefPool(0, kPool, own);
  begin(kPool);
  allocator().allocate(3 * kMiB).clear();
  allocator().allocate(kMiB).clear();
  end(kPool);
  allocator().releasePool(0, kPool);
  allocator().releasePool(0, kPool);
  own->throws = true;
  EXPECT_NE(message_of([] { allocator().emptyCache(kPool); }).find("from the user's allocator"),
            std::string::npos);
  EXPECT_EQ(own->freed, 1);
  own->throws = false;
  allocator().emptyCache(kPool);
  EXPECT_EQ(own->freed, 2);
  EXPECT_EQ(reserved(), before);
}

// Whoever registered the memory with others must undo that while it is there.
TEST_F(NativePoolsTest, TrackersHearThatASegmentGoesBeforeItDoes) {
  const auto own = std::make_shared<OwnAllocator>();
  allocator().createOrIncrefPool(0, kPool, own);
  begin(kPool);
  allocator().allocate(3 * kMiB).clear();
  allocator().allocate(kMiB).clear();
  end(kPool);
  allocator().releasePool(0, kPool);
  allocator().releasePool(0, kPool);
  std::vector<int> gone_when_heard;
  tracker_of_test() = [&](const TraceEntry& entry) {
    allocator().emptyCache(kPool);  // whose news would come too late
    if (entry.action_ == TraceEntry::SEGMENT_FREE) {
      gone_when_heard.push_back(own->freed);
    }
  };
  allocator().raw_delete(allocator().raw_alloc(kMiB));
  EXPECT_EQ(own->freed, 0) << "a tracker's call gives nothing back";
  allocator().emptyCache(kPool);
  tracker_of_test() = nullptr;
  EXPECT_EQ(gone_when_heard, (std::vector<int>{0, 1}));
  EXPECT_EQ(own->freed, 2);
}

// As when a MemPool is destroyed while a graph is captured.
TEST_F(NativePoolsTest, AnOwnAllocatorsPoolReleasedWhileAnotherIsFilledGoesAfterwards) {
  constexpr PoolId kThird{0, 78};
  const auto own = std::make_shared<OwnAllocator>();
  const std::int64_t before = reserved();
  allocator().createOrIncrefPool(0, kPool, own);
  begin(kPool);
  allocator().allocate(kMiB).clear();
  end(kPool);
  begin(kOther);
  begin(kThird);
  allocator().releasePool(0, kPool);
  allocator().releasePool(0, kPool);
  allocator().emptyCache(kPool);
  end(kOther);
  EXPECT_EQ(own->freed, 0) << "a capture may still be under way";
  own->throws = true;  // which is not the affair of whoever ends another pool
  EXPECT_NO_THROW(end(kThird));
  EXPECT_EQ(own->freed, 1);
  EXPECT_EQ(reserved(), before);
  release_all(kOther);
  release_all(kThird);
}

// The default stream of each thread has the same handle.
TEST_F(NativePoolsTest, PerThreadStreamsOfAnOwnAllocatorsPoolAreKeptApart) {
  const auto own = std::make_shared<OwnAllocator>();
  allocator().createOrIncrefPool(0, kPool, own);
  begin(kPool);
  current().stream = per_thread_stream();
  c10::DataPtr mine = allocator().allocate(kMiB);
  void* const address = mine.get();
  mine.clear();
  std::thread([address] {
    current().stream = per_thread_stream();
    EXPECT_NE(allocator().allocate(kMiB).get(), address);
  }).join();
  mine = allocator().allocate(kMiB);
  EXPECT_EQ(mine.get(), address);
  end(kPool);
  // And this thread cannot record on that one's.
  std::thread([&mine] { allocator().recordStream(mine, external(per_thread_stream())); }).join();
  notes().clear();
  mine.clear();
  EXPECT_EQ(notes(), std::vector<std::string>{"record 1"}) << "the legacy stream waits for all";
  finish_events();
  release_all(kPool);
  EXPECT_EQ(own->freed, static_cast<int>(own->sizes.size()));
}

TEST_F(NativePoolsTest, AnAllocatorThatHasNothingIsAnOutOfMemoryError) {
  const auto own = std::make_shared<OwnAllocator>();
  own->empty = true;
  allocator().createOrIncrefPool(0, kPool, own);
  begin(kPool);
  EXPECT_THROW(allocator().allocate(kMiB), c10::OutOfMemoryError);
  end(kPool);
  release_all(kPool);
}

}  // namespace
}  // namespace nofrag::test
