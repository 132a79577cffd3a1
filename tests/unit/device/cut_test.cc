// Cuts: where memory is short an idle handle is split under a block that needs only part of it, at the
// same addresses; and what the policies change.
#include "device_fixture.h"

namespace nofrag {
namespace {

class CutTest : public DeviceFixture {
 protected:
  static Options options() {
    Options options;
    options.handle_size = 16 * kMiB;
    return options;
  }
  // Half of the memory is taken. The first handle, 16 MiB, is idle; its work still runs.
  void prepare(const Options& with = options(), bool done = true) {
    start(64 * kMiB, with);
    idle_ = allocate(16 * kMiB);
    other_ = allocate(16 * kMiB);
    ASSERT_EQ(count(recorder_->take(), "create 16"), 2);
    free(idle_);
    if (done) {
      work_is_done_at_once();
    }
    recorder_->take();
  }
  void expect_no_cut(Bytes size, StreamId stream = kA) {
    const VirtAddr block = allocate(size, stream);
    ASSERT_FALSE(block.is_null());
    const Calls calls = recorder_->take();
    EXPECT_EQ(count(calls, "unmap"), 0);
    EXPECT_EQ(count(calls, "release"), 0);
    free(block);
  }

  VirtAddr idle_;
  VirtAddr other_;
};

TEST_F(CutTest, TheBlockStaysWhereItWouldHaveBeen) {
  prepare();
  EXPECT_EQ(allocate(6 * kMiB), idle_);
  const Calls calls = recorder_->take();
  const auto unmapped = std::find(calls.begin(), calls.end(), "unmap 16");
  ASSERT_NE(unmapped, calls.end());
  EXPECT_EQ(Calls(unmapped, calls.end()),
            (Calls{"unmap 16",
                   "release",
                   "create 6",
                   "map 6",
                   "set_access 6",
                   "create 10",
                   "map 10",
                   "set_access 10"}));
  EXPECT_EQ(allocator_->stats().reserved, 32 * kMiB);
  EXPECT_EQ(allocator_->stats().free_handles, 10 * kMiB) << "the rest is whole again";
  EXPECT_EQ(allocate(10 * kMiB), idle_ + 6 * kMiB);
  EXPECT_EQ(count(recorder_->take(), "map"), 0);
}

TEST_F(CutTest, TheGranuleAtTheEndIsAHandleOfItsOwn) {
  prepare();
  EXPECT_EQ(allocate(5 * kMiB), idle_);
  const Calls calls = recorder_->take();
  EXPECT_EQ(count(calls, "create 4"), 1);
  EXPECT_EQ(count(calls, "create 2"), 1);
  EXPECT_EQ(count(calls, "create 10"), 1);
  EXPECT_EQ(count(calls, "unmap"), 1);
}

TEST_F(CutTest, AHandleWithRunningWorkIsLeftAlone) {
  prepare(options(), false);
  const VirtAddr block = allocate(6 * kMiB);
  EXPECT_EQ(block, idle_) << "a hit like any other";
  const Calls calls = recorder_->take();
  EXPECT_EQ(count(calls, "unmap"), 0);
  EXPECT_EQ(count(calls, "event_synchronize"), 0) << "and nobody waits for it";
}

TEST_F(CutTest, AHandleInUseIsLeftAlone) {
  prepare();
  const VirtAddr first = allocate(Bytes(512));
  recorder_->take();
  expect_no_cut(6 * kMiB);
  free(first);
}

TEST_F(CutTest, NothingIsCutForASmallBlockNorForLittle) {
  prepare();
  expect_no_cut(2 * kMiB);
  expect_no_cut(14 * kMiB);
}

TEST_F(CutTest, NothingIsCutWhileThereIsPlenty) {
  start(256 * kMiB, options());
  free(allocate(16 * kMiB));
  work_is_done_at_once();
  recorder_->take();
  expect_no_cut(6 * kMiB);
}

TEST_F(CutTest, NothingIsCutDuringACapture) {
  prepare();
  begin_pool(kFirst, kC);
  sim_->begin_capture(kC);
  expect_no_cut(6 * kMiB);
  EXPECT_TRUE(sim_->end_capture(kC));
  EXPECT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  EXPECT_EQ(allocate(6 * kMiB), idle_);
  EXPECT_EQ(count(recorder_->take(), "unmap 16"), 1) << "afterwards it is";
}

TEST_F(CutTest, NothingIsCutInAPoolInUse) {
  start(64 * kMiB, options());
  begin_pool(kFirst, kA);
  const VirtAddr idle = allocate(16 * kMiB);
  allocate(16 * kMiB);
  free(idle);
  EXPECT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  work_is_done_at_once();
  recorder_->take();
  const VirtAddr block = allocator_->allocate_in_pool(6 * kMiB, kA, kFirst).value();
  EXPECT_EQ(block, idle);
  EXPECT_EQ(count(recorder_->take(), "unmap"), 0);
  EXPECT_TRUE(allocator_->free(block).ok());
}

TEST_F(CutTest, TheBudgetHolds) {
  Options none = options();
  none.max_cuts = 0;
  prepare(none);
  expect_no_cut(6 * kMiB);

  Options one = options();
  one.max_cuts = 1;
  prepare(one);
  const VirtAddr block = allocate(6 * kMiB);
  EXPECT_EQ(count(recorder_->take(), "unmap"), 1);
  free(other_);
  const VirtAddr second = allocate(12 * kMiB);
  EXPECT_EQ(count(recorder_->take(), "release"), 0) << "that was the one";
  free(second);
  free(block);
}

// Whatever fails in the middle: the request is served from elsewhere or refused, and nothing is lost.
TEST_F(CutTest, AFailureInTheMiddleLosesNothing) {
  for (const DriverCall call : {DriverCall::kUnmap,
                                DriverCall::kRelease,
                                DriverCall::kCreate,
                                DriverCall::kMap,
                                DriverCall::kSetAccess}) {
    for (const Errc code : {Errc::kOutOfMemory, Errc::kDriverFailure}) {
      for (std::uint64_t nth = 1; nth <= 3; ++nth) {
        for (const bool lasting : {false, true}) {
          SCOPED_TRACE(std::string(to_string(call)) + " " + std::to_string(nth));
          prepare();
          sim_->fail_call(call, nth, code, lasting);
          const VirtAddr block = allocate(5 * kMiB);
          EXPECT_TRUE(lasting || !block.is_null());
          allocator_->check();
          EXPECT_EQ(allocator_->stats().live, 16 * kMiB + (block.is_null() ? Bytes(0) : 5 * kMiB));
          sim_->clear_faults();
          if (!block.is_null()) {
            free(block);
          }
          EXPECT_FALSE(allocate(48 * kMiB).is_null()) << "all of it is there again";
          free(other_);
          allocator_->reset_peaks();
        }
      }
    }
  }
}

// Before it cuts, the allocator asks how far all streams have come: free memory merges, and the free block
// that was found first may be gone, also when the driver then refuses every cut.
TEST_F(CutTest, ARefusedCutWithSeveralStreamsTakesNoStaleBlock) {
  prepare();
  const VirtAddr small = allocate(2 * kMiB, kB);
  allocator_->check();
  free(small);
  sim_->fail_call(DriverCall::kUnmap, 1, Errc::kDriverFailure, true);
  const VirtAddr block = allocate(5 * kMiB);
  ASSERT_FALSE(block.is_null());
  allocator_->check();
  EXPECT_EQ(allocator_->find(block).value().size, 5 * kMiB);
  sim_->clear_faults();
}

// The new handle can be neither used nor taken away again: its addresses are lost, the request goes
// elsewhere.
TEST_F(CutTest, ARefusedUndoInTheMiddleGoesElsewhere) {
  for (const DriverCall call : {DriverCall::kMap, DriverCall::kSetAccess}) {
    for (std::uint64_t nth = 1; nth <= 3; ++nth) {
      for (std::uint64_t undo = 2; undo <= 4; ++undo) {  // the first unmapping is the cut's own
        SCOPED_TRACE(std::string(to_string(call)) + " " + std::to_string(nth));
        prepare();
        sim_->fail_call(call, nth, Errc::kDriverFailure);
        sim_->fail_call(DriverCall::kUnmap, undo, Errc::kDriverFailure);
        const VirtAddr block = allocate(5 * kMiB);
        EXPECT_FALSE(block.is_null());
        allocator_->check();
        sim_->clear_faults();
        free(block);
        EXPECT_FALSE(allocate(48 * kMiB).is_null()) << "all of it is there again";
      }
    }
  }
}

// ---- policies

class PolicyTest : public DeviceFixture {
 protected:
  static Options with(Policy policy) {
    Options options;
    options.policy = policy;
    return options;
  }
  // How many handles a request of this size makes on an empty device.
  std::ptrdiff_t handles_for(Policy policy, Bytes size) {
    start(80 * kGiB, with(policy));
    const VirtAddr block = allocate(size);
    const std::ptrdiff_t made = count(recorder_->take(), "create");
    free(block);
    return made;
  }
  // 1 GiB in use at most; now every second 16 MiB are free.
  void scatter(Policy policy) {
    Options options = with(policy);
    options.handle_size = 8 * kMiB;
    start(80 * kGiB, options);
    std::vector<VirtAddr> blocks(64);
    for (VirtAddr& block : blocks) {
      block = allocate(16 * kMiB);
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
      free(blocks[i]);
    }
    recorder_->take();
  }
};

TEST_F(PolicyTest, LeanMakesMoreAndSmallerHandlesFastFewer) {
  EXPECT_GT(handles_for(Policy::kLean, 16 * kMiB), handles_for(Policy::kBalanced, 16 * kMiB));
  const std::ptrdiff_t lean = handles_for(Policy::kLean, kGiB);
  const std::ptrdiff_t balanced = handles_for(Policy::kBalanced, kGiB);
  EXPECT_GT(lean, balanced);
  EXPECT_GT(balanced, handles_for(Policy::kFast, kGiB));
}

TEST_F(PolicyTest, ASizeGivenByTheUserHoldsWhateverThePolicy) {
  for (const Policy policy : {Policy::kLean, Policy::kBalanced, Policy::kFast}) {
    Options options = with(policy);
    options.handle_size = 32 * kMiB;
    start(80 * kGiB, options);
    allocate(64 * kMiB);
    EXPECT_EQ(count(recorder_->take(), "create 32"), 2);
  }
}

TEST_F(PolicyTest, FastRatherGrowsALittleLeanComposes) {
  scatter(Policy::kFast);
  allocate(40 * kMiB);
  EXPECT_GT(count(recorder_->take(), "create"), 0);
  EXPECT_EQ(recorder_->aliases(), 0U);
  scatter(Policy::kLean);
  allocate(40 * kMiB);
  EXPECT_EQ(count(recorder_->take(), "create"), 0);
  EXPECT_GT(recorder_->aliases(), 0U);
}

TEST_F(PolicyTest, FastNeverCuts) {
  for (const Policy policy : {Policy::kLean, Policy::kBalanced, Policy::kFast}) {
    Options options = with(policy);
    options.handle_size = 16 * kMiB;
    start(64 * kMiB, options);
    const VirtAddr idle = allocate(16 * kMiB);
    allocate(16 * kMiB);
    free(idle);
    work_is_done_at_once();
    recorder_->take();
    EXPECT_EQ(allocate(6 * kMiB), idle);
    EXPECT_EQ(count(recorder_->take(), "unmap"), policy == Policy::kFast ? 0 : 1);
  }
}

}  // namespace
}  // namespace nofrag
