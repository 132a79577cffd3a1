// What becomes of the blocks that were live at a failure, by the events behind it.
#include "cli/explain/hindsight.h"

#include <gtest/gtest.h>

namespace nofrag {
namespace {

// Events by hand: blocks are numbered in the order of their allocation.
class Events {
 public:
  std::uint32_t alloc(std::uint64_t size) {
    trace_.events.push_back({time_++, size, static_cast<std::uint32_t>(trace_.allocations), 0});
    sizes_.push_back(size);
    return static_cast<std::uint32_t>(trace_.allocations++);
  }
  void free(std::uint32_t block) {
    trace_.events.push_back({time_++, sizes_[block], block, TraceEvent::kFreeBit});
    ++trace_.frees;
  }
  void refuse() {
    TraceMark mark;
    mark.event = next();
    trace_.marks.push_back(mark);
  }
  [[nodiscard]] std::uint64_t next() const { return trace_.events.size(); }
  [[nodiscard]] const Trace& trace() const { return trace_; }

 private:
  Trace trace_;
  std::vector<std::uint64_t> sizes_;
  std::uint64_t time_ = 0;
};

// Five blocks of the growth beside one of the base, and the request that fails.
struct Grown {
  Events events;
  std::uint64_t base = 0;
  std::uint64_t now = 0;
  std::vector<std::uint32_t> blocks;
  std::uint32_t last = 0;

  Grown() {
    events.alloc(1000);
    base = events.next();
    for (int i = 0; i < 5; ++i) {
      blocks.push_back(events.alloc(100));
    }
    events.free(events.alloc(50));
    now = events.next();
    last = events.alloc(70);
  }
  [[nodiscard]] std::optional<Fate> fate() const { return look_ahead(events.trace(), base, now); }
};

TEST(Hindsight, WhatIsFreedWhileTheWorkGoesOnIsGivenBack) {
  Grown job;
  job.events.free(job.last);
  for (int i = 0; i < 4; ++i) {
    job.events.free(job.blocks[static_cast<std::size_t>(i)]);
    job.events.free(job.events.alloc(30));
  }
  job.events.alloc(500);
  const std::optional<Fate> fate = job.fate();
  ASSERT_TRUE(fate);
  EXPECT_EQ(fate->given_back, Bytes(400));
  EXPECT_EQ(fate->stay, Bytes(100));
  EXPECT_EQ(fate->fall, Bytes(400)) << "the request that failed was served, and freed, then";
}

TEST(Hindsight, WhatIsReplacedIsNoFall) {
  Grown job;
  for (const std::uint32_t block : job.blocks) {
    job.events.alloc(100);
    job.events.free(block);
  }
  job.events.alloc(500);
  const std::optional<Fate> fate = job.fate();
  ASSERT_TRUE(fate);
  EXPECT_EQ(fate->given_back, Bytes(500));
  EXPECT_EQ(fate->fall, Bytes(0));
}

TEST(Hindsight, WhatAJobFreesAsItEndsWasKept) {
  Grown job;
  job.events.free(job.events.alloc(300));
  for (const std::uint32_t block : job.blocks) {
    job.events.free(block);
  }
  job.events.alloc(8);  // a word of goodbye
  const std::optional<Fate> fate = job.fate();
  ASSERT_TRUE(fate);
  EXPECT_EQ(fate->given_back, Bytes(0));
  EXPECT_EQ(fate->stay, Bytes(500));
}

TEST(Hindsight, WhatIsFreedAfterAFailureOfTheJobsOwnProvesNothing) {
  Grown job;
  job.events.alloc(60);
  job.events.refuse();
  for (const std::uint32_t block : job.blocks) {
    job.events.free(block);
  }
  job.events.alloc(500);
  const std::optional<Fate> fate = job.fate();
  ASSERT_TRUE(fate);
  EXPECT_EQ(fate->given_back, Bytes(0));
}

TEST(Hindsight, ATraceThatEndsThereTellsNothing) {
  Grown job;
  EXPECT_FALSE(job.fate());
  job.events.free(job.last);
  EXPECT_FALSE(job.fate());
  EXPECT_FALSE(look_ahead(job.events.trace(), job.now, job.now)) << "no growth";
}

}  // namespace
}  // namespace nofrag
