#include "cli/replay/replay_report.h"

#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace nofrag {
namespace {

TraceReport sample() {
  TraceReport report;
  report.trace = {
      "a/t.csv", TraceFormat::kCsv, 1234567, 700000, 534567, 2, 10 * kGiB, 5 * kMiB, 2000000};
  ReplayRun good;
  good.allocator = "nofrag";
  good.device = "sim:h100-80g";
  good.completed = true;
  good.peak_reserved = 11 * kGiB;
  good.events_replayed = 1234567;
  good.host_ns = 1234567.0 * 250;
  good.driver_us = 40000;
  good.driver_us_quarters = {10000, 20000, 5000, 5000};
  good.ledger = DriverLedger{};
  good.ledger->calls[static_cast<std::size_t>(DriverCall::kCreate)] = 3;
  good.ledger->microseconds[static_cast<std::size_t>(DriverCall::kCreate)] = 40.50049;
  good.ledger->calls[static_cast<std::size_t>(DriverCall::kEventQuery)] = 2;
  good.ledger->calls[static_cast<std::size_t>(DriverCall::kEventRecord)] = 5;
  good.ledger->calls[static_cast<std::size_t>(DriverCall::kStreamSynchronize)] = 7;
  ReplayRun bad = good;
  bad.allocator = "torch-native";
  bad.is_model = true;
  bad.completed = false;
  bad.capacity = 12 * kGiB;
  bad.oom = ReplayOom{93, kGiB, 9 * kGiB, 11 * kGiB, 2 * kGiB, "fragmentation"};
  report.runs = {good, bad};
  report.min_capacity = {{"nofrag", 10 * kGiB + 20 * kMiB}, {"torch-native", std::nullopt}};
  return report;
}

TEST(ReplayJson, HoldsTheContract) {
  const auto json = replay_json({sample()});
  EXPECT_EQ(json["schema"], "nofrag.replay/1");
  EXPECT_TRUE(json["nofrag_version"].is_string());
  const auto& trace = json["traces"][0];
  EXPECT_EQ(trace["path"], "a/t.csv");
  EXPECT_EQ(trace["format"], "csv");
  EXPECT_EQ(trace["events"], 1234567);
  EXPECT_EQ(trace["streams"], 2);
  EXPECT_EQ(trace["peak_live_bytes"], (10 * kGiB).count());
  const auto& good = trace["runs"][0];
  EXPECT_TRUE(good["oom"].is_null());
  EXPECT_TRUE(good["capacity_bytes"].is_null());
  EXPECT_FALSE(good.contains("model"));
  EXPECT_EQ(good["reserved_over_live"], 1.1);
  EXPECT_EQ(good["driver_us"], 40000);
  EXPECT_EQ(good["driver_us_percent_of_trace"], 2.0);
  EXPECT_EQ(good["driver_us_quarters"].size(), 4U);
  EXPECT_EQ(good["host_ns_per_event"], 250);
  const std::vector<std::string> calls = {
      "create", "map", "set_access", "unmap", "release", "malloc", "free", "sync", "event"};
  EXPECT_EQ(good["driver_calls"].size(), calls.size());
  for (const std::string& call : calls) {
    EXPECT_TRUE(good["driver_calls"].contains(call)) << call;
  }
  EXPECT_EQ(good["driver_calls"]["create"], 3);
  EXPECT_EQ(good["driver_calls"]["event"], 7);
  EXPECT_EQ(good["driver_calls"]["sync"], 7);
  EXPECT_EQ(good["driver_us_by_call"].dump(),
            R"({"create":{"calls":3,"us":40.5},"event_record":{"calls":5,"us":0.0},)"
            R"("event_query":{"calls":2,"us":0.0},"stream_synchronize":{"calls":7,"us":0.0}})");
  const auto& bad = trace["runs"][1];
  EXPECT_EQ(bad["model"], true);
  EXPECT_EQ(bad["completed"], false);
  EXPECT_EQ(bad["oom"]["event"], 93);
  EXPECT_EQ(bad["oom"]["requested_bytes"], kGiB.count());
  EXPECT_EQ(bad["oom"]["live_bytes"], (9 * kGiB).count());
  EXPECT_EQ(bad["oom"]["reserved_bytes"], (11 * kGiB).count());
  EXPECT_EQ(bad["oom"]["free_granule_bytes"], (2 * kGiB).count());
  EXPECT_EQ(bad["oom"]["cause"], "fragmentation");
  EXPECT_EQ(trace["min_capacity"][0]["over_live"], 1.001953);
  EXPECT_TRUE(trace["min_capacity"][1]["bytes"].is_null());
}

TEST(ReplayJson, UnknownDriverTimeIsNull) {
  TraceReport report = sample();
  report.runs[1].driver_us.reset();
  report.runs[1].ledger.reset();
  report.runs[1].driver_mallocs = 12;
  const auto json = replay_json({report});
  EXPECT_TRUE(json["traces"][0]["runs"][1]["driver_us"].is_null());
  EXPECT_TRUE(json["traces"][0]["runs"][1]["driver_us_quarters"].is_null());
  EXPECT_EQ(json["traces"][0]["runs"][1]["driver_calls"].dump(), R"({"malloc":12})");
  EXPECT_TRUE(json["traces"][0]["runs"][1]["driver_us_by_call"].is_null());
}

TEST(ReplayJson, HostTimeOfAFewEventsIsNotTold) {
  TraceReport report = sample();
  report.runs[0].host_ns = 7777000;
  report.runs[0].events_replayed = 1000;
  EXPECT_EQ(replay_json({report})["traces"][0]["runs"][0]["host_ns_per_event"], 7777);
  EXPECT_NE(replay_table({report}).find(" 7777 "), std::string::npos);
  report.runs[0].events_replayed = 999;
  EXPECT_TRUE(replay_json({report})["traces"][0]["runs"][0]["host_ns_per_event"].is_null());
  EXPECT_EQ(replay_table({report}).find(" 7785 "), std::string::npos);
}

TEST(ReplayJson, TracesWithoutLengthOrMemoryHaveNoRatios) {
  TraceReport report = sample();
  report.trace.duration_us = 0;
  report.trace.peak_live = Bytes(0);
  const auto json = replay_json({report});
  EXPECT_TRUE(json["traces"][0]["runs"][0]["driver_us_percent_of_trace"].is_null());
  EXPECT_TRUE(json["traces"][0]["runs"][0]["reserved_over_live"].is_null());
  EXPECT_FALSE(replay_table({report}).empty());
}

TEST(ReplayTable, FitsAHundredColumnsAndShowsTheNumbers) {
  TraceReport report = sample();
  report.trace.path = std::string(150, 'p') + "/end.csv";
  report.runs[0].driver_us = 213893300;  // longer than any recorded so far
  report.runs[1].oom->event = 5000000;
  report.trace.recorded_oom = {5000000, kGiB, 1234567, 1000 * kGiB, 1000 * kGiB};
  const std::string table = replay_table({report, sample()});
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;
  }
  for (const char* part : {"/end.csv",
                           "1,234,567 events",
                           "peak live 10.00 GiB",
                           "11.00 GiB",
                           "1.100",
                           "40.0",
                           "213893.3",
                           "2.00",
                           "250",
                           "1.002",
                           "none",
                           "completed",
                           "OOM, event 5,000,000",
                           "cause: fragmentation",
                           "note: 1,234,567 requests were refused",
                           "Lower is better"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

}  // namespace
}  // namespace nofrag
