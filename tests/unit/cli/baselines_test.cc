// The models of PyTorch's policies against PyTorch itself: what an H100 with torch 2.11 measured on
// the same traces (docs/replay.md). Also: nofrag's own count against the simulated driver's.
#include <cmath>

#include <gtest/gtest.h>

#include "cli/replay/replay_session.h"
#include "trace/load_trace.h"

namespace nofrag {
namespace {

constexpr double kTolerance = 0.01;

struct Baseline {
  const char* trace;
  double peak_live_gib;
  double native_reserved;
  double native_min;
  double expandable_reserved;
  double expandable_min;
};

constexpr Baseline kBaselines[] = {
    {"gpt_varlen", 22.520, 1.318, 1.035, 1.053, 1.009},
    {"lora_ckpt", 10.285, 1.854, 1.167, 1.143, 1.012},
    {"llm_serve", 8.696, 1.207, 1.173, 1.023, 1.009},
};

class BaselinesTest : public testing::TestWithParam<Baseline> {};

double over(Bytes part, Bytes whole) {
  return static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

Trace load(const std::string& name) {
  Trace trace;
  const auto error =
      load_trace(std::string(NOFRAG_TRACES) + "/" + name + ".nofrag", TraceFormat::kAuto, &trace);
  EXPECT_FALSE(error.has_value()) << error->message();
  return trace;
}

TEST_P(BaselinesTest, ModelsAgreeWithPyTorch) {
  const Baseline& baseline = GetParam();
  const Trace trace = load(baseline.trace);
  EXPECT_NEAR(over(trace.peak_live, kGiB), baseline.peak_live_gib, 0.0005);
  const DeviceTarget target = DeviceTarget::parse("sim:h100-80g");
  ReplaySession session(trace, target, {});
  const auto check = [&](const char* allocator, double reserved, double min_capacity) {
    const ReplayRun run = session.run(allocator, {}, {});
    ASSERT_TRUE(run.completed);
    EXPECT_NEAR(over(run.peak_reserved, trace.peak_live) / reserved, 1, kTolerance) << allocator;
    const auto found = session.min_capacity(allocator, &run, {});
    ASSERT_TRUE(found.has_value());
    EXPECT_NEAR(over(*found, trace.peak_live) / min_capacity, 1, kTolerance) << allocator;
  };
  check("torch-native", baseline.native_reserved, baseline.native_min);
  check("torch-expandable", baseline.expandable_reserved, baseline.expandable_min);
}

INSTANTIATE_TEST_SUITE_P(Traces,
                         BaselinesTest,
                         testing::ValuesIn(kBaselines),
                         [](const testing::TestParamInfo<Baseline>& baseline) {
                           return std::string(baseline.param.trace);
                         });

// PyTorch itself held 78.2 GiB here, for 14.05 GiB live, and flushed its caches once.
TEST(MultistreamBaseline, NativeHoldsFiveTimesWhatIsLive) {
  const Trace trace = load("multistream8");
  EXPECT_NEAR(over(trace.peak_live, kGiB), 14.052, 0.0005);
  const DeviceTarget target = DeviceTarget::parse("sim:h100-80g");
  ReplaySession session(trace, target, {});
  const ReplayRun run = session.run("torch-native", {}, {});
  ASSERT_TRUE(run.completed);
  EXPECT_NEAR(over(run.peak_reserved, kGiB) / 78.2, 1, kTolerance);
  EXPECT_GT(run.ledger->count(DriverCall::kFree), 0U);
}

}  // namespace
}  // namespace nofrag
