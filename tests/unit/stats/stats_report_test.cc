#include "stats/stats_report.h"

#include <cstddef>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "stats/metrics_text.h"

namespace nofrag {
namespace {

// Every number different, so that a swapped pair of fields shows.
DeviceStats sample_stats() {
  DeviceStats s;
  s.requested = Bytes(1001);
  s.live = Bytes(1536);
  s.pending = Bytes(512);
  s.allocated = Bytes(2048);
  s.mapped_in_use = 8 * kMiB;
  s.reserved = 16 * kMiB;
  s.limit = kNoLimit;
  s.largest_free_run = 9 * kMiB;
  s.free_handles = 8 * kMiB;
  s.stranded = 8 * kMiB - Bytes(2048);
  s.free_ends = Bytes(7168);
  s.composable = Bytes(4096);
  s.pinned = 4 * kMiB;
  s.peak_live = Bytes(5000);
  s.peak_allocated = Bytes(6000);
  s.peak_reserved = 24 * kMiB;
  s.live_blocks = 3;
  s.allocations = 11;
  s.frees = 8;
  s.failed_allocations = 2;
  s.pools = 4;
  for (std::size_t i = 0; i < s.rungs.size(); ++i) {
    s.rungs[i] = 100 + i;
  }
  return s;
}

StatsReport sample_report() {
  StatsReport report;
  report.pid = 4711;
  report.driver = "sim:h100-80g";
  report.ledger.calls[static_cast<std::size_t>(DriverCall::kCreate)] = 5;
  report.ledger.microseconds[static_cast<std::size_t>(DriverCall::kCreate)] = 67.5;
  report.devices.push_back({1, "a \"GPU\"", true, sample_stats()});
  return report;
}

constexpr std::pair<const char*, std::size_t> kFields[] = {
#define NOFRAG_DEVICE_STAT(field, value, unit, doc) {#field, offsetof(nofrag_device_stats, field)},
#include "stats/device_stats.def"
#undef NOFRAG_DEVICE_STAT
};

TEST(DeviceStatsStructure, FollowsTheListWithoutGaps) {
  std::size_t offset = 8;
  for (const auto& [name, at] : kFields) {
    EXPECT_EQ(at, offset) << name;
    offset += 8;
  }
  EXPECT_EQ(offset, offsetof(nofrag_device_stats, reserved));
  // Never another size: callers pass theirs.
  EXPECT_EQ(sizeof(nofrag_device_stats), 264U);
  EXPECT_EQ(sizeof(nofrag_oom_report), 152U);
}

TEST(StatsReport, JsonTextAndStructureAgree) {
  const StatsReport report = sample_report();
  const nlohmann::json json = parse_json(stats_json(report));
  const std::string text = stats_text(report);
  const nofrag_device_stats c = to_c_stats(report.devices[0].stats);
  const nlohmann::json& device = json.at("devices").at(0);
  for (const auto& [name, at] : kFields) {
    std::uint64_t value = 0;
    std::memcpy(&value, reinterpret_cast<const char*>(&c) + at, sizeof value);
    EXPECT_EQ(device.at(name).get<std::uint64_t>(), value) << name;
    const std::string shown = value == UINT64_MAX ? "none" : std::to_string(value);
    const std::size_t line = text.find("  " + std::string(name) + " ");
    ASSERT_NE(line, std::string::npos) << name;
    EXPECT_EQ(text.substr(text.find_first_not_of(' ', line + 2 + std::strlen(name)), shown.size()),
              shown)
        << name;
  }
  EXPECT_EQ(c.requested_bytes, 1001U);
  EXPECT_EQ(c.rung_own_free, 101U);
  EXPECT_EQ(c.rung_pressure_callbacks, 106U);
}

TEST(StatsReport, JsonShape) {
  const nlohmann::json json = parse_json(stats_json(sample_report()));
  EXPECT_EQ(json.at("schema"), "nofrag.stats/1");
  EXPECT_EQ(json.at("schema_version"), 1);
  EXPECT_EQ(json.at("nofrag_version"), NOFRAG_VERSION_STRING);
  EXPECT_EQ(json.at("pid"), 4711);
  EXPECT_EQ(json.at("driver").at("name"), "sim:h100-80g");
  EXPECT_EQ(json.at("driver").at("calls").at("create"), 5);
  EXPECT_EQ(json.at("driver").at("calls").size(), kDriverCallCount);
  EXPECT_DOUBLE_EQ(json.at("driver").at("microseconds").at("create"), 67.5);
  EXPECT_DOUBLE_EQ(json.at("driver").at("total_microseconds"), 67.5);
  EXPECT_EQ(json.at("devices").at(0).at("name"), "a \"GPU\"");
  EXPECT_EQ(json.at("devices").at(0).at("backend"), "vmm");
}

TEST(StatsReport, NoDeviceUsed) {
  StatsReport report;
  report.driver = "cuda";
  EXPECT_TRUE(parse_json(stats_json(report)).at("devices").empty());
}

TEST(StatsReport, FirstTextLineNamesThePage) {
  const std::string text = stats_text(sample_report());
  EXPECT_NE(text.substr(0, text.find('\n')).find("docs/stats.md"), std::string::npos);
}

TEST(StatsPage, HoldsTheTable) {
  std::ifstream file(std::string(NOFRAG_SOURCE_DIR) + "/docs/stats.md");
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_NE(page.str().find(stats_table()), std::string::npos)
      << "docs/stats.md must hold this table:\n"
      << stats_table();
}

TEST(OomReport, StructureHoldsTheNumbers) {
  OomReport report;
  report.requested = Bytes(77);
  report.stats = sample_stats();
  report.driver_free = Bytes(88);
  report.driver_total = Bytes(99);
  report.limit_reached = true;
  report.stream = StreamId(0x1234);
  const nofrag_oom_report c = to_c_report(3, report);
  EXPECT_EQ(c.struct_size, sizeof c);
  EXPECT_EQ(c.device, 3);
  EXPECT_EQ(c.limit_reached, 1);
  EXPECT_EQ(c.stream, reinterpret_cast<void*>(0x1234));
  EXPECT_EQ(c.requested_bytes, 77U);
  EXPECT_EQ(c.driver_free_bytes, 88U);
  EXPECT_EQ(c.driver_total_bytes, 99U);
  EXPECT_EQ(c.live_bytes, 1536U);
  EXPECT_EQ(c.pending_bytes, 512U);
  EXPECT_EQ(c.reserved_bytes, (16 * kMiB).count());
  EXPECT_EQ(c.limit_bytes, UINT64_MAX);
  EXPECT_EQ(c.free_handles_bytes, (8 * kMiB).count());
  EXPECT_EQ(c.stranded_bytes, (8 * kMiB).count() - 2048);
  EXPECT_EQ(c.largest_free_run_bytes, (9 * kMiB).count());
  EXPECT_EQ(c.free_ends_bytes, 7168U);
  EXPECT_EQ(c.composable_bytes, 4096U);
}

TEST(StatsReport, SummaryIsTwoLinesADevice) {
  StatsReport report;
  report.pid = 42;
  DeviceStats stats;
  stats.peak_live = 10 * kGiB;
  stats.peak_reserved = 11 * kGiB;
  stats.allocations = 7;
  stats.rungs[static_cast<std::size_t>(Rung::kOwnFree)] = 5;
  stats.rungs[static_cast<std::size_t>(Rung::kGrow)] = 1;
  stats.rungs[static_cast<std::size_t>(Rung::kFailed)] = 1;
  report.devices.push_back({3, "a card", true, stats});
  report.ledger.calls[0] = 12;
  report.ledger.microseconds[0] = 3450;
  EXPECT_EQ(stats_summary(report),
            "nofrag: process 42, device 3: peak live 10.00 GiB, peak reserved 11.00 GiB (1.100 of "
            "it); 3.5 ms in "
            "12 driver calls\n"
            "nofrag: process 42, device 3: 7 allocations, served by: own free 5, grown 1, out of "
            "memory 1\n");
  EXPECT_EQ(stats_summary(StatsReport{}), "");
}

TEST(StatsReport, WhatPassedNofragByIsSaidWhereThereWasAny) {
  StatsReport report;
  report.pid = 42;
  EXPECT_EQ(stats_json(report).find("passed_on"), std::string::npos);
  PassedOn passed;
  passed.device = 1;
  passed.now[static_cast<std::size_t>(PassedOnKind::kCreated)] = 3 * kGiB;
  passed.now[static_cast<std::size_t>(PassedOnKind::kManaged)] = kMiB;
  passed.total = 3 * kGiB;
  passed.peak = 4 * kGiB;
  passed.uncounted = 2;
  report.passed_on.push_back(passed);
  EXPECT_EQ(
      stats_summary(report),
      "nofrag: process 42, device 1: passed on to the driver: peak 4.00 GiB; now created 3.00 "
      "GiB, managed 1.00 MiB; 2 calls took more, of unknown size\n");
  const auto told = parse_json(stats_json(report))["passed_on"][0];
  EXPECT_EQ(told["device"], 1);
  EXPECT_EQ(told["total_bytes"], (3 * kGiB).count());
  EXPECT_EQ(told["peak_bytes"], (4 * kGiB).count());
  EXPECT_EQ(told["created_bytes"], (3 * kGiB).count());
  EXPECT_EQ(told["managed_bytes"], kMiB.count());
  EXPECT_EQ(told["pools_bytes"], 0);
  EXPECT_EQ(told["uncounted_calls"], 2);
  const std::string metrics = metrics_text(report, {});
  EXPECT_NE(metrics.find("nofrag_passed_on_bytes{device=\"1\",pool=\"all\",pid=\"42\",kind="
                         "\"created\"} 3221225472\n"),
            std::string::npos)
      << metrics;
  EXPECT_NE(
      metrics.find("nofrag_passed_on_uncounted_total{device=\"1\",pool=\"all\",pid=\"42\"} 2\n"),
      std::string::npos);
}

}  // namespace
}  // namespace nofrag
