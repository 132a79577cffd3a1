// The order of the questions, on numbers alone. Histories are in causes_test.py's generated runs.
#include "diagnose/classify.h"

#include <random>

#include <gtest/gtest.h>

#include "diagnose/report.h"
#include "simulate.h"

namespace nofrag {
namespace {

Failure failure(std::uint64_t requested_mib,
                std::uint64_t live_mib,
                std::uint64_t cached_mib,
                std::uint64_t free_mib) {
  Failure f;
  f.source = "PyTorch";
  f.requested = Bytes(requested_mib) * kMiB.count();
  f.capacity = 24 * kGiB;
  f.live = Bytes(live_mib) * kMiB.count();
  f.cached = Bytes(cached_mib) * kMiB.count();
  f.driver_free = Bytes(free_mib) * kMiB.count();
  return f;
}

TEST(Classify, NothingKnownIsUnknownAndSaysWhatIsMissing) {
  const Diagnosis d = classify(Failure{});
  EXPECT_EQ(d.cause, Cause::kUnknown);
  EXPECT_EQ(d.confidence, 0);
  EXPECT_GE(d.missing.size(), 5U);
  EXPECT_FALSE(d.advice.empty());
}

TEST(Classify, EnoughInPiecesIsFragmentationAndShortIsNot) {
  Diagnosis d = classify(failure(2048, 20000, 3000, 100));
  EXPECT_EQ(d.cause, Cause::kFragmentation);
  EXPECT_TRUE(d.recoverable_by_remapping);
  EXPECT_EQ(d.short_by, Bytes(0));
  d = classify(failure(4096, 20000, 3000, 100));
  EXPECT_NE(d.cause, Cause::kFragmentation);
  EXPECT_FALSE(d.recoverable_by_remapping);
  EXPECT_EQ(d.short_by, 996 * kMiB);
}

TEST(Classify, RemappingAllocatorsDoNotFragment) {
  Failure f = failure(2048, 20000, 3000, 100);
  f.remapping = true;
  f.reachable = 1000 * kMiB;
  const Diagnosis d = classify(f);
  EXPECT_NE(d.cause, Cause::kFragmentation);
  EXPECT_FALSE(d.recoverable_by_remapping);
  EXPECT_EQ(d.short_by, 948 * kMiB);
  for (const std::string& advice : d.advice) {
    EXPECT_EQ(advice.find("nofrag, which joins"), std::string::npos) << "that is on already";
  }
}

TEST(Classify, WhatSmallBlocksHoldDownIsSaidFirst) {
  Failure f = failure(1024, 1250, 8750, 50);
  f.source = "nofrag";
  f.remapping = true;
  f.reachable = 10 * kMiB;
  f.beside_live = 8740 * kMiB;
  f.holders = {{256 * kKiB, 5000, 1250 * kMiB}};
  Diagnosis d = classify(f);
  EXPECT_NE(d.cause, Cause::kFragmentation);
  EXPECT_LE(d.confidence, 0.5);
  EXPECT_NE(d.evidence.front().find("beside live blocks"), std::string::npos);
  EXPECT_NE(d.evidence.front().find("256.00 KiB"), std::string::npos);
  EXPECT_NE(d.advice.front().find("free the blocks of 256.00 KiB"), std::string::npos);
  // Nearly all is in use: that it lies badly is not why.
  f.live = 8000 * kMiB;
  f.cached = 2000 * kMiB;
  f.beside_live = 1990 * kMiB;
  d = classify(f);
  EXPECT_EQ(d.evidence.front().find("beside live blocks"), std::string::npos);
  EXPECT_EQ(d.advice.front().find("free the blocks"), std::string::npos);
}

TEST(Classify, OnPlainAllocationsTheAdviceIsToMap) {
  Failure f = failure(2048, 20000, 3000, 100);
  f.source = "nofrag";
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kFragmentation);
  ASSERT_EQ(d.advice.size(), 1U);
  EXPECT_NE(d.advice.front().find("let nofrag map memory"), std::string::npos);
}

TEST(Classify, OthersOnlyIfTheyHaveWhatIsMissing) {
  Failure f = failure(2048, 4000, 100, 100);
  f.others = 18 * kGiB;
  f.other_processes = 1;
  EXPECT_EQ(classify(f).cause, Cause::kOtherProcess);
  f.others = 500 * kMiB;
  EXPECT_NE(classify(f).cause, Cause::kOtherProcess);
  f.others = std::nullopt;  // nobody named, most of the card unaccounted for
  EXPECT_EQ(classify(f).cause, Cause::kOtherProcess);
  f.limit = 4096 * kMiB;
  f.limit_reached = true;
  EXPECT_NE(classify(f).cause, Cause::kOtherProcess);
}

TEST(Classify, RefusedWithMemoryFree) {
  EXPECT_EQ(classify(failure(100, 1000, 10, 20000)).cause, Cause::kRefusedBelow);
  EXPECT_EQ(classify(failure(1160, 4810, 18, 1170)).cause, Cause::kUnknown) << "rounding decides";
  Failure f = failure(100, 1000, 10, 20000);
  f.limit = 1024 * kMiB;
  f.limit_reached = true;
  const Diagnosis d = classify(f);
  EXPECT_NE(d.cause, Cause::kRefusedBelow);
  EXPECT_NE(d.advice.front().find("raise the limit"), std::string::npos);
}

TEST(Classify, ALimitThatTheCardCouldHaveServedIsTheCause) {
  Failure f = failure(2048, 3000, 100, 20000);
  f.limit = 4096 * kMiB;
  f.limit_reached = true;
  f.limit_name = "limit:4GiB in NOFRAG_CONF";
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kLimit);
  EXPECT_EQ(d.short_by, 952 * kMiB) << "2048 asked for, 996 left of the limit, 100 cached";
  EXPECT_NE(d.evidence.front().find("limit:4GiB in NOFRAG_CONF"), std::string::npos);
  EXPECT_NE(d.evidence.front().find("952.00 MiB more"), std::string::npos) << d.evidence.front();
  EXPECT_NE(d.advice.front().find("raise the limit"), std::string::npos);
  // Lowered below what is held (3,100 MiB): it allows nothing until it is above that again.
  Failure lowered = f;
  lowered.limit = 1024 * kMiB;
  lowered.cached = Bytes(0);
  const Diagnosis below = classify(lowered);
  EXPECT_NE(below.evidence.front().find("a limit of 4.93 GiB or more"), std::string::npos)
      << below.evidence.front();
  // In pieces under the limit: more of it is not what was needed.
  f.cached = 1096 * kMiB;
  f.requested = 1000 * kMiB;
  EXPECT_EQ(classify(f).cause, Cause::kFragmentation);
  // Nor where the card itself was full.
  f = failure(2048, 3000, 100, 1000);
  f.limit = 4096 * kMiB;
  f.limit_reached = true;
  EXPECT_NE(classify(f).cause, Cause::kLimit);
}

TEST(Classify, ALimitIsNotBlamedForGrowth) {
  Failure f = failure(2048, 3000, 100, 20000);
  f.limit = 4096 * kMiB;
  f.limit_reached = true;
  for (const Cause cause : {Cause::kLeak, Cause::kKvCacheGrowth}) {
    Diagnosis d;
    d.cause = cause;
    blame_limit(f, &d);
    EXPECT_EQ(d.cause, cause);
  }
  Diagnosis d;
  d.cause = Cause::kModelTooLarge;
  d.evidence = {"memory filled from the start"};
  blame_limit(f, &d);
  EXPECT_EQ(d.cause, Cause::kLimit);
  ASSERT_EQ(d.evidence.size(), 2U) << "what ran into it stays known";
  EXPECT_EQ(d.evidence[1], "what ran into it: model_too_large, memory filled from the start");
  EXPECT_NE(short_report(d).find("free; what ran into it: model_too_large"), std::string::npos);
  f.limit_reached = false;
  d.cause = Cause::kModelTooLarge;
  blame_limit(f, &d);
  EXPECT_EQ(d.cause, Cause::kModelTooLarge);
}

TEST(Classify, NumbersThatCannotBeAreNamedAndGiveNoVerdict) {
  struct Case {
    std::uint64_t live;
    std::uint64_t cached;
    std::uint64_t free;
    const char* said;
  };
  for (const Case& c : {Case{1000, 10, 30000, "29.30 GiB are said to be free"},
                        Case{30000, 10, 0, "29.30 GiB are said to be allocated by the program"},
                        Case{20000, 10000, 0, "29.30 GiB are said to be held by the allocator"},
                        Case{20000, 100, 20000, "together more than the card's 24.00 GiB"}}) {
    const Diagnosis d = classify(failure(2048, c.live, c.cached, c.free));
    EXPECT_EQ(d.cause, Cause::kUnknown) << c.said;
    EXPECT_EQ(d.confidence, 0);
    ASSERT_FALSE(d.evidence.empty());
    EXPECT_NE(d.evidence.front().find(c.said), std::string::npos) << d.evidence.front();
  }
  EXPECT_NE(classify(failure(2048, 24000, 580, 5)).cause, Cause::kUnknown)
      << "24,585 of 24,576 MiB are rounding";
}

TEST(Classify, AnyNumbersGiveSoundAnswers) {
  for (std::uint64_t seed = 1; seed <= 5000; ++seed) {
    std::mt19937_64 random(seed);
    Failure f;
    const auto maybe = [&](std::optional<Bytes>* field) {
      if (random() % 4 != 0) {
        *field = Bytes(random() >> (20 + random() % 40));
      }
    };
    for (std::optional<Bytes>* field : {&f.requested,
                                        &f.capacity,
                                        &f.limit,
                                        &f.live,
                                        &f.cached,
                                        &f.reachable,
                                        &f.driver_free,
                                        &f.process_in_use,
                                        &f.others,
                                        &f.private_pools,
                                        &f.pending}) {
      maybe(field);
    }
    f.limit_reached = random() % 2 == 0;
    f.remapping = random() % 2 == 0;
    f.moment = static_cast<Moment>(random() % 4);
    const Diagnosis d = classify(f);
    ASSERT_TRUE(d.confidence >= 0 && d.confidence <= 1) << seed;
    if (d.cause == Cause::kFragmentation) {
      Bytes free = f.driver_free.value_or(Bytes(UINT64_MAX));
      if (f.limit && f.reserved()) {
        free = std::min(free, *f.limit > *f.reserved() ? *f.limit - *f.reserved() : Bytes(0));
      }
      ASSERT_GE(*f.cached + free, *f.requested) << seed;
      ASSERT_TRUE(d.recoverable_by_remapping);
    }
    ASSERT_FALSE(d.recoverable_by_remapping && d.short_by > Bytes(0)) << seed;
    const std::string text = short_report(d);
    ASSERT_LE(std::count(text.begin(), text.end(), '\n'), 2) << text;
    ASSERT_FALSE(full_report(f, d, {}).empty());
  }
}

// Without a trace it is not known which blocks are whose.
TEST(Classify, StepsThatKeepMoreThanTheyFreeAreNoCacheThatIsMadeAnew) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SimulatedJob job(seed);
    const double model = job.uniform(10, 70);
    const auto temporaries = static_cast<std::size_t>(job.uniform(4, 40));
    const double kept = (80 - model) * static_cast<double>(kGiB.count()) / job.uniform(20, 400);
    const auto step = static_cast<std::uint64_t>(kept * job.uniform(0.2, 0.9));
    job.load(static_cast<std::uint64_t>(model * static_cast<double>(kGiB.count())), 64);
    while (job.live() < (80 * kGiB).count()) {
      const std::size_t before = job.blocks();
      for (std::size_t i = 0; i < temporaries; ++i) {
        job.alloc(step / temporaries + 4096 * i);
      }
      job.alloc(static_cast<std::uint64_t>(kept * job.uniform(0.7, 1.3)));
      for (std::size_t i = 0; i < temporaries; ++i) {
        job.free_at(before);
      }
    }
    Failure f = failure(300, job.live() / kMiB.count(), 0, 0);
    f.capacity = 80 * kGiB;
    f.timeline = &job.timeline();
    const Diagnosis d = classify(f);
    for (const std::string& line : d.evidence) {
      ASSERT_EQ(line.find("made anew"), std::string::npos) << "seed " << seed << ": " << line;
    }
  }
}

TEST(Causes, EveryOneHasAWordASentenceAndAdvice) {
  for (std::size_t i = 0; i < kCauseCount; ++i) {
    EXPECT_FALSE(to_string(static_cast<Cause>(i)).empty());
    EXPECT_FALSE(describe(static_cast<Cause>(i)).empty());
  }
}

// What the allocator held free may not be said: then nobody knows whether another layout would have done.
TEST(Report, WhatNoLayoutServesIsSaidOnlyWhereItIsKnown) {
  const std::string cut =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
      "capacity of 79.18 GiB of which 512.00 MiB is free. ";
  const Failure unsaid = failure_in(cut);
  const std::string page = full_report(unsaid, classify(unsaid), {});
  EXPECT_EQ(page.find("no layout"), std::string::npos) << page;
  EXPECT_NE(page.find("512.00 MiB more than was said to be free"), std::string::npos) << page;
  const Failure said = failure_in(
      cut +
      "Of the allocated memory 78.10 GiB is allocated by PyTorch, and 27.20 MiB is reserved "
      "by PyTorch but unallocated.");
  EXPECT_NE(
      full_report(said, classify(said), {}).find("no layout would have served it: 484.80 MiB"),
      std::string::npos);
}

}  // namespace
}  // namespace nofrag
