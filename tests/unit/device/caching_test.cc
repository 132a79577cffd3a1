// What a thread frees it may have back without the lock; and nobody else may see it as a block meanwhile.
#include <set>

#include "base/event_sink.h"
#include "cache_fixture.h"

namespace nofrag {
namespace {

constexpr PoolKey kPool{1, 1};

class CachingTest : public CacheFixture {};

TEST_F(CachingTest, AHitIsTheSameBlockAndNoDriverCall) {
  open();
  const VirtAddr block = kept_block(1000 * kKiB);
  recorder_->take();
  const std::uint64_t hits = rung(Rung::kOwnFree);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(allocate(1000 * kKiB), block);
    EXPECT_EQ(kept(), Bytes(0));
    free(block);
  }
  EXPECT_EQ(recorder_->take(), Calls{}) << "not even a question";
  EXPECT_EQ(rung(Rung::kOwnFree), hits + 100);
  EXPECT_EQ(stats().allocations, 101U);
  EXPECT_EQ(stats().frees, 101U);
  EXPECT_EQ(stats().live_blocks, 0U);
}

TEST_F(CachingTest, ABlockServesItsWholeClass) {
  open();
  const VirtAddr block = kept_block(Bytes(9 * 512 + 1));  // 10 units; the class goes up to 10
  EXPECT_EQ(allocate(Bytes(9 * 512 + 7)), block);
  EXPECT_EQ(allocator_->find(block).value().requested, Bytes(9 * 512 + 7));
  EXPECT_EQ(stats().requested, Bytes(9 * 512 + 7));
  free(block);
  EXPECT_NE(allocate(Bytes(11 * 512)), block) << "larger";
  EXPECT_NE(allocate(Bytes(512)), block) << "far smaller";
}

TEST_F(CachingTest, ALargeBlockComesBackUntilAnotherIsFreed) {
  open();
  const VirtAddr large = kept_block(6 * kMiB);
  recorder_->take();
  EXPECT_EQ(allocate(6 * kMiB), large);
  EXPECT_EQ(recorder_->take(), Calls{});
  free(large);
  const VirtAddr other = allocate(5 * kMiB);  // finds the heap as if nothing were kept
  EXPECT_EQ(kept(), Bytes(0));
  EXPECT_EQ(other, large) << "the lowest address";
}

TEST_F(CachingTest, OffByOption) {
  Options options = small_handles();
  options.thread_caches = false;
  open(4 * kGiB, options);
  free(allocate(4 * kKiB));
  EXPECT_EQ(kept(), Bytes(0));
}

TEST_F(CachingTest, BlocksOfOtherStreamsUseAreNotKept) {
  open();
  keep(1, 64 * kKiB);
  const VirtAddr block = allocate(64 * kKiB);
  use_on(block, kA, kB);
  free(block);
  EXPECT_EQ(kept(), Bytes(0));
  EXPECT_EQ(stats().pending, 64 * kKiB);
}

// ---- kept blocks are nobody's

TEST_F(CachingTest, AKeptBlockIsUnknownToAll) {
  open();
  for (const Bytes size : {4 * kKiB, kMiB, 6 * kMiB}) {
    const VirtAddr block = kept_block(size);
    const auto expect_unknown = [&] {
      EXPECT_EQ(allocator_->free(block).code(), Errc::kUnknownPointer);
      EXPECT_EQ(allocator_->find(block).code(), Errc::kUnknownPointer);
      EXPECT_EQ(allocator_->find(block + Bytes(100)).code(), Errc::kUnknownPointer);
      EXPECT_EQ(allocator_->pin(block).code(), Errc::kUnknownPointer);
      EXPECT_EQ(allocator_->pin(block + Bytes(512)).code(), Errc::kUnknownPointer);
      EXPECT_EQ(allocator_->record_stream(block, kB).code(), Errc::kUnknownPointer);
    };
    const DeviceStats before = stats();
    expect_unknown();
    other(expect_unknown);          // a thread without a cache
    other([&] { keep(1, size); });  // and with one
    other(expect_unknown);
    EXPECT_EQ(stats().live, before.live);
    EXPECT_EQ(stats().frees, before.frees + 1) << "the other thread's one";
    EXPECT_EQ(stats().requested, Bytes(0));
    allocator_->check();
    allocator_->trim();
  }
}

TEST_F(CachingTest, DoubleFreesAreFoundWhereverTheBlockLies) {
  open();
  // Magazines here and in the depot, and what found no room any more.
  const std::vector<VirtAddr> blocks = allocate_many(1200, 8 * kKiB);
  free_all(blocks);
  ASSERT_GT(kept(), kMiB) << "the depot has some";
  const auto free_again = [&] {
    for (const VirtAddr block : blocks) {
      ASSERT_EQ(allocator_->free(block).code(), Errc::kUnknownPointer);
    }
  };
  free_again();
  other([&] { keep(1, 8 * kKiB); });
  other(free_again);
  allocator_->trim();
  free_again();
  EXPECT_EQ(stats().frees, 1201U);
  EXPECT_EQ(stats().live_blocks, 0U);
}

TEST_F(CachingTest, FreedByAnotherThreadItIsThatThreadsToKeep) {
  open();
  other([&] { keep(1, 64 * kKiB); });
  const VirtAddr block = allocate(64 * kKiB, kA);
  other([&] {
    free(block);
    EXPECT_EQ(allocate(64 * kKiB), block);
    free(block);
  });
}

// ---- single blocks

TEST_F(CachingTest, SingleBlocksGoThroughCaches) {
  open();
  keep(1, 512 * kKiB);
  allocator_->trim();
  keep(1, 4 * kKiB);
  const Result<VirtAddr> single = allocator_->allocate_single(512 * kKiB, kA);
  ASSERT_TRUE(single.ok());
  free(written(single.value(), 512 * kKiB, kA));
  EXPECT_GE(kept(), 512 * kKiB);
  recorder_->take();
  EXPECT_EQ(allocate(512 * kKiB), single.value());
  EXPECT_EQ(recorder_->take(), Calls{});
  free(single.value());
  const Result<VirtAddr> again = allocator_->allocate_single(512 * kKiB, kA);
  ASSERT_TRUE(again.ok());
  free(written(again.value(), 512 * kKiB, kA));
  allocator_->check();
}

TEST_F(CachingTest, ASingleBlockMayHaveWhatThreadsKeep) {
  open(16 * kMiB);
  const std::vector<VirtAddr> all = allocate_many(16, kMiB);
  other([&] { free_all(all); });
  EXPECT_GE(kept(), 4 * kMiB);
  const Result<VirtAddr> single = allocator_->allocate_single(4 * kMiB, kA);
  ASSERT_TRUE(single.ok());
  free(written(single.value(), 4 * kMiB, kA));
}

// ---- pools

TEST_F(CachingTest, APoolThatIsFilledGetsNoKeptBlock) {
  open();
  std::set<VirtAddr> known;
  const std::vector<VirtAddr> blocks = allocate_many(8, 256 * kKiB);
  known.insert(blocks.begin(), blocks.end());
  free_all(blocks);
  const Bytes before = kept();
  ASSERT_EQ(before, 2 * kMiB);
  begin_pool(kPool, kA);
  std::vector<VirtAddr> pooled = allocate_many(8, 256 * kKiB);
  for (const VirtAddr block : pooled) {
    EXPECT_EQ(pool_of(block), kPool);
    EXPECT_FALSE(known.contains(block)) << "kept memory of another pool";
  }
  free(pooled.back());
  pooled.pop_back();
  EXPECT_LE(kept(), before) << "nothing is kept while a pool is filled";
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kPool).ok());
  free_all(pooled);
  EXPECT_LE(kept(), before) << "nor of a pool afterwards";
  EXPECT_TRUE(known.contains(allocate(256 * kKiB))) << "on again";
  ASSERT_TRUE(allocator_->release_pool(kPool).ok());
}

TEST_F(CachingTest, WhileAPoolIsFilledTheDefaultPoolsFreesAreNotKeptEither) {
  open();
  const std::vector<VirtAddr> blocks = allocate_many(2, 256 * kKiB);
  free(blocks[0]);
  begin_pool(kPool, kB);
  const Bytes before = kept();
  free(blocks[1]);
  EXPECT_LE(kept(), before);
  const VirtAddr block = allocate(256 * kKiB, kA);
  EXPECT_EQ(pool_of(block), PoolKey{});
  free(block);
  EXPECT_LE(kept(), before);
  ASSERT_TRUE(allocator_->end_allocate_to_pool(kPool).ok());
  ASSERT_TRUE(allocator_->release_pool(kPool).ok());
}

// Whatever a pool may have without caches it may have with them.
TEST_F(CachingTest, APoolMayHaveMemoryThatOnlyCachesHold) {
  for (const bool caches : {false, true}) {
    caches_ = caches;
    open(16 * kMiB);
    work_is_done_at_once();
    keep(64, 256 * kKiB, kA);
    free(allocate(kMiB, kB));
    free(allocate(2 * kMiB, kB));  // asks how far the streams have come
    begin_pool(kPool, kA);
    EXPECT_FALSE(allocate(8 * kMiB).is_null()) << (caches ? "with caches" : "without");
    ASSERT_TRUE(allocator_->end_allocate_to_pool(kPool).ok());
    ASSERT_TRUE(allocator_->release_pool(kPool).ok());
  }
}

// ---- events

class Listener final : public EventSink {
 public:
  void on_event(const AllocatorEvent& event) override {
    ++counts[static_cast<std::size_t>(event.kind)];
  }
  [[nodiscard]] int of(EventKind kind) const { return counts[static_cast<std::size_t>(kind)]; }
  int counts[32] = {};
};

TEST_F(CachingTest, WhoeverReadsEventsMissesNone) {
  open();
  keep(16, 64 * kKiB);
  other([&] { keep(16, 64 * kKiB); });
  Listener listener;
  allocator_->set_event_sink(&listener);
  EXPECT_EQ(kept(), Bytes(0));
  EXPECT_EQ(listener.of(EventKind::kFreeCompleted), 0) << "their free was requested before";
  const auto job = [&] {
    for (int i = 0; i < 10; ++i) {
      keep(5, 64 * kKiB);
    }
  };
  job();
  other(job);
  EXPECT_EQ(listener.of(EventKind::kAlloc), 100);
  EXPECT_EQ(listener.of(EventKind::kFreeRequested), 100);
  EXPECT_EQ(listener.of(EventKind::kFreeCompleted), 100);
  EXPECT_EQ(kept(), Bytes(0));
  allocator_->set_event_sink(nullptr);
  keep(1, 64 * kKiB);
  EXPECT_EQ(kept(), 64 * kKiB);
  EXPECT_EQ(listener.of(EventKind::kAlloc), 100);
}

}  // namespace
}  // namespace nofrag
