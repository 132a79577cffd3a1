// What frameworks need beside blocks: counted pools that lend and are put back, the walk, the watch, memory for
// others. The bytes behind every address are checked on the simulated driver.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "device_fixture.h"

namespace nofrag {
namespace {

constexpr PoolKey kOther{2, 2};

class FrameworksTest : public DeviceFixture {
 protected:
  VirtAddr in_pool(Bytes size, PoolKey pool = kFirst, StreamId stream = kA) {
    const Result<VirtAddr> address = allocator_->allocate_in_pool(size, stream, pool);
    return address.ok() ? written(address.value(), size, stream) : VirtAddr();
  }
  void forget(VirtAddr address) { tags_.erase(address.value()); }
  void restore_checkpoints(Bytes memory);

  // Every mapped byte once: no two spans share a physical byte, and their sum is what is reserved.
  void expect_whole_walk() {
    Bytes sum;
    std::map<std::uint64_t, std::map<std::uint64_t, std::uint64_t>> seen;  // handle -> begin -> end
    allocator_->walk([&](const MemorySpan& span) {
      sum += span.size;
      if (span.state == MemorySpan::State::kLive) {
        EXPECT_EQ(allocator_->device().value(), 0);
      }
    });
    EXPECT_EQ(sum, allocator_->stats().reserved);
  }
  [[nodiscard]] Bytes walked(MemorySpan::State state) const {
    Bytes sum;
    allocator_->walk(
        [&](const MemorySpan& span) { sum += span.state == state ? span.size : Bytes(0); });
    return sum;
  }
};

// ---- pools

TEST_F(FrameworksTest, ARetainedPoolServesWithoutBeingFilled) {
  start(64 * kMiB);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  const VirtAddr block = in_pool(4 * kMiB);
  EXPECT_EQ(pool_of(block), kFirst);
  EXPECT_EQ(pool_of(allocate(kMiB)), PoolKey{});
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  EXPECT_EQ(allocator_->release_pool(kFirst).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->allocate_in_pool(kMiB, kA, kFirst).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->retain_pool(PoolKey{}).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->retain_pool(PoolKey{UINT64_MAX, 1}).code(), Errc::kInvalidArgument);
}

TEST_F(FrameworksTest, OnlyReleasedPoolsAreTrimmed) {
  start(64 * kMiB);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  free(in_pool(8 * kMiB));
  const VirtAddr other = allocate(4 * kMiB);
  free(other);
  sim_->complete_all();
  EXPECT_EQ(allocator_->trim_pool(kFirst).value(), Bytes(0));
  ASSERT_TRUE(allocator_->release_pool(kFirst).ok());
  EXPECT_EQ(allocator_->trim_pool(kFirst).value(), 8 * kMiB);
  EXPECT_EQ(allocator_->stats().reserved, 4 * kMiB) << "the default pool keeps its own";
  EXPECT_EQ(allocator_->trim_pool(kFirst).code(), Errc::kInvalidArgument) << "it is gone";
  EXPECT_EQ(allocator_->trim_pool(PoolKey{}).code(), Errc::kInvalidArgument);
}

TEST_F(FrameworksTest, ALendingPoolServesWhatWouldFail) {
  start(32 * kMiB);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  const VirtAddr lent = in_pool(16 * kMiB);
  free(lent);
  const VirtAddr rest = allocate(16 * kMiB);
  EXPECT_TRUE(allocate(8 * kMiB).is_null());
  ASSERT_TRUE(allocator_->lend_when_short(kFirst, true).ok());
  EXPECT_TRUE(allocate(8 * kMiB, kB).is_null()) << "freed on another stream";
  const VirtAddr block = allocate(8 * kMiB);
  EXPECT_EQ(block, lent);
  EXPECT_EQ(pool_of(block), kFirst);
  ASSERT_TRUE(allocator_->retain_pool(kOther).ok());
  EXPECT_TRUE(in_pool(8 * kMiB, kOther).is_null()) << "to the default pool only";
  free(block);
  ASSERT_TRUE(allocator_->lend_when_short(kFirst, false).ok());
  EXPECT_TRUE(allocate(8 * kMiB).is_null());
  EXPECT_EQ(allocator_->lend_when_short(PoolKey{5, 5}, true).code(), Errc::kInvalidArgument);
  free(rest);
}

TEST_F(FrameworksTest, APoolIsPutBackToWhatLivedInIt) {
  start(64 * kMiB);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  const VirtAddr kept = in_pool(6 * kMiB);
  const VirtAddr died = in_pool(3 * kMiB + Bytes(512));
  const VirtAddr small = in_pool(Bytes(700));
  const std::vector<PoolBlock> then{
      {kept, 6 * kMiB, kA}, {died, 3 * kMiB + Bytes(512), kA}, {small, Bytes(700), kA}};
  free(died);
  free(small);
  const VirtAddr over = in_pool(2 * kMiB);
  const VirtAddr over_too = in_pool(5 * kMiB);
  forget(over);
  forget(over_too);
  ASSERT_TRUE(allocator_->restore_pool(kFirst, then).ok());
  EXPECT_EQ(allocator_->stats().live_blocks, 3U);
  for (const PoolBlock& block : then) {
    EXPECT_EQ(allocator_->find(block.address).value().requested, block.requested);
    EXPECT_EQ(pool_of(block.address), kFirst);
  }
  EXPECT_EQ(allocator_->free(over_too).code(), Errc::kUnknownPointer);
  written(died, 3 * kMiB + Bytes(512), kA);
  written(small, Bytes(700), kA);
  // And to nothing.
  tags_.clear();
  ASSERT_TRUE(allocator_->restore_pool(kFirst, {}).ok());
  EXPECT_EQ(allocator_->stats().live_blocks, 0U);
}

TEST_F(FrameworksTest, PlacesThatAreNotThePoolsAreNotRestored) {
  start(64 * kMiB);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  const VirtAddr mine = in_pool(2 * kMiB);
  const VirtAddr others = allocate(2 * kMiB);
  const VirtAddr second = in_pool(2 * kMiB);
  const VirtAddr gone = in_pool(2 * kMiB);
  free(gone);
  const auto refused = [&](std::vector<PoolBlock> wanted) {
    wanted.push_back({gone, 2 * kMiB, kA});  // this one could be had
    const std::uint64_t frees = allocator_->stats().frees;
    EXPECT_EQ(allocator_->restore_pool(kFirst, wanted).code(), Errc::kNotReady);
    EXPECT_TRUE(allocator_->find(mine).ok());
    EXPECT_TRUE(allocator_->find(second).ok());
    EXPECT_EQ(allocator_->find(gone).code(), Errc::kUnknownPointer);
    EXPECT_EQ(allocator_->stats().live_blocks, 3U);
    EXPECT_EQ(allocator_->stats().frees, frees);
    allocator_->check();
  };
  refused({{others, 2 * kMiB, kA}});
  refused({{mine, 2 * kMiB, kA}, {VirtAddr(0x1000), kMiB, kA}});
  refused({{mine + 2 * kMiB, Bytes(UINT64_MAX), kA}});
  refused({{mine, 2 * kMiB, kA}, {mine + kMiB, kMiB, kA}});    // in one that stays
  refused({{mine, kMiB, kA}, {mine + Bytes(512), kMiB, kA}});  // in one another
  EXPECT_EQ(allocator_->restore_pool(PoolKey{9, 9}, {}).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->restore_pool(PoolKey{}, {}).code(), Errc::kInvalidArgument);
  free(others);
}

// A block whose free waits does not come back before it is done; whether it is, is asked.
TEST_F(FrameworksTest, AWaitingBlockIsRestoredOnceItsStreamsAreDone) {
  start(64 * kMiB);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  const VirtAddr pending = in_pool(2 * kMiB);
  const VirtAddr surplus = in_pool(2 * kMiB);
  use_on(pending, kA, kB);
  free(pending);
  const std::vector<PoolBlock> waiting{{pending, 2 * kMiB, kA}};
  EXPECT_EQ(allocator_->restore_pool(kFirst, waiting).code(), Errc::kNotReady);
  EXPECT_TRUE(allocator_->find(surplus).ok());
  sim_->complete_all();
  forget(surplus);
  EXPECT_TRUE(allocator_->restore_pool(kFirst, waiting).ok());
  EXPECT_TRUE(allocator_->find(pending).ok());
  // And one that is in the way and would have to wait is a place that is taken.
  const VirtAddr away = pending;
  EXPECT_TRUE(allocator_->free(away).ok());
  const VirtAddr over = in_pool(2 * kMiB);
  ASSERT_EQ(over, away);
  use_on(over, kA, kB);
  const std::vector<PoolBlock> smaller{{away, kMiB, kA}};
  EXPECT_EQ(allocator_->restore_pool(kFirst, smaller).code(), Errc::kNotReady);
  EXPECT_TRUE(allocator_->find(over).ok());
  sim_->complete_all();
  free(over);
}

// What it frees and allocates is part of the job's history, from which its future is told.
TEST_F(FrameworksTest, TheTimelineHearsOfWhatIsPutBack) {
  start(64 * kMiB);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  const VirtAddr block = in_pool(6 * kMiB);
  forget(block);
  ASSERT_TRUE(allocator_->restore_pool(kFirst, {}).ok());
  EXPECT_EQ(allocator_->timeline().frees(), 1U);
  EXPECT_EQ(allocator_->timeline().freed_bytes(), (6 * kMiB).count());
  EXPECT_EQ(allocator_->timeline().live(), 0U);
  const std::vector<PoolBlock> then{{block, 6 * kMiB, kA}};
  ASSERT_TRUE(allocator_->restore_pool(kFirst, then).ok());
  EXPECT_EQ(allocator_->timeline().allocations(), 2U);
  EXPECT_EQ(allocator_->timeline().live(), (6 * kMiB).count());
  // A block that is lent is one too.
  ASSERT_TRUE(allocator_->free(block).ok());
  ASSERT_TRUE(allocator_->lend_when_short(kFirst, true).ok());
  const VirtAddr most = allocate(56 * kMiB);
  ASSERT_FALSE(most.is_null());
  const std::uint64_t before = allocator_->timeline().allocations();
  const VirtAddr lent = allocate(6 * kMiB);
  EXPECT_EQ(pool_of(lent), kFirst);
  EXPECT_EQ(allocator_->timeline().allocations(), before + 1);
  free(lent);
  free(most);
}

// A per-thread default stream has one name in all threads: the block that comes back may be another thread's.
TEST_F(FrameworksTest, ARestoredBlockOfAnotherThreadsDefaultStreamWaitsForIt) {
  constexpr StreamId kPerThread{2};
  start(64 * kMiB);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  VirtAddr block;
  std::thread([&] {
    block = in_pool(2 * kMiB, kFirst, kPerThread);
    free(block);
  }).join();
  const std::vector<PoolBlock> then{{block, 2 * kMiB, kPerThread}};
  ASSERT_TRUE(allocator_->restore_pool(kFirst, then).ok());
  ASSERT_TRUE(allocator_->free(block).ok());
  EXPECT_EQ(allocator_->stats().pending, 2 * kMiB);
  sim_->complete_all();
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().pending, Bytes(0));
}

// Checkpoints of random programs: whatever was allocated since, exactly what lived comes back.
// With little memory it lies at several addresses.
TEST_F(FrameworksTest, AnyCheckpointCanBeRestored) {
  for (const Bytes memory : {256 * kMiB, 44 * kMiB}) {
    restore_checkpoints(memory);
  }
}

void FrameworksTest::restore_checkpoints(Bytes memory) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed << " memory " << memory.mib());
  std::mt19937 random(seed);
  start(memory);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  std::vector<PoolBlock> live;
  const auto churn = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      if (live.size() < 12 && random() % 5 < 3) {
        const Bytes size(1 + random() % (8 << 20));
        const Result<VirtAddr> made = allocator_->allocate_in_pool(size, kA, kFirst);
        ASSERT_TRUE(made.ok() || memory < 100 * kMiB);
        if (made.ok()) {
          live.push_back({made.value(), size, kA});
        }
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        ASSERT_TRUE(allocator_->free(live.back().address).ok());
        live.pop_back();
      }
    }
  };
  for (int round = 0; round < 20; ++round) {
    churn(15);
    const std::vector<PoolBlock> then = live;
    churn(25);
    ASSERT_TRUE(allocator_->restore_pool(kFirst, then).ok());
    live = then;
    EXPECT_EQ(allocator_->stats().live_blocks, then.size());
    for (const PoolBlock& block : then) {
      EXPECT_EQ(allocator_->find(block.address).value().address, block.address);
    }
    allocator_->check();
  }
  ASSERT_TRUE(allocator_->restore_pool(kFirst, {}).ok());
  EXPECT_TRUE(recorder_->aliases() > 0 || memory > 100 * kMiB);
}

// ---- the walk and the watch

TEST_F(FrameworksTest, TheWalkTellsEveryByteOnce) {
  start(64 * kMiB, 4 * kMiB);
  const VirtAddr a = allocate(6 * kMiB);
  const VirtAddr b = allocate(3 * kMiB);
  const VirtAddr c = allocate(kMiB);
  expect_whole_walk();
  EXPECT_EQ(walked(MemorySpan::State::kLive), 10 * kMiB);
  use_on(b, kA, kB);
  free(b);
  EXPECT_EQ(walked(MemorySpan::State::kPending), 3 * kMiB);
  free(a);
  expect_whole_walk();
  sim_->complete_all();
  free(c);
  expect_whole_walk();
}

// With little memory, so that free memory is mapped at several addresses.
TEST_F(FrameworksTest, TheWalkAndTheWatchAgreeUnderPressure) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  start(48 * kMiB, 4 * kMiB);
  std::map<std::uint64_t, std::pair<Bytes, std::uint64_t>> mapped;  // address -> size, handle
  std::map<std::uint64_t, int> addresses;                           // handle -> how many
  Bytes reserved;
  allocator_->set_watch([&](const MemoryEvent& event) {
    reserved = event.reserved;
    if (event.kind == MemoryEvent::Kind::kMapped) {
      EXPECT_TRUE(
          mapped.emplace(event.address.value(), std::pair(event.size, event.handle)).second);
      EXPECT_EQ(event.only, ++addresses[event.handle] == 1);
    } else if (event.kind == MemoryEvent::Kind::kUnmapped) {
      const auto found = mapped.find(event.address.value());
      ASSERT_NE(found, mapped.end());
      EXPECT_EQ(found->second, std::pair(event.size, event.handle));
      mapped.erase(found);
      EXPECT_EQ(event.only, --addresses[event.handle] == 0);
    }
  });
  std::vector<VirtAddr> live;
  for (int step = 0; step < 400; ++step) {
    const VirtAddr made = random() % 3 > 0 ? allocate(Bytes(1 + random() % (9 << 20))) : VirtAddr();
    if (!made.is_null()) {
      live.push_back(made);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      free(live.back());
      live.pop_back();
    }
    sim_->complete_all();
    if (step % 20 == 0) {
      expect_whole_walk();
      EXPECT_EQ(reserved, allocator_->stats().reserved);
      EXPECT_EQ(mapped.size(), recorder_->mappings());
    }
  }
  EXPECT_GT(recorder_->aliases(), 0U);
  for (const VirtAddr address : live) {
    free(address);
  }
  allocator_->trim();
  EXPECT_TRUE(mapped.empty());
}

TEST_F(FrameworksTest, AWatchIsToldOfWhatIsThereFirst) {
  start(64 * kMiB);
  const VirtAddr block = allocate(10 * kMiB);
  Bytes created;
  Bytes mapped;
  allocator_->set_watch([&](const MemoryEvent& event) {
    created += event.kind == MemoryEvent::Kind::kCreated ? event.size : Bytes(0);
    mapped += event.kind == MemoryEvent::Kind::kMapped ? event.size : Bytes(0);
  });
  const Bytes before = allocator_->stats().reserved;
  EXPECT_EQ(created, before);
  EXPECT_EQ(mapped, before);
  allocator_->set_watch({});
  const VirtAddr more = allocate(20 * kMiB);
  EXPECT_EQ(created, before) << "it was taken off";
  free(block);
  free(more);
}

TEST_F(FrameworksTest, FreesThatWaitAreToldOfTwice) {
  start(64 * kMiB);
  std::vector<std::pair<MemoryEvent::Kind, VirtAddr>> told;
  allocator_->set_watch([&](const MemoryEvent& event) {
    if (event.kind >= MemoryEvent::Kind::kFreeDeferred) {
      told.emplace_back(event.kind, event.address);
    }
  });
  const VirtAddr plain = allocate(kMiB);
  const VirtAddr shared = allocate(kMiB);
  use_on(shared, kA, kB);
  free(plain);
  EXPECT_TRUE(told.empty());
  free(shared);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0], std::pair(MemoryEvent::Kind::kFreeDeferred, shared));
  sim_->complete_all();
  allocator_->trim();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[1], std::pair(MemoryEvent::Kind::kFreeCompleted, shared));
}

TEST_F(FrameworksTest, PlainDevicesTellTheSame) {
  start(64 * kMiB, 4 * kMiB, false);
  Bytes reserved;
  allocator_->set_watch([&](const MemoryEvent& event) { reserved = event.reserved; });
  const VirtAddr block = allocate(5 * kMiB);
  EXPECT_EQ(reserved, 5 * kMiB);
  EXPECT_EQ(walked(MemorySpan::State::kLive), 5 * kMiB);
  EXPECT_EQ(allocator_->parts_of(block).code(), Errc::kNotSupported);
  EXPECT_EQ(allocator_->export_part(block, 1).code(), Errc::kNotSupported);
  ASSERT_TRUE(allocator_->retain_pool(kFirst).ok());
  EXPECT_EQ(allocator_->restore_pool(kFirst, {}).code(), Errc::kNotSupported);
  EXPECT_TRUE(allocator_->grant_access(DeviceOrdinal(0)).ok());
  free(block);
  EXPECT_EQ(reserved, Bytes(0));
}

}  // namespace
}  // namespace nofrag
