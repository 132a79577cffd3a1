// Blocks and their statistics, one virtual function after the other.
#include <random>
#include <set>
#include <thread>

#include <c10/util/env.h>

#include "native_fixture.h"

namespace nofrag::test {
namespace {

class NativeBlocksTest : public NativeTest {};

TEST_F(NativeBlocksTest, ADataPtrOwnsItsBlock) {
  {
    const c10::DataPtr data = allocator().allocate(1000);
    EXPECT_NE(data.get(), nullptr);
    EXPECT_EQ(data.get(), data.get_context());
    EXPECT_EQ(data.get_deleter(), allocator().raw_deleter());
    EXPECT_EQ(data.device(), c10::Device(c10::kCUDA, 0));
    EXPECT_TRUE(allocator().is_simple_data_ptr(data));
    EXPECT_EQ(stats().allocated_bytes[0].current, 1024);
    EXPECT_EQ(stats().requested_bytes[0].current, 1000);
  }
  EXPECT_EQ(stats().allocated_bytes[0].current, 0);
}

TEST_F(NativeBlocksTest, NoBytesGiveANullPointerThatMayBeFreed) {
  const c10::DataPtr data = allocator().allocate(0);
  EXPECT_EQ(data.get(), nullptr);
  EXPECT_EQ(data.get_deleter(), allocator().raw_deleter());
  EXPECT_EQ(allocator().raw_alloc(0), nullptr);
  allocator().raw_delete(nullptr);
  EXPECT_EQ(stats().allocation[0].allocated, 0);
}

TEST_F(NativeBlocksTest, RawBlocksLieOnTheNamedStream) {
  void* const first = allocator().raw_alloc(kMiB);
  void* const second = allocator().raw_alloc_with_stream(kMiB, stream_number(5));
  std::set<void*> streams;
  for (const SegmentInfo& segment : segments()) {
    streams.insert(segment.active_size > 0 ? segment.stream : nullptr);
  }
  EXPECT_EQ(streams.count(stream_number(5)), 1U);
  allocator().raw_delete(first);
  allocator().raw_delete(second);
}

TEST_F(NativeBlocksTest, RawAllocateAndDeallocateWorkThroughTheBaseClass) {
  c10::Allocator& base = allocator();
  void* const block = base.raw_allocate(777);
  EXPECT_EQ(stats().allocation[0].current, 1);
  base.raw_deallocate(block);
  const c10::DataPtr data = allocator().allocate(4096);
  const c10::DataPtr twin = base.clone(data.get(), 4096);
  EXPECT_NE(twin.get(), data.get());
  EXPECT_EQ(notes(), std::vector<std::string>{"copy 4096"});
}

TEST_F(NativeBlocksTest, SecondFreesAndForeignPointersAreRefusedAsPyTorchDoes) {
  void* const block = allocator().raw_alloc(512);
  allocator().raw_delete(block);
  EXPECT_NE(message_of([&] { allocator().raw_delete(block); }).find("invalid device pointer"),
            std::string::npos);
  int on_the_host = 0;
  EXPECT_NE(
      message_of([&] { allocator().raw_delete(&on_the_host); }).find("invalid device pointer"),
      std::string::npos);
  EXPECT_NE(message_of([&] {
              std::size_t size = 0;
              allocator().getBaseAllocation(&on_the_host, &size);
            }).find("invalid device pointer"),
            std::string::npos);
}

TEST_F(NativeBlocksTest, SmallAndLargeBlocksAreCountedApart) {
  void* const small = allocator().raw_alloc(kMiB);
  void* const large = allocator().raw_alloc(kMiB + 1);
  const Stats now = stats();
  EXPECT_EQ(now.allocation[1].current, 1);
  EXPECT_EQ(now.allocation[2].current, 1);
  EXPECT_EQ(now.allocated_bytes[1].current, static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(now.allocated_bytes[2].current, static_cast<std::int64_t>(kMiB + 512));
  EXPECT_EQ(now.reserved_bytes[0].current,
            now.reserved_bytes[1].current + now.reserved_bytes[2].current);
  EXPECT_GT(now.segment[0].current, 0);
  EXPECT_GT(now.num_device_alloc, 0);
  EXPECT_EQ(now.max_split_size, -1);
  allocator().raw_delete(small);
  allocator().raw_delete(large);
}

TEST_F(NativeBlocksTest, PeaksAndSumsStartAgainWhenReset) {
  allocator().raw_delete(allocator().raw_alloc(64 * kMiB));
  EXPECT_EQ(stats().allocated_bytes[0].peak, static_cast<std::int64_t>(64 * kMiB));
  EXPECT_EQ(stats().allocated_bytes[0].freed, static_cast<std::int64_t>(64 * kMiB));
  EXPECT_GE(stats().reserved_bytes[0].peak, static_cast<std::int64_t>(64 * kMiB));
  allocator().emptyCache({0, 0});
  EXPECT_EQ(reserved(), 0);
  allocator().resetPeakStats(0);
  allocator().resetAccumulatedStats(0);
  const Stats now = stats();
  EXPECT_EQ(now.allocated_bytes[0].peak, 0);
  EXPECT_EQ(now.reserved_bytes[0].peak, 0);
  EXPECT_EQ(now.reserved_bytes[2].peak, 0);
  EXPECT_EQ(now.allocated_bytes[0].freed, 0);
  EXPECT_EQ(now.num_device_alloc, 0);
  EXPECT_EQ(now.num_device_free, 0);
  EXPECT_EQ(now.num_sync_all_streams, 0);
}

TEST_F(NativeBlocksTest, ABlockUsedElsewhereStaysActiveAfterItsFree) {
  c10::DataPtr data = allocator().allocate(4 * kMiB);
  allocator().recordStream(data, stream(3));
  const void* const address = data.get();
  data.clear();
  EXPECT_EQ(stats().allocation[0].current, 0);
  EXPECT_EQ(stats().active[0].current, 1);
  EXPECT_EQ(stats().active_bytes[0].current, static_cast<std::int64_t>(4 * kMiB));
  expect_consistent(segments(), stats());
  const c10::DataPtr other = allocator().allocate(4 * kMiB);
  EXPECT_NE(other.get(), address);
  allocator().emptyCache({0, 0});  // waits for the streams
  EXPECT_EQ(stats().active[0].current, 1);
}

TEST_F(NativeBlocksTest, ReservedSumsAddUpAfterAReset) {
  std::vector<c10::DataPtr> held;
  held.push_back(allocator().allocate(64 * kMiB));
  held.clear();
  allocator().resetAccumulatedStats(0);
  expect_sums(stats(), true);
  for (int i = 0; i < 30; ++i) {  // no call of the driver: large bytes become small ones
    held.push_back(allocator().allocate(kMiB));
  }
  EXPECT_GT(stats().reserved_bytes[1].allocated, 0);
  expect_sums(stats(), true);
  allocator().resetAccumulatedStats(0);
  held.clear();  // and large ones again
  EXPECT_GT(stats().reserved_bytes[1].freed, 0);
  expect_sums(stats(), true);
  allocator().emptyCache({0, 0});
  expect_sums(stats(), true);
}

TEST_F(NativeBlocksTest, UsesOnItsOwnStreamOrOfForeignMemoryCountForNothing) {
  c10::DataPtr data = allocator().allocate(kMiB);
  allocator().recordStream(data, stream(0));
  data.clear();
  EXPECT_EQ(stats().active[0].current, 0);
  int on_the_host = 0;
  allocator().recordStream(c10::DataPtr(&on_the_host, c10::Device(c10::kCUDA, 0)), stream(3));
  allocator().recordStream(c10::DataPtr(nullptr, c10::Device(c10::kCUDA, 0)), stream(3));
  // By PyTorch's stream class, as torch.accelerator does.
  c10::DataPtr more = allocator().allocate(kMiB);
  static_cast<c10::DeviceAllocator&>(allocator()).recordStream(more, stream(4).unwrap());
  more.clear();
  EXPECT_EQ(stats().active[0].current, 1);
  allocator().emptyCache({0, 0});
}

TEST_F(NativeBlocksTest, BaseAllocationIsTheBlock) {
  const c10::DataPtr data = allocator().allocate(3 * kMiB);
  std::size_t size = 0;
  void* const inside = static_cast<char*>(data.get()) + 1000;
  EXPECT_EQ(allocator().getBaseAllocation(inside, &size), data.get());
  EXPECT_EQ(size, 3 * kMiB);
  EXPECT_EQ(allocator().getBaseAllocation(data.get(), nullptr), data.get());
}

TEST_F(NativeBlocksTest, TheLargestBlockCountsIdleMemory) {
  allocator().raw_delete(allocator().raw_alloc(6 * kGiB));
  std::size_t largest = 0;
  allocator().cacheInfo(0, &largest);
  EXPECT_GE(largest, 6 * kGiB);
  allocator().emptyCache({0, 0});
  largest = 0;
  allocator().cacheInfo(0, &largest);
  EXPECT_EQ(largest, 3 * kGiB);  // what the platform says is free
}

TEST_F(NativeBlocksTest, MemoryInfoAndNameAreThePlatforms) {
  EXPECT_EQ(allocator().getMemoryInfo(0).second, 80 * kGiB);
  EXPECT_EQ(allocator().name(), "native");
  EXPECT_TRUE(allocator().initialized());
}

TEST_F(NativeBlocksTest, SegmentSizesAddUpToWhatIsReserved) {
  const c10::DataPtr large = allocator().allocate(30 * kMiB);
  const c10::DataPtr small = allocator().allocate(kKiB);
  std::size_t sum = 0;
  bool any_small = false;
  for (const auto& segment : allocator().getExpandableSegmentSizes(0)) {
    sum += segment.total_size;
    any_small = any_small || segment.is_small_pool;
  }
  EXPECT_EQ(sum, static_cast<std::size_t>(reserved()));
  EXPECT_TRUE(any_small);
}

TEST_F(NativeBlocksTest, CachingMayBeSwitchedOff) {
  EXPECT_TRUE(allocator().isEnabled());
  allocator().enable(false);
  EXPECT_FALSE(allocator().isEnabled());
  allocator().enable(true);
  EXPECT_TRUE(allocator().isEnabled());
}

TEST_F(NativeBlocksTest, RequestsAreRoundedAsTheSettingsSay) {
  c10::CachingAllocator::setAllocatorSettings("roundup_power2_divisions:4");
  const std::int64_t before = allocated();
  void* const block = allocator().raw_alloc(84 * kMiB);
  EXPECT_EQ(allocated() - before, static_cast<std::int64_t>(96 * kMiB));
  EXPECT_EQ(stats().requested_bytes[0].current, static_cast<std::int64_t>(84 * kMiB));
  allocator().raw_delete(block);
  c10::CachingAllocator::setAllocatorSettings("roundup_power2_divisions:1");
  void* const plain = allocator().raw_alloc(84 * kMiB);
  EXPECT_EQ(allocated() - before, static_cast<std::int64_t>(84 * kMiB));
  allocator().raw_delete(plain);
}

TEST_F(NativeBlocksTest, CopiesBetweenDevicesGoThroughThePeerCallWithoutPeerAccess) {
  const c10::DataPtr data = allocator().allocate(kMiB);
  int elsewhere = 0;
  allocator().memcpyAsync(data.get(), 0, &elsewhere, 0, 64, nullptr, false);
  allocator().memcpyAsync(data.get(), 0, &elsewhere, 1, 64, nullptr, true);
  allocator().memcpyAsync(data.get(), 0, &elsewhere, 1, 64, nullptr, false);
  allocator().memcpyAsync(&elsewhere, 1, data.get(), 0, 64, nullptr, false);
  allocator().memcpyAsync(&elsewhere, 0, &elsewhere, 1, 64, nullptr, false);
  EXPECT_EQ(
      notes(),
      (std::vector<std::string>{
          "copy_async 64", "copy_async 64", "peer 1->0 64", "peer 0->1 64", "copy_async 64"}));
}

TEST_F(NativeBlocksTest, PeerAccessIsTheRuntimesAndNofrags) {
  EXPECT_NE(message_of([] { allocator().enablePeerAccess(1, 0); }), "");  // no such device here
  EXPECT_EQ(notes(), std::vector<std::string>{"enable 1->0"});
}

// Frees that wait for a stream come to their end between two questions, since time goes on: asked again until none did.
void expect_consistent_now() {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const NativeTest::Stats before = NativeTest::stats();
    const std::vector<SegmentInfo> seen = NativeTest::segments();
    const NativeTest::Stats after = NativeTest::stats();
    if (before.active[0].freed == after.active[0].freed) {
      expect_consistent(seen, after);
      return;
    }
  }
  ADD_FAILURE() << "frees never came to an end";
}

// Everything that PyTorch's own test of its statistics holds together, over random programs.
TEST_F(NativeBlocksTest, SnapshotsAndCountersAgreeWhateverHappens) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&random](std::size_t n) { return random() % n; };
  std::vector<c10::DataPtr> held;
  for (int step = 0; step < 1500; ++step) {
    const std::size_t what = below(100);
    if (what < 55) {
      current().stream = stream_number(below(3));
      const std::size_t size = std::size_t{1} << below(27);
      held.push_back(allocator().allocate(size + below(size)));
    } else if (what < 90 && !held.empty()) {
      std::swap(held[below(held.size())], held.back());
      held.pop_back();
    } else if (what < 98 && !held.empty()) {
      allocator().recordStream(held[below(held.size())], stream(below(4)));
    } else if (what == 98) {
      allocator().emptyCache({0, 0});
    }
    if (step % 50 == 0) {
      // The fixture's reset came when nothing was there.
      expect_sums(stats(), false);
      expect_consistent_now();
    }
    if (HasFailure()) {
      break;
    }
  }
  held.clear();
  allocator().emptyCache({0, 0});
  expect_consistent(segments(), stats());
  EXPECT_EQ(stats().active[0].current, 0);
}

TEST_F(NativeBlocksTest, ManyThreadsLeaveNothingBehind) {
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      std::mt19937 random(thread);
      current().stream = stream_number(thread % 2);
      std::vector<c10::DataPtr> held;
      for (int i = 0; i < 3000; ++i) {
        if (held.size() < 20) {
          held.push_back(allocator().allocate(1 + random() % (512 * kKiB)));
        } else {
          std::swap(held[random() % held.size()], held.back());
          held.pop_back();
        }
        if (i % 500 == 0) {
          allocator().getDeviceStats(0);
          allocator().snapshot({0, 0}, true);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(stats().allocation[0].current, 0);
  EXPECT_EQ(stats().allocation[0].allocated, stats().allocation[0].freed);
  expect_consistent(segments(), stats());
}

// In every thread the same handle means another stream.
TEST_F(NativeBlocksTest, AnotherThreadsDefaultStreamIsAnotherStream) {
  current().stream = per_thread_stream();
  c10::DataPtr data = allocator().allocate(3 * kMiB);
  void* const address = data.get();
  std::thread([&data] { allocator().recordStream(data, external(per_thread_stream())); }).join();
  data.clear();
  EXPECT_EQ(stats().active[0].current, 1) << "that thread's work may still run";
  EXPECT_NE(allocator().allocate(3 * kMiB).get(), address);
  allocator().emptyCache({0, 0});  // waits for the device
  EXPECT_EQ(stats().active[0].current, 0);
  // One's own holds nothing up.
  data = allocator().allocate(3 * kMiB);
  allocator().recordStream(data, external(per_thread_stream()));
  data.clear();
  EXPECT_EQ(stats().active[0].current, 0);
}

}  // namespace
}  // namespace nofrag::test
