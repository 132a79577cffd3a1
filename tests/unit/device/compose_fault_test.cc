// A driver call fails in the middle of a composition: everything is as it was before.
#include "crowd_fixture.h"

namespace nofrag {
namespace {

struct Scene {
  const char* name;
  Bytes size;  // of the request
  bool grows;  // it needs new memory beside what is free
};

void PrintTo(const Scene& scene, std::ostream* out) {
  *out << scene.name;
}

class ComposeFault : public CrowdFixture, public testing::WithParamInterface<Scene> {
 protected:
  // Free: two backs, two fronts, three whole handles; 40 MiB.
  void scatter() {
    crowd();
    free_back(1);
    free_front(5);
    free_back(9);
    free_front(13);
    free_handles({3, 11, 15});
  }
  // The calls of the request where nothing fails.
  Calls smooth() {
    scatter();
    EXPECT_FALSE(allocate(GetParam().size).is_null());
    const Calls calls = without_questions(recorder_->take());
    EXPECT_GE(recorder_->aliases(), 4U) << "ends of handles do not serve";
    EXPECT_EQ(count(calls, "create") > 0, GetParam().grows);
    EXPECT_EQ(count(calls, "unmap"), 0);
    return calls;
  }
  void expect_same(const DeviceStats& a, const DeviceStats& b) {
    EXPECT_EQ(a.live, b.live);
    EXPECT_EQ(a.allocated, b.allocated);
    EXPECT_EQ(a.reserved, b.reserved);
    EXPECT_EQ(a.mapped_in_use, b.mapped_in_use);
    EXPECT_EQ(a.free_handles, b.free_handles);
    EXPECT_EQ(a.free_ends, b.free_ends);
    EXPECT_EQ(a.composable, b.composable);
    EXPECT_EQ(a.stranded, b.stranded);
    EXPECT_EQ(a.largest_free_run, b.largest_free_run);
  }
};

TEST_P(ComposeFault, ARefusalLeavesEverythingAsItWas) {
  const Calls expected = smooth();
  for (const DriverCall call : {DriverCall::kCreate, DriverCall::kMap, DriverCall::kSetAccess}) {
    const std::ptrdiff_t made = count(expected, to_string(call));
    for (std::uint64_t nth = 1; nth <= static_cast<std::uint64_t>(made); ++nth) {
      for (const Errc code : {Errc::kOutOfMemory, Errc::kDriverFailure}) {
        SCOPED_TRACE(std::string(to_string(call)) + " " + std::to_string(nth));
        scatter();
        const DeviceStats before = allocator_->stats();
        const std::size_t mappings = recorder_->mappings();
        sim_->fail_call(call, nth, code, true);
        EXPECT_FALSE(allocator_->allocate(GetParam().size, kA).ok());
        sim_->clear_faults();
        allocator_->check();
        expect_same(allocator_->stats(), before);
        EXPECT_EQ(recorder_->mappings(), mappings);
        recorder_->take();
        EXPECT_FALSE(allocate(GetParam().size).is_null());
        EXPECT_EQ(without_questions(recorder_->take()), expected)
            << "not the same as without the failure";
      }
    }
  }
}

TEST_P(ComposeFault, OneFailureAnywhereCostsNothing) {
  const std::size_t calls = smooth().size();
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    for (const Errc code : {Errc::kOutOfMemory, Errc::kDriverFailure}) {
      SCOPED_TRACE(nth);
      scatter();
      const Bytes live = allocator_->stats().live;
      sim_->fail_any_call(nth, code);
      EXPECT_FALSE(allocate(GetParam().size).is_null()) << "there are other ways";
      EXPECT_EQ(allocator_->stats().live, live + GetParam().size);
      allocator_->check();
    }
  }
}

// The mappings made so far can be neither used nor undone: they stay, and serve nobody, until the driver
// takes them back.
TEST_P(ComposeFault, ARefusedUndoIsTakenBackLater) {
  const Calls expected = smooth();
  const auto maps = static_cast<std::uint64_t>(count(expected, "map"));
  for (const DriverCall call : {DriverCall::kMap, DriverCall::kSetAccess}) {
    const std::uint64_t last = call == DriverCall::kMap ? maps : 1;
    for (std::uint64_t nth = 1; nth <= last; ++nth) {
      for (std::uint64_t undo = 1; undo <= maps; ++undo) {
        for (const bool lasting : {false, true}) {
          SCOPED_TRACE(std::string(to_string(call)) + " " + std::to_string(nth) + ", undo " +
                       std::to_string(undo));
          scatter();
          const Bytes live = allocator_->stats().live;
          const std::size_t mappings = recorder_->mappings();
          sim_->fail_call(call, nth, Errc::kDriverFailure, lasting);
          sim_->fail_call(DriverCall::kUnmap, undo, Errc::kDriverFailure, lasting);
          const VirtAddr block = allocate(GetParam().size);
          EXPECT_TRUE(lasting || !block.is_null());
          allocator_->check();
          sim_->clear_faults();
          // The bytes of the blocks beside are still theirs alone.
          const VirtAddr small = allocate(Bytes(512));
          EXPECT_FALSE(small.is_null());
          free(small);
          if (!block.is_null()) {
            free(block);
          }
          sim_->complete_all();
          allocator_->trim();
          EXPECT_EQ(allocator_->stats().live, live);
          allocator_->check();
          EXPECT_LE(recorder_->mappings(), mappings + maps);
          EXPECT_FALSE(allocate(GetParam().size).is_null());
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenes,
                         ComposeFault,
                         testing::Values(Scene{"free memory alone", 24 * kMiB, false},
                                         Scene{"new memory too", 64 * kMiB, true}));

}  // namespace
}  // namespace nofrag
