// The out-of-memory ladder: which driver calls each rung makes, in order, and which rung serves.
#include <algorithm>
#include <thread>

#include "device_fixture.h"

namespace nofrag {
namespace {

class LadderTest : public DeviceFixture {};

TEST_F(LadderTest, AHitMakesNoDriverCall) {
  start(64 * kMiB);
  const VirtAddr block = allocate(kMiB);
  recorder_->take();
  free(block);
  EXPECT_EQ(allocate(kMiB), block);
  EXPECT_EQ(recorder_->take(), Calls{});
  EXPECT_EQ(rung(Rung::kOwnFree), 1U);
}

TEST_F(LadderTest, GrowthIsReserveCreateMapSetAccess) {
  start(64 * kMiB);
  allocate(4 * kMiB);
  EXPECT_EQ(recorder_->take(),
            (Calls{"event_record", "reserve", "create 4", "map 4", "set_access 4"}))
      << "a new stream is marked at first sight";
  allocate(9 * kMiB);
  EXPECT_EQ(recorder_->take(),
            (Calls{"create 4", "create 4", "create 2", "map 4", "map 4", "map 2", "set_access 10"}))
      << "just the granules it needs, where memory may run short";
  EXPECT_EQ(rung(Rung::kGrow), 2U);
}

// Four blocks fill the device; the first and the third are free, their work still runs.
class FullDevice : public LadderTest {
 protected:
  void fill(std::int64_t aliases) {
    Options options;
    options.handle_size = 4 * kMiB;
    options.max_aliases = aliases;
    start(16 * kMiB, options);
    VirtAddr blocks[] = {
        allocate(4 * kMiB), allocate(4 * kMiB), allocate(4 * kMiB), allocate(4 * kMiB)};
    free(blocks[0]);
    free(blocks[2]);
    recorder_->take();
  }
};

TEST_F(FullDevice, IdleHandlesMeetAtFurtherAddresses) {
  fill(8);
  EXPECT_FALSE(allocate(8 * kMiB).is_null());
  const Calls calls = recorder_->take();
  EXPECT_GT(recorder_->aliases(), 0U);
  for (const char* call : {"unmap", "release", "create", "event_synchronize", "stream_wait"}) {
    EXPECT_EQ(count(calls, call), 0) << call;
  }
  EXPECT_EQ(rung(Rung::kOwnMappable), 1U);
}

TEST_F(FullDevice, IdleHandlesMoveWhereNothingMayBeAliased) {
  fill(1);
  EXPECT_FALSE(allocate(8 * kMiB).is_null());
  const Calls calls = recorder_->take();
  EXPECT_EQ(recorder_->aliases(), 0U);
  EXPECT_GT(count(calls, "unmap"), 0);
  EXPECT_EQ(count(calls, "unmap"), count(calls, "map"));
  EXPECT_EQ(count(calls, "release"), 0);
  const auto waited = std::find(calls.begin(), calls.end(), "event_synchronize");
  const auto unmapped = std::find_if(calls.begin(), calls.end(), [](const std::string& call) {
    return call.rfind("unmap", 0) == 0;
  });
  EXPECT_LT(waited, unmapped) << "nothing is unmapped before its work is done";
  EXPECT_EQ(rung(Rung::kOwnMappable), 1U);
}

TEST_F(LadderTest, ALongIdleHandleIsCutThroughTheDriver) {
  start(16 * kMiB, 8 * kMiB);
  allocator_->set_limit(16 * kMiB);
  const VirtAddr a = allocate(8 * kMiB);
  const VirtAddr b = allocate(6 * kMiB);
  free(a);
  EXPECT_FALSE(allocate(10 * kMiB).is_null());
  EXPECT_EQ(allocator_->stats().reserved, 16 * kMiB);
  free(b);
}

TEST_F(LadderTest, OtherStreamsMemoryServesBehindADeviceWait) {
  start(8 * kMiB);
  const VirtAddr a = allocate(8 * kMiB, kA);
  free(a);
  recorder_->take();
  const VirtAddr b = allocate(8 * kMiB, kB);
  EXPECT_EQ(b, a);
  const Calls calls = recorder_->take();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "stream_wait"), 1);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "event_synchronize"), 0) << "the host goes on";
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "unmap 4"), 0);
  EXPECT_EQ(rung(Rung::kDeviceWait), 1U);
}

TEST_F(LadderTest, DoneMemoryOfOtherStreamsIsPreferredToGrowth) {
  start(512 * kMiB);
  // Large enough for the free to record its marker at once.
  const VirtAddr a = allocate(64 * kMiB, kA);
  const VirtAddr other = allocate(Bytes(512), kB);
  free(a);
  sim_->complete_all();
  recorder_->take();
  EXPECT_EQ(allocate(64 * kMiB, kB), a);
  const Calls calls = recorder_->take();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "stream_wait"), 0);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "create 4"), 0);
  free(other);
}

TEST_F(LadderTest, PendingMemoryServesLastBehindAHostWait) {
  start(8 * kMiB);
  const VirtAddr a = allocate(8 * kMiB, kA);
  use_on(a, kA, kB);
  free(a);
  EXPECT_EQ(allocator_->stats().pending, 8 * kMiB);
  EXPECT_FALSE(allocate(8 * kMiB, kC).is_null());
  EXPECT_EQ(allocator_->stats().pending, Bytes(0));
}

TEST_F(LadderTest, PressureCallbacksRunOnceWithoutTheLockAndMayFree) {
  start(8 * kMiB);
  const VirtAddr kept = allocate(8 * kMiB);
  int calls = 0;
  allocator_->add_pressure_callback([&](DeviceOrdinal device, Bytes needed) {
    ++calls;
    EXPECT_EQ(device, kDevice);
    EXPECT_EQ(needed, 2 * kMiB);
    EXPECT_EQ(allocator_->stats().live, 8 * kMiB);  // re-enters
    free(kept);
    allocator_->trim();
    return true;
  });
  EXPECT_FALSE(allocate(2 * kMiB).is_null());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(rung(Rung::kPressureCallbacks), 1U);
  EXPECT_EQ(allocator_->stats().failed_allocations, 0U);
}

TEST_F(LadderTest, CallbacksThatFreeNothingEndInFailure) {
  start(8 * kMiB);
  int calls = 0;
  allocator_->add_pressure_callback([&](DeviceOrdinal, Bytes) {
    ++calls;
    return false;
  });
  allocate(8 * kMiB);
  EXPECT_TRUE(allocate(2 * kMiB).is_null());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(rung(Rung::kFailed), 1U);
}

TEST_F(LadderTest, WhatOthersFreeWhileACallbackRunsServes) {
  start(8 * kMiB);
  const VirtAddr theirs = allocate(8 * kMiB);
  allocator_->add_pressure_callback([&](DeviceOrdinal, Bytes) {
    std::thread([&] { free(theirs); }).join();
    return false;
  });
  EXPECT_FALSE(allocate(2 * kMiB).is_null());
  EXPECT_EQ(allocator_->stats().failed_allocations, 0U);
}

TEST_F(LadderTest, AFailureReportsItsNumbers) {
  start(64 * kMiB);
  allocate(20 * kMiB);
  const VirtAddr hole = allocate(4 * kMiB);
  allocate(8 * kMiB);
  free(hole);
  sim_->set_memory_of_others(kDevice, 24 * kMiB);
  const Result<VirtAddr> refused = allocator_->allocate(40 * kMiB, kB);
  EXPECT_EQ(refused.code(), Errc::kOutOfMemory);
  const OomReport report = allocator_->last_oom();
  EXPECT_EQ(report.requested, 40 * kMiB);
  EXPECT_EQ(report.stream, kB);
  EXPECT_FALSE(report.limit_reached);
  EXPECT_EQ(report.stats.live, 28 * kMiB);
  EXPECT_EQ(report.driver_total, 64 * kMiB);
  EXPECT_EQ(report.driver_free + report.stats.reserved, 40 * kMiB);
  const std::string message = allocator_->last_oom_message();
  EXPECT_NE(message.find("tried to allocate 40.00 MiB"), std::string::npos) << message;
  EXPECT_NE(message.find("28.00 MiB live, 0 B waiting for streams"), std::string::npos) << message;
  EXPECT_EQ(message.find("limit"), std::string::npos) << message;
}

TEST_F(LadderTest, OurOwnLimitIsItsOwnError) {
  start(64 * kMiB);
  allocator_->set_limit(16 * kMiB);
  EXPECT_EQ(allocator_->allocate(17 * kMiB, kA).code(), Errc::kLimit);
  EXPECT_TRUE(allocator_->last_oom().limit_reached);
  EXPECT_NE(allocator_->last_oom_message().find("limit of 16.00 MiB"), std::string::npos);
  EXPECT_FALSE(allocate(16 * kMiB).is_null());
  EXPECT_EQ(allocator_->allocate(Bytes(1), kA).code(), Errc::kLimit);
  EXPECT_NE(allocator_->last_oom_message().find("tried to allocate 1 B. "), std::string::npos);
}

// Refused at once: nothing is moved, mapped or reserved for what can never be.
TEST_F(LadderTest, HugeRequestsAreRefusedWithoutADriverCall) {
  start(64 * kMiB);
  const VirtAddr block = allocate(4 * kMiB);
  free(block);
  recorder_->take();
  for (const Bytes size : {65 * kMiB, 1024 * kGiB, Bytes(std::uint64_t{1} << 60), kNoLimit}) {
    EXPECT_EQ(allocator_->allocate(size, kA).code(), Errc::kOutOfMemory);
    EXPECT_EQ(allocator_->last_oom().requested, size);
  }
  EXPECT_EQ(recorder_->take(), Calls{});
  EXPECT_EQ(allocator_->stats().failed_allocations, 4U);
  EXPECT_EQ(allocate(4 * kMiB), block);
}

// A placement may cover part of an idle handle and tie up the rest of it; the last rung goes where
// every idle handle counts whole.
TEST_F(LadderTest, EverythingIdleServesTheWholeDevice) {
  start(12 * kMiB, 8 * kMiB);
  const VirtAddr a = allocate(4 * kMiB);
  const VirtAddr gap = allocate(2 * kMiB);
  const VirtAddr b = allocate(6 * kMiB);
  free(gap);
  allocator_->trim(10 * kMiB);
  free(a);
  free(b);
  EXPECT_FALSE(allocate(12 * kMiB).is_null());
}

TEST_F(LadderTest, ARefusedReleaseDoesNotHideItsMemoryForGood) {
  start(12 * kMiB);
  const VirtAddr a = allocate(8 * kMiB);
  free(a);
  sim_->fail_call(DriverCall::kRelease, 1, Errc::kDriverFailure);
  sim_->fail_call(DriverCall::kRelease, 2, Errc::kDriverFailure);
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().reserved, 8 * kMiB);
  EXPECT_FALSE(allocate(12 * kMiB).is_null()) << "spares are offered to the driver again";
}

TEST_F(FullDevice, OneHandleThatWillNotUnmapDoesNotHoldUpTheOthers) {
  for (std::uint64_t nth = 1; nth <= 3; ++nth) {
    fill(1);
    sim_->fail_call(DriverCall::kUnmap, nth, Errc::kDriverFailure);
    EXPECT_FALSE(allocate(8 * kMiB).is_null()) << nth;
    sim_->clear_faults();
    allocator_->check();
  }
}

// Handles given back one after the other until a small new one fits: none is passed over.
TEST_F(LadderTest, EveryIdleHandleGoesForOneThatIsNeeded) {
  start(256 * kMiB);
  std::vector<VirtAddr> all;
  for (int i = 0; i < 32; ++i) {
    all.push_back(allocate(4 * kMiB));
  }
  for (const VirtAddr address : all) {
    free(address);
  }
  sim_->complete_all();
  allocator_->trim(kGiB);  // asks the stream
  ASSERT_EQ(allocator_->stats().reserved, 128 * kMiB);
  sim_->set_physical_memory(kDevice, 2 * kMiB);
  begin_pool({1, 1}, kA);
  EXPECT_FALSE(allocate(2 * kMiB).is_null());
  ASSERT_TRUE(allocator_->end_allocate_to_pool({1, 1}).ok());
}

// What was live when the limit was lowered is no way around it once it is free.
TEST_F(LadderTest, WhatIsFreedUnderALoweredLimitIsNotServedAgain) {
  start(64 * kMiB);
  const VirtAddr large = allocate(48 * kMiB);
  allocator_->set_limit(16 * kMiB);
  EXPECT_EQ(allocator_->stats().reserved, 48 * kMiB) << "live memory stays";
  free(large);
  const VirtAddr small = allocate(8 * kMiB);
  EXPECT_FALSE(small.is_null());
  EXPECT_LE(allocator_->stats().reserved, 16 * kMiB);
  EXPECT_TRUE(allocate(16 * kMiB).is_null());
  EXPECT_TRUE(allocator_->last_oom().limit_reached);
  free(small);
}

// What cannot be had is not tried for: no memory is made, waited for or taken apart.
TEST_F(LadderTest, AHopelessRequestTakesNothingApart) {
  start(64 * kMiB);
  const VirtAddr kept = allocate(32 * kMiB);
  const VirtAddr idle = allocate(16 * kMiB);
  free(idle);
  recorder_->take();
  EXPECT_TRUE(allocate(33 * kMiB).is_null());
  Calls calls = recorder_->take();
  EXPECT_EQ(count(calls, "create") + count(calls, "map") + count(calls, "unmap") +
                count(calls, "event_synchronize"),
            0);
  // Here the device would have it, but others do: one look at what it has left is enough.
  sim_->set_memory_of_others(kDevice, 12 * kMiB);
  EXPECT_TRUE(allocate(24 * kMiB).is_null());
  calls = recorder_->take();
  EXPECT_EQ(count(calls, "unmap") + count(calls, "event_synchronize"), 0);
  sim_->set_memory_of_others(kDevice, Bytes(0));
  EXPECT_FALSE(allocate(32 * kMiB).is_null()) << "all that there is";
  free(kept);
}

}  // namespace
}  // namespace nofrag
