// What a report's page is made of, on traces small enough to work out by hand.
#include <ctime>
#include <memory>

#include <gtest/gtest.h>

#include <nofrag/trace_format.h>

#include "cli/replay/replay_session.h"
#include "cli/report/address_map.h"
#include "cli/report/report_page.h"
#include "cli/report/run_observer.h"
#include "cli/report/trace_digest.h"
#include "trace/record/recording.h"
#include "trace/trace_builder.h"

namespace nofrag {
namespace {

// Blocks 0: 1 MiB for [0, 30), 1: 2 MiB for [10, 20), 2: 1 MiB from 20 on.
Trace sample() {
  TraceBuilder builder(TraceUnit::kEvent);
  EXPECT_TRUE(builder.add_allocation(1000, 0, (1 * kMiB).count(), 0));
  EXPECT_TRUE(builder.add_allocation(1010, 1, (2 * kMiB).count(), 5));
  EXPECT_TRUE(builder.add_free(1020, 1, 0, 5));
  EXPECT_TRUE(builder.add_allocation(1020, 2, (1 * kMiB).count(), 0));
  EXPECT_TRUE(builder.add_free(1030, 0, 0, 0));
  return builder.finish(TraceFormat::kCsv);
}

TEST(TraceDigest, LiveByBuckets) {
  const TraceDigest digest = digest_trace(sample(), 2, 10);
  ASSERT_EQ(digest.live.size(), 3U);
  EXPECT_EQ(digest.live[0].highest, 3 * kMiB);
  EXPECT_EQ(digest.live[1].highest, 3 * kMiB) << "what was live when the bucket began counts";
  EXPECT_EQ(digest.live[1].last, 2 * kMiB);
  EXPECT_EQ(digest.live[2].last, 1 * kMiB);
  EXPECT_EQ(digest.live[2].time_us, 30U);
  EXPECT_EQ(digest.peak_events, 2U);
}

TEST(TraceDigest, GroupsBySizeOrSite) {
  Trace trace = sample();
  TraceDigest digest = digest_trace(trace, 1, 10);
  ASSERT_EQ(digest.groups.size(), 2U);
  EXPECT_FALSE(digest.by_site);
  EXPECT_EQ(digest.groups[0].bytes_at_peak, 2 * kMiB);
  EXPECT_EQ(digest.groups[1].allocations, 2U);
  EXPECT_EQ(digest.groups[1].blocks_at_peak, 1U);
  trace.site_names = {"a", "b"};
  trace.sites = {0, 1, 1};
  digest = digest_trace(trace, 1, 1);
  ASSERT_EQ(digest.groups.size(), 1U) << "no more rows than asked for";
  EXPECT_EQ(digest.groups[0].name, "b");
  EXPECT_EQ(digest.groups[0].allocations, 2U);
  EXPECT_EQ(digest.biggest[0].site, "b");
}

// Two ways to one call site are one row; its stack is that of its largest block at the peak.
TEST(TraceDigest, CallSitesOfOneNameAreOneGroup) {
  Trace trace = sample();
  trace.site_names = {"a", "b", "b"};
  trace.site_frames = {{"a"}, {"b", "small"}, {"b", "large"}};
  trace.sites = {1, 2, 0};
  const TraceDigest digest = digest_trace(trace, 1, 10);
  ASSERT_EQ(digest.groups.size(), 2U);
  EXPECT_EQ(digest.groups[0].name, "b");
  EXPECT_EQ(digest.groups[0].allocations, 2U);
  EXPECT_EQ(digest.groups[0].frames, trace.site_frames[2]);
  EXPECT_EQ(digest.longest[0].frames, trace.site_frames[1]);
}

TEST(TraceDigest, SaysWhichRangesWereOpenAtThePeak) {
  Trace trace = sample();
  const std::uint64_t start = trace.events.front().time_us;
  const std::uint64_t peak = trace.events[digest_trace(trace, 1, 1).peak_events - 1].time_us;
  auto recording = std::make_shared<Recording>();
  recording->range_moments = {{start, 1, NOFRAG_TRACE_RANGE_PUSH, 0, "step"},
                              {start, 1, NOFRAG_TRACE_RANGE_PUSH, 0, "forward"},
                              {peak, 1, NOFRAG_TRACE_RANGE_POP, 0, ""},
                              {peak + 1, 1, NOFRAG_TRACE_RANGE_PUSH, 0, "backward"}};
  trace.recording = std::move(recording);
  const std::vector<std::string> open = {"step", "forward"};
  EXPECT_EQ(digest_trace(trace, 1, 10).ranges_at_peak, open);
}

TEST(TraceDigest, BiggestAndLongest) {
  const TraceDigest digest = digest_trace(sample(), 1, 2);
  ASSERT_EQ(digest.biggest.size(), 2U);
  EXPECT_EQ(digest.biggest[0].id, 1U);
  EXPECT_EQ(digest.biggest[1].id, 0U);
  EXPECT_EQ(digest.longest[0].id, 0U);
  EXPECT_EQ(digest.longest[0].to_us, 30U);
  EXPECT_TRUE(digest.longest[0].freed);
  EXPECT_EQ(digest.longest[1].id, 1U) << "as long as block 2, and larger";
}

TEST(TraceDigest, HistogramsCountEveryBlock) {
  const TraceDigest digest = digest_trace(sample(), 1, 1);
  ASSERT_EQ(digest.sizes.size(), 2U);
  EXPECT_EQ(digest.sizes[0].from, (1 * kMiB).count());
  EXPECT_EQ(digest.sizes[0].blocks, 2U);
  ASSERT_EQ(digest.lifetimes.size(), 2U);
  EXPECT_EQ(digest.lifetimes[0].from, 8U);
  EXPECT_EQ(digest.lifetimes[0].blocks, 2U);
  EXPECT_EQ(digest.lifetimes[1].from, 16U);
}

TEST(AddressMap, CellsAreAsFullAsTheirBytes) {
  const Trace trace = sample();
  const std::uint64_t base = 1ULL << 40;
  const std::uint64_t far = 1ULL << 44;
  const AddressMap map(trace, {base, base + (1 * kMiB).count(), far}, 5, {1, 2, 5});
  ASSERT_EQ(map.areas().size(), 2U) << "a wide gap is left out";
  EXPECT_EQ(map.areas()[0].address, base);
  EXPECT_EQ(map.areas()[1].address, far);
  ASSERT_EQ(map.moments().size(), 3U);
  const auto used = [&](std::size_t moment) {
    std::uint64_t full = 0;
    for (const char level : map.moments()[moment].levels) {
      full += static_cast<unsigned char>(level) == 255 ? map.cell_bytes() : 0;
    }
    return Bytes(full);
  };
  EXPECT_LE(used(0), 1 * kMiB);
  EXPECT_GT(used(0), 1 * kMiB - 8 * kKiB);
  EXPECT_LE(used(1), 3 * kMiB);
  EXPECT_GT(used(1), 3 * kMiB - 8 * kKiB);
  EXPECT_EQ(map.moments()[1].live, 3 * kMiB);
  EXPECT_EQ(map.moments()[1].blocks, 2U);
  EXPECT_EQ(map.moments()[2].time_us, 30U);
  EXPECT_EQ(map.moments()[2].levels.front(), 0) << "block 0 is gone";
  EXPECT_LE(map.moments()[2].levels.size(), AddressMap::kMostCells);
}

TEST(AddressMap, OnlyWhatHappened) {
  const AddressMap map(sample(), {512, 0, 0}, 1, {0, 1});
  ASSERT_EQ(map.moments().size(), 2U);
  EXPECT_EQ(map.moments()[0].blocks, 0U);
  EXPECT_EQ(map.moments()[1].live, 1 * kMiB);
}

TEST(ReportPage, TellsOfRefusalsAndTheLimit) {
  Trace trace = sample();
  TraceMark by_limit;
  by_limit.event = 2;
  by_limit.time_us = trace.events.front().time_us + 15;
  by_limit.requested = (6 * kMiB).count();
  by_limit.free_bytes = (70 * kMiB).count();
  by_limit.limit_bytes = (4 * kMiB).count();
  TraceMark by_driver = by_limit;
  by_driver.limit_bytes.reset();
  trace.marks = {by_limit, by_driver};
  const auto marks = report_details(trace, {}, {})["marks"];
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_EQ(marks[0].dump(),
            R"({"event":2,"time_us":15,"requested_bytes":6291456,"free_bytes":73400320,)"
            R"("limit_bytes":4194304})");
  EXPECT_TRUE(marks[1]["limit_bytes"].is_null());
}

TEST(ReportPage, NoTextEndsItsScript) {
  TraceReport report;
  report.trace.path = "</script><b>";
  const std::string page =
      report_page({report}, nlohmann::ordered_json::array({{{"x", "\"REPLAY\"</script>"}}}));
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_NE(page.find("\\u003c/script>\\u003cb>"), std::string::npos);
  EXPECT_NE(page.find("Chart.js v3"), std::string::npos) << "the library, with its licence";
}

// A look asks for counters, and walks over no memory: with all of it in small blocks that took most of the time.
TEST(RunObserver, LooksCostLittleBesideTheReplay) {
  constexpr std::uint64_t kBlocks = 60000;
  constexpr std::uint64_t kEach = 3 << 18;  // 768 KiB: more than one in each handle
  TraceBuilder builder(TraceUnit::kEvent);
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(builder.add_allocation(i, i, kEach, 0));
  }
  for (std::uint64_t i = 0; i < kBlocks / 2; ++i) {
    ASSERT_TRUE(builder.add_free(kBlocks + i, 2 * i, 0, 0));
  }
  const Trace trace = builder.finish(TraceFormat::kCsv);
  const DeviceTarget target = DeviceTarget::parse("sim:h100-80g");
  ReplaySettings settings;
  settings.options.handle_size = 2 * kMiB;
  ReplaySession session(trace, target, settings);
  const auto cpu_seconds = [&session](ReplayObserver* observer) {
    const std::clock_t before = std::clock();
    EXPECT_TRUE(session.run("nofrag", {}, {}, observer).completed);
    return static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  };
  const double plain = cpu_seconds(nullptr);
  const std::unique_ptr<RunObserver> observer = make_report_observer(trace);
  const double watched = cpu_seconds(observer.get());
  EXPECT_GT(observer->samples().size(), 1900U);
  EXPECT_LT(watched, 4 * plain + 0.1) << "2,000 looks";
}

}  // namespace
}  // namespace nofrag
