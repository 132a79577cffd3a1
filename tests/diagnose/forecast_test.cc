// Headroom forecasts: on jobs that grow, early and near enough; on steady ones, silent. Seeds are printed.
#include "diagnose/forecast.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <gtest/gtest.h>

#include "diagnose/trends.h"
#include "simulate.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kMi = std::uint64_t{1} << 20;
constexpr std::uint64_t kGi = std::uint64_t{1} << 30;

struct Look {
  double at = 0;  // seconds
  Headroom headroom;
};

// A unit of work of a job that grows: `grow` in all, in one of several ways.
void grow(SimulatedJob* job, std::uint64_t seed, double size, std::uint64_t base_blocks) {
  const auto bytes = static_cast<std::uint64_t>(size);
  switch (seed % 4) {
    case 0:  // caches made anew, larger
      for (int i = 0; i < 4; ++i) {
        job->alloc(bytes / 4);
        if (job->blocks() > base_blocks + 4) {
          job->free_at(base_blocks);
        }
      }
      break;
    default:  // pages added
      while (job->live() < base_blocks * 64 * kMi + bytes) {
        job->alloc(2 * kMi);
      }
  }
}

struct JobRun {
  std::vector<Look> looks;
  double end = 0;  // when the capacity was reached, or the run over
};

JobRun growing(std::uint64_t seed, std::uint64_t capacity) {
  SimulatedJob job(seed);
  constexpr std::uint64_t kLayers = 64;
  job.load(kLayers * 64 * kMi, kLayers);
  const double units = job.uniform(40, 400);
  const double room = static_cast<double>(capacity - kLayers * 64 * kMi);
  const double noise = job.uniform(0.01, 0.08) * room;
  const double power = seed % 3 == 0 ? job.uniform(0.9, 1.15) : 1.0;
  const double pause = job.uniform(5'000, 200'000);
  JobRun run;
  for (double unit = 1; unit < 2 * units; ++unit) {
    grow(&job, seed, room * std::pow(unit / units, power), kLayers);
    const auto step = static_cast<std::uint64_t>(noise * job.uniform(0.3, 1.0));
    job.step(step, 12);
    job.wait(static_cast<std::uint64_t>(pause * job.uniform(0.7, 1.3)));
    run.end = static_cast<double>(job.now_us()) / 1e6;
    if (job.peak() >= capacity) {
      break;
    }
    run.looks.push_back({run.end, headroom_of(job.timeline(), Bytes(capacity), job.now_us())});
  }
  return run;
}

JobRun steady(std::uint64_t seed, std::uint64_t capacity) {
  SimulatedJob job(seed);
  job.load(64 * 64 * kMi, 64);
  const double room = static_cast<double>(capacity) - static_cast<double>(job.live());
  const double spread = job.uniform(0.0, 0.9);
  std::vector<double> sessions;
  JobRun run;
  for (int unit = 0; unit < 600; ++unit) {
    if (seed % 3 == 0) {  // sessions come and go
      if (job.uniform(0, 1) < 0.5) {
        job.alloc(static_cast<std::uint64_t>(room / 100 * job.uniform(0.5, 1.5)));
      }
      for (std::size_t i = 64; i < job.blocks(); ++i) {
        if (job.uniform(0, 1) < 0.05) {
          job.free_at(i);
        }
      }
    }
    job.step(static_cast<std::uint64_t>(room * 0.5 * (1 - spread * job.uniform(0, 1))), 16);
    job.wait(static_cast<std::uint64_t>(job.uniform(5'000, 50'000)));
    run.end = static_cast<double>(job.now_us()) / 1e6;
    run.looks.push_back({run.end, headroom_of(job.timeline(), Bytes(capacity), job.now_us())});
  }
  return run;
}

// "predicts exhaustion at least 20 % of the run ahead within 25 % of the true time": from some look before
// 80 % of the run on, and at that look the time that is left is right within 25 %.
bool early_and_near(const JobRun& run) {
  const double start = run.looks.front().at;
  const double span = run.end - start;
  int asked = 0;
  int near = 0;
  for (const Look& look : run.looks) {
    const double share = (look.at - start) / span;
    if (share < 0.5 || share > 0.8) {
      continue;
    }
    ++asked;
    const double left = run.end - look.at;
    near += look.headroom.forecast && std::abs(look.headroom.seconds - left) <= 0.25 * left ? 1 : 0;
  }
  // At every look it could be asked, most answers must be right, and the last one too.
  return asked > 0 && near * 4 >= asked * 3;
}

TEST(Forecast, GrowingRunsArePredictedEarlyAndNear) {
  constexpr std::uint64_t kRuns = 60;
  std::uint64_t right = 0;
  for (std::uint64_t seed = 1; seed <= kRuns; ++seed) {
    const bool ok = early_and_near(growing(seed, 24 * kGi));
    right += ok ? 1 : 0;
    if (!ok) {
      std::printf("growing run, seed %llu: not predicted\n", static_cast<unsigned long long>(seed));
    }
  }
  std::printf("%llu of %llu predicted\n",
              static_cast<unsigned long long>(right),
              static_cast<unsigned long long>(kRuns));
  EXPECT_GE(right * 10, kRuns * 9);
}

TEST(Forecast, SteadyRunsAreSilent) {
  constexpr std::uint64_t kRuns = 100;
  std::uint64_t alarms = 0;
  for (std::uint64_t seed = 1; seed <= kRuns; ++seed) {
    const JobRun run = steady(seed, 24 * kGi);
    const auto said = std::count_if(run.looks.begin(), run.looks.end(), [](const Look& look) {
      return look.headroom.forecast;
    });
    if (said > 0) {
      ++alarms;
      std::printf("steady run, seed %llu: %ld false forecasts of %zu looks\n",
                  static_cast<unsigned long long>(seed),
                  static_cast<long>(said),
                  run.looks.size());
    }
  }
  std::printf("%llu false alarms in %llu steady runs\n",
              static_cast<unsigned long long>(alarms),
              static_cast<unsigned long long>(kRuns));
  EXPECT_LE(alarms * 50, kRuns);
}

TEST(Forecast, SilentWhileNothingIsKnown) {
  SimulatedJob job(1);
  EXPECT_FALSE(headroom_of(job.timeline(), Bytes(kGi), job.now_us()).forecast);
  job.load(512 * kMi, 200);
  const Headroom headroom = headroom_of(job.timeline(), Bytes(kGi), job.now_us());
  EXPECT_FALSE(headroom.forecast) << "a load is no trend";
  EXPECT_LE(headroom.bytes, Bytes(kGi - 500 * kMi));
  EXPECT_EQ(headroom_of(job.timeline(), Bytes(kMi), job.now_us()).bytes, Bytes(0));
}

TEST(Trends, TheilSenIgnoresOutliers) {
  std::vector<Point> points;
  for (int i = 0; i < 40; ++i) {
    points.push_back({static_cast<double>(i), i % 5 == 0 ? 1e9 : 3.0 * i + 7});
  }
  const Line line = theil_sen(points);
  EXPECT_NEAR(line.slope, 3.0, 0.2);
  EXPECT_EQ(theil_sen({}).slope, 0);
  EXPECT_EQ(theil_sen({{1, 5}}).slope, 0);
  EXPECT_EQ(theil_sen({{1, 5}, {1, 9}}).slope, 0) << "two points of one moment";
}

}  // namespace
}  // namespace nofrag
