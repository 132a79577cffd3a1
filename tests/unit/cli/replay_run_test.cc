#include "cli/replay/replay_run.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/replay/replay_report.h"
#include "cli/replay/replay_session.h"
#include "trace_of.h"

namespace nofrag {
namespace {

ReplayRun run(const std::string& body,
              std::string_view allocator,
              std::optional<Bytes> capacity = {}) {
  const Trace trace = trace_of(body);
  const DeviceTarget target = DeviceTarget::parse("sim:h100-80g");
  ReplaySession session(trace, target, {});
  return session.run(allocator, capacity, {});
}

TEST(ReplayRun, CompletesOnEveryAllocator) {
  for (const std::string_view allocator : replay_allocators()) {
    const ReplayRun done = run("0,a,0,1000,0\n10,a,1,5000000,7\n20,f,0,1000,0\n", allocator);
    EXPECT_TRUE(done.completed) << allocator;
    EXPECT_FALSE(done.oom.has_value());
    EXPECT_EQ(done.events_replayed, 3U);
    EXPECT_GE(done.peak_reserved, Bytes(5000000)) << allocator;
    EXPECT_GT(*done.driver_us, 0) << allocator;
  }
}

TEST(ReplayRun, OutOfMemoryNamesTheEventAndTheNumbers) {
  const std::string body =
      "0,a,0,41943040,0\n1,a,1,41943040,0\n2,f,0,41943040,0\n3,a,2,104857600,0\n";
  for (const std::string_view allocator : replay_allocators()) {
    const ReplayRun done = run(body, allocator, 100 * kMiB);
    EXPECT_FALSE(done.completed) << allocator;
    ASSERT_TRUE(done.oom.has_value()) << allocator;
    EXPECT_EQ(done.oom->event, 3U);
    EXPECT_EQ(done.oom->requested, 100 * kMiB);
    EXPECT_EQ(done.oom->live, 40 * kMiB);
    EXPECT_EQ(done.oom->cause, "capacity") << "100 + 40 MiB cannot fit in 100";
    EXPECT_EQ(done.events_replayed, 3U);
  }
}

TEST(ReplayRun, CauseIsFragmentationOnlyIfTheBytesWereThere) {
  EXPECT_EQ(oom_cause(100 * kMiB, 40 * kMiB, 60 * kMiB), "fragmentation");
  EXPECT_EQ(oom_cause(100 * kMiB, 40 * kMiB, 60 * kMiB + Bytes(1)), "capacity");
  EXPECT_EQ(oom_cause(100 * kMiB, 140 * kMiB, Bytes(1)), "capacity");
  EXPECT_EQ(oom_cause(100 * kMiB, Bytes(0), 60 * kMiB), "capacity")
      << "where nothing is live, nothing lies in the way";
  // PyTorch's two streams cannot share a cache that one block pins.
  const std::string body =
      "0,a,0,83886080,0\n1,f,0,83886080,0\n2,a,1,20971520,0\n3,a,2,62914560,5\n";
  const ReplayRun native = run(body, "torch-native", 100 * kMiB);
  ASSERT_TRUE(native.oom.has_value());
  EXPECT_EQ(native.oom->cause, "fragmentation");
  EXPECT_EQ(native.oom->free_granules, 60 * kMiB);
}

TEST(ReplayRun, ALimitOfItsOwnIsTheCauseAndIsNamed) {
  const Trace trace = trace_of("0,a,0,41943040,0\n1,a,1,41943040,0\n");
  const DeviceTarget target = DeviceTarget::parse("sim:h100-80g");
  ReplaySettings settings;
  settings.options.limit = 60 * kMiB;
  ReplaySession session(trace, target, settings);
  const ReplayRun limited = session.run("nofrag", {}, {});
  ASSERT_TRUE(limited.oom.has_value());
  EXPECT_EQ(limited.oom->cause, "limit") << "the device has 79 GiB";
  EXPECT_EQ(limited.oom->limit, 60 * kMiB);
  EXPECT_TRUE(session.run("torch-native", {}, {}).completed) << "the limit is nofrag's";
  // A device that is smaller than the limit: the limit refuses nothing.
  const ReplayRun small = session.run("nofrag", 50 * kMiB, {});
  ASSERT_TRUE(small.oom.has_value());
  EXPECT_EQ(small.oom->cause, "capacity");
  EXPECT_FALSE(small.oom->limit.has_value());
  settings.options = {};
  settings.options.memory_fraction = 0.0005;
  ReplaySession fraction(trace, target, settings);
  EXPECT_EQ(fraction.run("nofrag", {}, {}).oom->cause, "limit");
}

TEST(ReplayRun, EmptyAllocationsReachNoAllocator) {
  for (const std::string_view allocator : replay_allocators()) {
    const ReplayRun done = run("0,a,0,0,0\n1,f,0,0,0\n", allocator);
    EXPECT_TRUE(done.completed);
    EXPECT_EQ(done.peak_reserved, Bytes(0)) << allocator;
  }
}

TEST(ReplayRun, QuartersAddUpAndFollowTheTracesClock) {
  // All growth in the third quarter of the time.
  const ReplayRun done = run(
      "0,a,0,0,0\n600,a,1,4000000,0\n700,a,2,400000000,0\n1000,f,1,4000000,0\n", "torch-native");
  const auto& quarters = done.driver_us_quarters;
  EXPECT_EQ(quarters[0], 0);
  EXPECT_EQ(quarters[1], 0);
  EXPECT_GT(quarters[2], 0);
  EXPECT_EQ(quarters[3], 0);
  EXPECT_DOUBLE_EQ(quarters[0] + quarters[1] + quarters[2] + quarters[3], *done.driver_us);
}

TEST(ReplayRun, PlainFreesWaitForTheDevice) {
  const ReplayRun done = run("0,a,0,4000000,0\n1000,f,0,4000000,0\n", "driver");
  EXPECT_GE(*done.driver_us, 500) << "work queued before a free is done 500 us later";
}

TEST(ReplayRun, StreamLagDelaysReuseAcrossStreams) {
  // Block 0 is last used by stream 7 and reused by stream 0 300 us later.
  const std::string body = "0,a,0,104857600,0\n100,f,0,104857600,7\n400,a,1,104857600,0\n";
  const Trace trace = trace_of(body);
  const DeviceTarget target = DeviceTarget::parse("sim:h100-80g");
  ReplaySettings settings;
  ReplaySession slow(trace, target, settings);
  settings.stream_lag_us = 0;
  ReplaySession fast(trace, target, settings);
  EXPECT_EQ(slow.run("torch-native", {}, {}).peak_reserved, 200 * kMiB);
  EXPECT_EQ(fast.run("torch-native", {}, {}).peak_reserved, 100 * kMiB);
}

TEST(ReplayRun, LedgerIsThatOfTheLoopAndAddsUp) {
  for (const std::string_view allocator : replay_allocators()) {
    const ReplayRun done = run("0,a,0,5000000,3\n10,f,0,5000000,3\n", allocator);
    ASSERT_TRUE(done.ledger.has_value()) << allocator;
    EXPECT_NEAR(done.ledger->total_microseconds(), *done.driver_us, 1e-6) << allocator;
    EXPECT_GT(done.ledger->total_calls(), 0U) << allocator;
  }
}

TEST(ReplayRun, SameInputGivesTheSameReportButForHostTime) {
  std::string body;
  for (int i = 0; i < 300; ++i) {
    body += std::to_string(i * 10) + ",a," + std::to_string(i) + "," +
            std::to_string(1000 + i * 77777 % 9000000) + "," + std::to_string(i % 3) + "\n";
    if (i % 3 != 0) {
      body += std::to_string(i * 10 + 5) + ",f," + std::to_string(i) + "," +
              std::to_string(1000 + i * 77777 % 9000000) + ",0\n";
    }
  }
  const auto report = [&] {
    TraceReport out;
    const Trace trace = trace_of(body);
    out.trace = summarize("t.csv", trace);
    const DeviceTarget target = DeviceTarget::parse("sim:h100-80g");
    ReplaySession session(trace, target, {});
    for (const std::string_view allocator : replay_allocators()) {
      out.runs.push_back(session.run(allocator, 2 * kGiB, {}));
      out.runs.back().host_ns = 0;
      out.min_capacity.push_back(
          {std::string(allocator), session.min_capacity(allocator, nullptr, {})});
    }
    return replay_json({out}).dump();
  };
  EXPECT_EQ(report(), report());
}

}  // namespace
}  // namespace nofrag
