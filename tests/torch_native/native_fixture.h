// NativeTest: PyTorch's allocator interface on nofrag, on the simulated device, as libc10_cuda sees it.
//
// Owns: nothing; the allocator is the process's. Layer: tests. Threads: the test's.
// Invariants: every test leaves no live block and no pool behind, and checks that.
// Failure: an exception in SetUp ends the test.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>

#include <nofrag/frameworks.h>

#include "fake_platform.h"
#include "torch_plugin/native/adapter.h"
#include "torch_plugin/native/native_allocator.h"

namespace nofrag::test {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using native::PoolId;
using torch_cuda::SegmentInfo;
using torch_cuda::TraceEntry;

constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

class NativeTest : public testing::Test {
 public:
  using Stats = torch_cuda::DeviceStats;

  NativeTest() {
    current() = {};
    notes().clear();
    if (!allocator().initialized()) {
      allocator().init(1);
    }
    allocator().setMemoryFraction(1.0, 0);
    allocator().emptyCache({0, 0});
    allocator().resetPeakStats(0);
    allocator().resetAccumulatedStats(0);
    live_before_ = allocated();
  }
  ~NativeTest() override {
    allocator().recordHistory(false, nullptr, 1, torch_cuda::RecordContext::NEVER, true, {});
    EXPECT_EQ(allocated(), live_before_) << "the test left blocks behind";
    EXPECT_EQ(nofrag_check(0), NOFRAG_OK);
  }

  static torch_cuda::CUDAAllocator& allocator() { return native::adapter(); }
  static Stats stats() { return allocator().getDeviceStats(0); }
  static std::int64_t allocated() { return stats().allocated_bytes[0].current; }
  static std::int64_t reserved() { return stats().reserved_bytes[0].current; }
  static std::vector<SegmentInfo> segments(PoolId pool = {0, 0}) {
    return allocator().snapshot(pool, false).segments;
  }
  static std::vector<TraceEntry> trace() {
    auto traces = allocator().snapshot({0, 0}, true).device_traces;
    return traces.empty() ? std::vector<TraceEntry>() : traces.front();
  }
  static c10::cuda::CUDAStream external(cudaStream_t handle) {
    return c10::cuda::getStreamFromExternal(handle, 0);
  }
  static c10::cuda::CUDAStream stream(std::uintptr_t number) {
    return external(stream_number(number));
  }
  // The calling thread's own default stream.
  static cudaStream_t per_thread_stream() {
    return reinterpret_cast<cudaStream_t>(std::uintptr_t{2});  // NOLINT(performance-no-int-to-ptr)
  }
  // What an exception says, or "" if none came.
  template <typename Call>
  static std::string message_of(Call call) {
    try {
      call();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return {};
  }

 private:
  std::int64_t live_before_ = 0;
};

// What PyTorch's free-memory callback of the tests frees when memory is short, under test_mutex()
// (native_limits_test.cc).
c10::DataPtr& spare();
std::mutex& test_mutex();

// Trackers cannot be taken off again: this one does what the test at hand wants.
inline std::function<void(const TraceEntry&)>& tracker_of_test() {
  static std::function<void(const TraceEntry&)> wanted;
  static std::once_flag once;
  std::call_once(once, [] {
    NativeTest::allocator().attachAllocatorTraceTracker([](const TraceEntry& entry) {
      if (wanted) {
        wanted(entry);
      }
    });
  });
  return wanted;
}

// The sums of all are those of small and large; what is there now is what came less what went, unless a reset
// has forgotten some of it.
inline void expect_sums(const NativeTest::Stats& stats, bool was_reset) {
  for (const auto& array : {stats.allocation,
                            stats.allocated_bytes,
                            stats.active,
                            stats.active_bytes,
                            stats.requested_bytes,
                            stats.reserved_bytes}) {
    EXPECT_EQ(array[0].current, array[1].current + array[2].current);
    EXPECT_EQ(array[0].allocated, array[1].allocated + array[2].allocated);
    EXPECT_EQ(array[0].freed, array[1].freed + array[2].freed);
    for (const auto& stat : array) {
      EXPECT_GE(stat.allocated, 0);
      EXPECT_GE(stat.freed, 0);
      EXPECT_GE(stat.peak, stat.current);
      if (!was_reset) {
        EXPECT_EQ(stat.current, stat.allocated - stat.freed);
      }
    }
  }
}

// What the sums of a snapshot's segments must be, by PyTorch's own definition, and are.
inline void expect_consistent(const std::vector<SegmentInfo>& segments,
                              const NativeTest::Stats& stats) {
  struct Sums {
    std::int64_t reserved = 0;
    std::int64_t allocated = 0;
    std::int64_t active = 0;
    std::int64_t requested = 0;
    std::int64_t allocations = 0;
    std::int64_t actives = 0;
  };
  Sums sums[3];
  std::size_t end = 0;
  for (const SegmentInfo& segment : segments) {
    EXPECT_GE(segment.address, end) << "segments overlap";
    end = segment.address + segment.total_size;
    std::size_t tiled = 0;
    std::size_t requested = 0;
    for (const std::size_t kind : {std::size_t{0}, std::size_t{segment.is_large ? 2U : 1U}}) {
      Sums& s = sums[kind];
      s.reserved += static_cast<std::int64_t>(segment.total_size);
      s.allocated += static_cast<std::int64_t>(segment.allocated_size);
      s.active += static_cast<std::int64_t>(segment.active_size);
      s.requested += static_cast<std::int64_t>(segment.requested_size);
      for (const auto& block : segment.blocks) {
        s.allocations += block.allocated ? 1 : 0;
        s.actives += block.active ? 1 : 0;
        EXPECT_TRUE(block.active || !block.allocated);
      }
    }
    for (const auto& block : segment.blocks) {
      tiled += block.size;
      requested += block.active ? block.requested_size : 0;
    }
    EXPECT_EQ(tiled, segment.total_size);
    EXPECT_EQ(requested, segment.requested_size);
  }
  expect_sums(stats, true);
  for (std::size_t kind = 0; kind < 3; ++kind) {
    SCOPED_TRACE(kind);
    EXPECT_EQ(stats.reserved_bytes[kind].current, sums[kind].reserved);
    EXPECT_EQ(stats.allocated_bytes[kind].current, sums[kind].allocated);
    EXPECT_EQ(stats.active_bytes[kind].current, sums[kind].active);
    EXPECT_EQ(stats.requested_bytes[kind].current, sums[kind].requested);
    EXPECT_EQ(stats.allocation[kind].current, sums[kind].allocations);
    EXPECT_EQ(stats.active[kind].current, sums[kind].actives);
  }
}

}  // namespace nofrag::test
