// Mends: a giant block that comes again gets the last one's view, in which only what others use by now is
// replaced.
#include "device_fixture.h"

namespace nofrag {
namespace {

constexpr Bytes kPart = 32 * kMiB;  // a handle
constexpr Bytes kGiant = 6 * kPart;

class MendTest : public DeviceFixture {
 protected:
  // Ten free handles between ten used ones; a giant block was composed of the upper six and freed, and of
  // these six the second lowest is in use now, on another stream, at the address it had first.
  void scene(bool done) {
    start(4 * kGiB, kPart);
    work_is_done_at_once();
    allocate(kPart, kB);
    std::vector<VirtAddr> blocks;
    for (int i = 0; i < 20; ++i) {
      blocks.push_back(allocate(kPart));
    }
    for (std::size_t i = 1; i < blocks.size(); i += 2) {
      free(blocks[i]);
    }
    recorder_->take();
    if (!done) {
      sim_->set_completion(Completion::kByHand);
    }
    first_ = allocate(kGiant);
    EXPECT_EQ(count(recorder_->take(), "map"), 6);
    free(first_);
    std::vector<VirtAddr> others;
    for (int i = 0; i < 6; ++i) {
      others.push_back(allocate(kPart, kB));
      EXPECT_LT(others.back(), blocks.back());
    }
    for (std::size_t i = 0; i < 5; ++i) {
      free(others[i]);
    }
    recorder_->take();
  }

  VirtAddr first_;
};

TEST_F(MendTest, OnlyWhatIsInUseIsReplaced) {
  scene(true);
  EXPECT_EQ(allocate(kGiant), first_);
  EXPECT_EQ(without_questions(recorder_->take()), (Calls{"unmap 32", "map 32", "set_access 32"}));
  EXPECT_EQ(rung(Rung::kOwnMappable), 2U);
}

TEST_F(MendTest, NothingIsUnmappedUnderWorkThatMayRun) {
  scene(false);
  EXPECT_FALSE(allocate(kGiant).is_null());
  EXPECT_EQ(count(recorder_->take(), "unmap"), 0);
}

TEST_F(MendTest, WhereTheDriverRefusesAnotherPlaceServes) {
  for (const DriverCall call : {DriverCall::kUnmap, DriverCall::kMap, DriverCall::kSetAccess}) {
    SCOPED_TRACE(to_string(call));
    scene(true);
    sim_->fail_call(call, 1, Errc::kDriverFailure);
    const Bytes reserved = allocator_->stats().reserved;
    EXPECT_FALSE(allocate(kGiant).is_null());
    allocator_->check();
    EXPECT_LE(allocator_->stats().reserved, reserved + kPart);
  }
}

}  // namespace
}  // namespace nofrag
