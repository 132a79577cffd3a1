// What rises within one unit of work, and what goes on over many: the history's signals, and what they are named.
#include <gtest/gtest.h>

#include "diagnose/classify.h"
#include "diagnose/signals.h"
#include "simulate.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kMiBCount = kMiB.count();

class Job : public SimulatedJob {
 public:
  Job() : SimulatedJob(1) { load(2000 * kMiBCount, 40); }

  // A unit of work: temporaries that go, and one block that stays.
  void unit(int temporaries, std::uint64_t kept) {
    const std::size_t before = blocks();
    for (int i = 0; i < temporaries; ++i) {
      alloc(40 * kMiBCount + 4096 * static_cast<std::uint64_t>(i));
    }
    alloc(kept);
    for (int i = 0; i < temporaries; ++i) {
      free_at(before);
    }
  }
  void pause() { pauses_.push_back(timeline().allocations()); }
  // All but what was loaded.
  void give_back() {
    while (blocks() > 40) {
      free_newest();
    }
  }
  [[nodiscard]] Failure failure() const {
    Failure f;
    f.source = "trace";
    f.requested = 200 * kMiB;
    f.live = Bytes(live());
    f.capacity = *f.live + 100 * kMiB;
    f.cached = Bytes(0);
    f.timeline = &timeline();
    f.pauses = pauses_;
    f.growth_age = 0.5;
    f.growth_kept = 1;
    return f;
  }

 private:
  std::vector<std::uint64_t> pauses_;
};

bool told(const Diagnosis& d, const std::string& words) {
  for (const std::string& line : d.evidence) {
    if (line.find(words) != std::string::npos) {
      return true;
    }
  }
  return false;
}

Failure with_fate(Failure f, std::uint64_t given_back, std::uint64_t stay, std::uint64_t fall) {
  f.fate = Fate{given_back * kMiB, stay * kMiB, fall * kMiB};
  return f;
}

// The first layers of a process wait for kernels that are loaded on the way.
TEST(Shortage, PausesOfTheFirstLayersMakeNoStepsOfTheOthers) {
  Job job;
  for (int layer = 0; layer < 24; ++layer) {
    job.unit(12, 60 * kMiBCount);
    for (int i = 0; layer < 6 && i < 5; ++i) {
      job.pause();
    }
  }
  const Failure f = job.failure();
  const Signals s = signals_of(*f.timeline, *f.pauses);
  EXPECT_GE(s.since.cycles, 20U);
  EXPECT_EQ(s.since.cycle_allocations, 13U);
  EXPECT_GE(s.since.later_cycles, 10U);
  EXPECT_EQ(s.since.later_paused, 0U);
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kBatchTooLarge);
  EXPECT_LE(d.confidence, 0.5);
  EXPECT_TRUE(told(d, "it is a leak if many steps had been done by then"));
}

TEST(Shortage, UnitsThatAllPauseAreSteps) {
  Job job;
  for (int step = 0; step < 24; ++step) {
    job.unit(12, 60 * kMiBCount);
    job.pause();
  }
  EXPECT_EQ(classify(job.failure()).cause, Cause::kLeak);
}

// A long first step, all of which is given back; then the layers of a second one.
TEST(Shortage, ARiseFromTheTroughIsOneUnit) {
  Job job;
  for (int layer = 0; layer < 20; ++layer) {
    job.unit(100, 40 * kMiBCount);
    job.pause();
  }
  job.give_back();
  EXPECT_EQ(job.live(), 2000 * kMiBCount);
  for (int i = 0; i < 400; ++i) {  // the rest of the step, at the trough
    job.alloc(10 * kMiBCount);
    job.free_newest();
  }
  for (int layer = 0; layer < 6; ++layer) {
    job.unit(10, 200 * kMiBCount);
  }
  const Failure f = job.failure();
  const Signals s = signals_of(*f.timeline, *f.pauses);
  EXPECT_TRUE(s.since.returned);
  EXPECT_LT(s.since.work, 300U);
  EXPECT_LT(s.since.cycles, 7U);
  EXPECT_EQ(classify(f).cause, Cause::kBatchTooLarge);
}

TEST(Shortage, SteadyGrowthNeverReturns) {
  Job job;
  for (int step = 0; step < 60; ++step) {
    job.unit(12, 20 * kMiBCount);
    job.pause();
  }
  const Failure f = job.failure();
  const Signals s = signals_of(*f.timeline, *f.pauses);
  EXPECT_FALSE(s.since.returned);
  EXPECT_EQ(s.since.cycles, s.cycles);
  EXPECT_EQ(s.since.work, s.work);
  EXPECT_EQ(classify(f).cause, Cause::kLeak);
}

TEST(Shortage, WhatIsGivenBackLaterIsNoLeak) {
  Job job;
  for (int step = 0; step < 40; ++step) {
    job.unit(12, 50 * kMiBCount);
    job.pause();
  }
  const Failure f = job.failure();
  EXPECT_EQ(classify(f).cause, Cause::kLeak) << "nothing is known of what came then";
  EXPECT_EQ(classify(with_fate(f, 0, 2000, 0)).cause, Cause::kLeak);
  EXPECT_EQ(classify(with_fate(f, 900, 1100, 500)).cause, Cause::kLeak) << "most of it stays";
  const Diagnosis whole = classify(with_fate(f, 1900, 100, 1900));
  EXPECT_EQ(whole.cause, Cause::kBatchTooLarge);
  EXPECT_TRUE(told(whole, "1.86 GiB of what had come by then are freed again"));
  // While it goes, as much comes: what is held is a matter of how many are at work.
  EXPECT_EQ(classify(with_fate(f, 1900, 100, 300)).cause, Cause::kKvCacheGrowth);
}

TEST(Shortage, AStepThatIsSeenWholeLeavesNoDoubt) {
  Job job;
  for (int layer = 0; layer < 24; ++layer) {
    job.unit(12, 60 * kMiBCount);
  }
  const Diagnosis d = classify(with_fate(job.failure(), 1400, 0, 1400));
  EXPECT_EQ(d.cause, Cause::kBatchTooLarge);
  EXPECT_GE(d.confidence, 0.8);
  EXPECT_FALSE(told(d, "it is a leak if"));
}

}  // namespace
}  // namespace nofrag
