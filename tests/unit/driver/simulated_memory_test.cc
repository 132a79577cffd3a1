// Memory rules of the simulated driver that the conformance tests cannot ask a real one: exact
// accounting, contents, running kernels, leaks, faults.
#include <functional>

#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};
constexpr DeviceOrdinal kPeer{1};
constexpr StreamId kStream{7};
constexpr StreamId kOther{8};
constexpr Bytes kUnit = 2 * kMiB;
constexpr Bytes kSpace = 256 * kMiB;

class SimulatedMemoryTest : public testing::Test {
 protected:
  SimulatedMemoryTest() : driver_({SimulatedDeviceSpec{}, SimulatedDeviceSpec{}}) {
    driver_.set_completion(Completion::kByHand);
    range_ = driver_.reserve(kSpace, Bytes(0)).value();
  }
  ~SimulatedMemoryTest() override { driver_.check(); }

  HandleId create(Bytes size) { return driver_.create(kDevice, size).value(); }
  void map(Bytes at, HandleId handle, Bytes size) {
    ASSERT_TRUE(driver_.map(range_ + at, size, handle));
    ASSERT_TRUE(driver_.set_access(range_ + at, size, kDevice));
  }

  SimulatedDriver driver_;
  VirtAddr range_;
};

TEST_F(SimulatedMemoryTest, ReleaseTwiceIsRefused) {
  const HandleId handle = create(kUnit);
  EXPECT_TRUE(driver_.release(handle));
  EXPECT_EQ(driver_.release(handle).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver_.release(HandleId{12345}).code(), Errc::kInvalidArgument);
}

TEST_F(SimulatedMemoryTest, ReleaseTwiceIsRefusedWhileMapped) {
  const HandleId handle = create(kUnit);
  map(Bytes(0), handle, kUnit);
  EXPECT_TRUE(driver_.release(handle));
  EXPECT_EQ(driver_.release(handle).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver_.map(range_ + kUnit, kUnit, handle).code(), Errc::kInvalidArgument)
      << "a released handle cannot be mapped again";
}

TEST_F(SimulatedMemoryTest, PhysicalBytesStayUntilTheLastUnmap) {
  const HandleId handle = create(kUnit * 3);
  map(Bytes(0), handle, kUnit * 3);
  map(kUnit * 8, handle, kUnit * 3);
  EXPECT_EQ(driver_.physical_in_use(kDevice), kUnit * 3) << "an alias takes nothing";
  EXPECT_TRUE(driver_.release(handle));
  EXPECT_TRUE(driver_.unmap(range_, kUnit * 3));
  EXPECT_EQ(driver_.physical_in_use(kDevice), kUnit * 3);
  EXPECT_TRUE(driver_.unmap(range_ + kUnit * 8, kUnit * 3));
  EXPECT_TRUE(driver_.physical_in_use(kDevice).is_zero());
}

TEST_F(SimulatedMemoryTest, CreateFailsExactlyAtTheEndOfMemory) {
  driver_.set_physical_memory(kDevice, kUnit * 4);
  EXPECT_EQ(driver_.device_info(kDevice).value().total_memory, kUnit * 4);
  const HandleId handle = create(kUnit * 3);
  EXPECT_EQ(driver_.create(kDevice, kUnit * 2).code(), Errc::kOutOfMemory);
  const HandleId last = create(kUnit);
  EXPECT_EQ(driver_.create(kDevice, kUnit).code(), Errc::kOutOfMemory);
  EXPECT_TRUE(driver_.memory_info(kDevice).value().free.is_zero());
  EXPECT_TRUE(driver_.release(last));
  EXPECT_TRUE(driver_.release(handle));
  EXPECT_EQ(driver_.memory_info(kDevice).value().free, kUnit * 4);
}

TEST_F(SimulatedMemoryTest, OthersAndShrinkingLeaveLess) {
  driver_.set_physical_memory(kDevice, kUnit * 10);
  driver_.set_memory_of_others(kDevice, kUnit * 6);
  EXPECT_EQ(driver_.memory_info(kDevice).value().free, kUnit * 4);
  create(kUnit * 3);
  driver_.set_physical_memory(kDevice, kUnit * 2);
  EXPECT_TRUE(driver_.memory_info(kDevice).value().free.is_zero());
  EXPECT_EQ(driver_.create(kDevice, kUnit).code(), Errc::kOutOfMemory);
  EXPECT_EQ(driver_.physical_in_use(kDevice), kUnit * 3);
  EXPECT_TRUE(driver_.create(kPeer, kUnit)) << "the other device is not concerned";
}

TEST_F(SimulatedMemoryTest, PlainMemoryTakesWholeUnits) {
  const VirtAddr small = driver_.malloc(kDevice, Bytes(512)).value();
  EXPECT_EQ(driver_.physical_in_use(kDevice), kUnit);
  const VirtAddr large = driver_.malloc(kDevice, kUnit + Bytes(1)).value();
  EXPECT_EQ(driver_.physical_in_use(kDevice), kUnit * 3);
  EXPECT_EQ(driver_.free(kPeer, large).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver_.free(kDevice, large + Bytes(512)).code(), Errc::kInvalidArgument);
  EXPECT_FALSE(driver_.unmap(small, kUnit)) << "not ours to unmap";
  EXPECT_TRUE(driver_.free(kDevice, large));
  EXPECT_EQ(driver_.free(kDevice, large).code(), Errc::kInvalidArgument);
  EXPECT_TRUE(driver_.free(kDevice, small));
  EXPECT_TRUE(driver_.physical_in_use(kDevice).is_zero());
}

TEST_F(SimulatedMemoryTest, PlainMemoryOfAbsurdSizeIsOutOfMemory) {
  EXPECT_EQ(driver_.malloc(kDevice, Bytes(UINT64_MAX)).code(), Errc::kOutOfMemory);
  EXPECT_EQ(driver_.malloc(kDevice, Bytes(UINT64_MAX - 4096)).code(), Errc::kOutOfMemory);
}

TEST_F(SimulatedMemoryTest, ReservationsMustBeExact) {
  EXPECT_FALSE(driver_.reserve(Bytes(4096), Bytes(0)));
  EXPECT_FALSE(driver_.reserve(Bytes(0), Bytes(0)));
  EXPECT_FALSE(driver_.reserve(kUnit, kUnit * 3)) << "alignment is a power of two";
  const VirtAddr next = driver_.reserve(kUnit, Bytes(0)).value();
  EXPECT_FALSE(driver_.map(next, kUnit * 2, create(kUnit * 2)));
  EXPECT_TRUE(driver_.free_range(next, kUnit));
  EXPECT_FALSE(driver_.free_range(next, kUnit)) << "twice";
  EXPECT_FALSE(driver_.map(next, kUnit, create(kUnit))) << "no longer reserved";
}

TEST_F(SimulatedMemoryTest, AddressSpaceIsRecycled) {
  const Bytes quarter(std::uint64_t{1} << 44);
  for (int i = 0; i < 100; ++i) {
    const Result<VirtAddr> range = driver_.reserve(quarter, Bytes(0));
    ASSERT_TRUE(range) << i;
    ASSERT_TRUE(driver_.free_range(range.value(), quarter));
  }
}

// Two rules that the real driver does not check (measured), so that the mistake shows here.
TEST_F(SimulatedMemoryTest, MappingBeyondTheReservationIsRefused) {
  const HandleId handle = create(kUnit * 2);
  EXPECT_FALSE(driver_.map(range_ + kSpace - kUnit, kUnit * 2, handle));
  EXPECT_TRUE(driver_.map(range_ + kSpace - kUnit * 2, kUnit * 2, handle));
}

TEST_F(SimulatedMemoryTest, UnmappingNothingIsRefused) {
  map(Bytes(0), create(kUnit), kUnit);
  EXPECT_FALSE(driver_.unmap(range_ + kUnit, kUnit));
  EXPECT_FALSE(driver_.unmap(range_, kUnit * 2));
  EXPECT_TRUE(driver_.unmap(range_, kUnit));
  EXPECT_FALSE(driver_.unmap(range_, kUnit));
}

// ---- contents

TEST_F(SimulatedMemoryTest, AliasesShowTheSameContents) {
  const HandleId handle = create(kUnit);
  map(Bytes(0), handle, kUnit);
  map(kUnit * 4, handle, kUnit);
  EXPECT_EQ(driver_.read_tag(range_).value(), SimulatedDriver::kUninitialised);
  EXPECT_TRUE(driver_.write(kStream, range_ + Bytes(512), Bytes(1024), 42));
  EXPECT_TRUE(driver_.check_contents(range_ + kUnit * 4 + Bytes(512), Bytes(1024), 42));
  EXPECT_EQ(driver_.read_tag(range_ + kUnit * 4 + Bytes(511)).value(), 0U);
  EXPECT_EQ(driver_.read_tag(range_ + kUnit * 4 + Bytes(1536)).value(), 0U);
  EXPECT_EQ(driver_.violation_count(), 0U);
}

TEST_F(SimulatedMemoryTest, ContentsFollowTheHandleNotTheAddress) {
  const HandleId first = create(kUnit);
  const HandleId second = create(kUnit);
  map(Bytes(0), first, kUnit);
  map(kUnit, second, kUnit);
  EXPECT_TRUE(driver_.write(kStream, range_, kUnit * 2, 5)) << "one kernel over both mappings";
  driver_.complete_all();
  EXPECT_TRUE(driver_.write(kStream, range_ + kUnit, kUnit, 6));
  driver_.complete_all();
  EXPECT_TRUE(driver_.unmap(range_, kUnit * 2));
  map(Bytes(0), second, kUnit);  // swapped
  map(kUnit, first, kUnit);
  EXPECT_TRUE(driver_.check_contents(range_, kUnit, 6));
  EXPECT_TRUE(driver_.check_contents(range_ + kUnit, kUnit, 5));
  EXPECT_EQ(driver_.violation_count(), 0U);

  EXPECT_EQ(driver_.check_contents(range_, kUnit, 5).code(), Errc::kDriverFailure);
  EXPECT_FALSE(driver_.check_contents(range_, kUnit * 2, 6));
  ASSERT_EQ(driver_.violation_count(), 2U);
  EXPECT_NE(driver_.violations()[0].find("expected 5, found 6"), std::string::npos)
      << driver_.violations()[0];
}

TEST_F(SimulatedMemoryTest, OverlappingWritesCutEachOther) {
  map(Bytes(0), create(kUnit), kUnit);
  EXPECT_TRUE(driver_.write(kStream, range_, Bytes(3000), 1));
  EXPECT_TRUE(driver_.write(kStream, range_ + Bytes(1000), Bytes(1000), 2));
  EXPECT_TRUE(driver_.check_contents(range_, Bytes(1000), 1));
  EXPECT_TRUE(driver_.check_contents(range_ + Bytes(1000), Bytes(1000), 2));
  EXPECT_TRUE(driver_.check_contents(range_ + Bytes(2000), Bytes(1000), 1));
  EXPECT_TRUE(driver_.check_contents(range_ + Bytes(3000), Bytes(1), 0));
  EXPECT_FALSE(driver_.check_contents(range_, Bytes(1001), 1));
  EXPECT_FALSE(driver_.check_contents(range_ + Bytes(2999), Bytes(2), 1));
}

TEST_F(SimulatedMemoryTest, FreshMemoryHasNoContents) {
  const HandleId old = create(kUnit);
  map(Bytes(0), old, kUnit);
  EXPECT_TRUE(driver_.write(kStream, range_, kUnit, 9));
  driver_.complete_all();
  EXPECT_TRUE(driver_.unmap(range_, kUnit));
  EXPECT_TRUE(driver_.release(old));
  map(Bytes(0), create(kUnit), kUnit);
  EXPECT_FALSE(driver_.check_contents(range_, kUnit, 9));
}

// ---- touching what is not there

TEST_F(SimulatedMemoryTest, TouchingUnmappedMemoryIsAViolation) {
  map(Bytes(0), create(kUnit), kUnit);
  EXPECT_FALSE(driver_.launch(kStream, range_ + kUnit, kUnit));
  EXPECT_FALSE(driver_.launch(kStream, range_, kUnit + Bytes(1))) << "one byte too far";
  EXPECT_FALSE(driver_.read_tag(VirtAddr(4096)));
  EXPECT_EQ(driver_.violation_count(), 3U);
}

TEST_F(SimulatedMemoryTest, TouchingWithoutAccessIsAViolation) {
  ASSERT_TRUE(driver_.map(range_, kUnit, create(kUnit)));
  EXPECT_EQ(driver_.write(kStream, range_, kUnit, 1).error().driver_code, 700);
  ASSERT_TRUE(driver_.set_access(range_, kUnit, kDevice));
  EXPECT_TRUE(driver_.write(kStream, range_, kUnit, 1));
  EXPECT_FALSE(driver_.launch(kStream, range_, kUnit, 0, kPeer)) << "granted to one device only";
  ASSERT_TRUE(driver_.set_access(range_, kUnit, kPeer));
  EXPECT_TRUE(driver_.launch(kStream, range_, kUnit, 0, kPeer));
  EXPECT_EQ(driver_.violation_count(), 2U);
}

TEST_F(SimulatedMemoryTest, RemappingTakesAccessAway) {
  const HandleId handle = create(kUnit);
  map(Bytes(0), handle, kUnit);
  EXPECT_TRUE(driver_.unmap(range_, kUnit));
  ASSERT_TRUE(driver_.map(range_, kUnit, handle));
  EXPECT_FALSE(driver_.launch(kStream, range_, kUnit));
}

// ---- running kernels

TEST_F(SimulatedMemoryTest, UnmapUnderARunningKernelIsAViolation) {
  map(Bytes(0), create(kUnit), kUnit);
  map(kUnit, create(kUnit), kUnit);
  EXPECT_TRUE(driver_.launch(kStream, range_ + Bytes(100), Bytes(1)));
  EXPECT_TRUE(driver_.unmap(range_ + kUnit, kUnit)) << "its neighbour is not concerned";
  const Status status = driver_.unmap(range_, kUnit);
  EXPECT_EQ(status.code(), Errc::kDriverFailure);
  EXPECT_EQ(driver_.leaks().mappings, 1U) << "and nothing was unmapped";
  driver_.complete_stream(kOther);
  EXPECT_FALSE(driver_.unmap(range_, kUnit));
  driver_.complete_stream(kStream);
  EXPECT_TRUE(driver_.unmap(range_, kUnit));
  EXPECT_EQ(driver_.violation_count(), 2U);
}

TEST_F(SimulatedMemoryTest, AliasesMayComeAndGoBesideARunningKernel) {
  const HandleId handle = create(kUnit);
  map(Bytes(0), handle, kUnit);
  EXPECT_TRUE(driver_.launch(kStream, range_, kUnit));
  map(kUnit * 2, handle, kUnit);
  EXPECT_TRUE(driver_.unmap(range_ + kUnit * 2, kUnit));
  EXPECT_EQ(driver_.violation_count(), 0U);
}

TEST_F(SimulatedMemoryTest, ViolationsCanPassLikeOnHardware) {
  driver_.set_violations_fail(false);
  map(Bytes(0), create(kUnit), kUnit);
  EXPECT_TRUE(driver_.launch(kStream, range_, kUnit));
  EXPECT_TRUE(driver_.unmap(range_, kUnit)) << "the real driver does not notice";
  EXPECT_EQ(driver_.violation_count(), 1U);
  EXPECT_EQ(driver_.leaks().mappings, 0U);
}

TEST_F(SimulatedMemoryTest, UnorderedKernelsOfTwoBlocksConflict) {
  const HandleId handle = create(kUnit);
  map(Bytes(0), handle, kUnit);
  map(kUnit * 4, handle, kUnit);
  const VirtAddr alias = range_ + kUnit * 4;
  EXPECT_TRUE(driver_.launch(kStream, range_, Bytes(1024), 1));
  EXPECT_TRUE(driver_.launch(kOther, range_, Bytes(1024), 1)) << "both belong to one block";
  EXPECT_TRUE(driver_.launch(kOther, alias + Bytes(1024), Bytes(1024), 2)) << "other bytes";
  EXPECT_FALSE(driver_.launch(kOther, alias, Bytes(1024), 2)) << "same bytes by an alias";
  driver_.complete_all();
  EXPECT_TRUE(driver_.launch(kOther, alias, Bytes(1024), 3));
  EXPECT_TRUE(driver_.launch(kOther, range_, Bytes(1024), 4)) << "ordered by the stream";
  EXPECT_EQ(driver_.violation_count(), 1U);
}

TEST_F(SimulatedMemoryTest, WaitingForAnEventOrdersKernels) {
  map(Bytes(0), create(kUnit), kUnit);
  const StreamId middle{9};
  const EventId first = driver_.event_create(kDevice).value();
  const EventId second = driver_.event_create(kDevice).value();
  EXPECT_TRUE(driver_.launch(kStream, range_, kUnit, 1));
  EXPECT_TRUE(driver_.event_record(kDevice, first, kStream));
  EXPECT_TRUE(driver_.stream_wait(kDevice, middle, first));
  EXPECT_TRUE(driver_.event_record(kDevice, second, middle));
  EXPECT_TRUE(driver_.stream_wait(kDevice, kOther, second));
  EXPECT_TRUE(driver_.launch(kOther, range_, kUnit, 2)) << "behind it by way of a third stream";
  EXPECT_FALSE(driver_.launch(StreamId(10), range_, kUnit, 3)) << "this one waits for nothing";
  EXPECT_TRUE(driver_.launch(kStream, range_ + kUnit - Bytes(1), Bytes(1), 2))
      << "the same block as the kernel on the other stream";
  EXPECT_EQ(driver_.violation_count(), 1U);
}

TEST_F(SimulatedMemoryTest, FreeOfPlainMemoryWaitsForKernels) {
  const VirtAddr address = driver_.malloc(kDevice, kUnit).value();
  const EventId event = driver_.event_create(kDevice).value();
  EXPECT_TRUE(driver_.launch(kStream, address, kUnit));
  EXPECT_TRUE(driver_.event_record(kDevice, event, kStream));
  EXPECT_EQ(driver_.event_query(kDevice, event).code(), Errc::kNotReady);
  EXPECT_TRUE(driver_.free(kDevice, address));
  EXPECT_TRUE(driver_.event_query(kDevice, event));
  EXPECT_EQ(driver_.violation_count(), 0U);
}

// ---- leaks, faults, devices without virtual memory

TEST_F(SimulatedMemoryTest, LeaksAreCounted) {
  const HandleId handle = create(kUnit * 2);
  map(Bytes(0), handle, kUnit * 2);
  map(kUnit * 2, handle, kUnit * 2);
  ASSERT_TRUE(driver_.malloc(kDevice, Bytes(100)));
  ASSERT_TRUE(driver_.event_create(kDevice));
  SimulatedLeaks leaks = driver_.leaks();
  EXPECT_FALSE(leaks.none());
  EXPECT_EQ(leaks.handles, 1U);
  EXPECT_EQ(leaks.handle_bytes, kUnit * 2);
  EXPECT_EQ(leaks.mappings, 2U);
  EXPECT_EQ(leaks.mapped_bytes, kUnit * 4);
  EXPECT_EQ(leaks.reservations, 1U);
  EXPECT_EQ(leaks.reserved_bytes, kSpace);
  EXPECT_EQ(leaks.mallocs, 1U);
  EXPECT_EQ(leaks.malloc_bytes, Bytes(100));
  EXPECT_EQ(leaks.events, 1U);
}

TEST_F(SimulatedMemoryTest, EverythingGivenBackLeavesNoLeak) {
  const HandleId handle = create(kUnit);
  map(Bytes(0), handle, kUnit);
  const EventId event = driver_.event_create(kDevice).value();
  const VirtAddr plain = driver_.malloc(kDevice, kUnit).value();
  EXPECT_TRUE(driver_.free(kDevice, plain));
  EXPECT_TRUE(driver_.event_destroy(kDevice, event));
  EXPECT_TRUE(driver_.unmap(range_, kUnit));
  EXPECT_TRUE(driver_.release(handle));
  EXPECT_TRUE(driver_.free_range(range_, kSpace));
  EXPECT_TRUE(driver_.leaks().none());
}

// Fails every call of a small life in turn: the failed call changed nothing, and made again it does
// what it should have done.
TEST_F(SimulatedMemoryTest, AFailedCallChangesNothing) {
  const auto life = [this](std::uint64_t failing) {
    const auto leaks_of = [this] {
      const SimulatedLeaks leaks = driver_.leaks();
      return std::vector<std::uint64_t>{leaks.handles,
                                        leaks.mappings,
                                        leaks.reservations,
                                        leaks.mallocs,
                                        leaks.events,
                                        driver_.physical_in_use(kDevice).count()};
    };
    int failures = 0;
    HandleId handle;
    VirtAddr plain;
    EventId event;
    const std::vector<std::function<Status()>> steps = {
        [&] {
          auto result = driver_.create(kDevice, kUnit);
          handle = result ? result.value() : handle;
          return Status(result.error());
        },
        [&] { return driver_.map(range_, kUnit, handle); },
        [&] { return driver_.set_access(range_, kUnit, kDevice); },
        [&] {
          auto result = driver_.malloc(kDevice, kUnit);
          plain = result ? result.value() : plain;
          return Status(result.error());
        },
        [&] {
          auto result = driver_.event_create(kDevice);
          event = result ? result.value() : event;
          return Status(result.error());
        },
        [&] { return driver_.event_record(kDevice, event, kStream); },
        [&] { return driver_.event_synchronize(kDevice, event); },
        [&] { return driver_.event_query(kDevice, event); },
        [&] { return driver_.event_destroy(kDevice, event); },
        [&] { return driver_.free(kDevice, plain); },
        [&] { return driver_.unmap(range_, kUnit); },
        [&] { return driver_.release(handle); }};
    driver_.fail_any_call(failing, Errc::kDriverFailure);
    for (const auto& step : steps) {
      const auto before = leaks_of();
      if (!step()) {
        ++failures;
        EXPECT_EQ(leaks_of(), before);
        EXPECT_TRUE(step());
      }
      driver_.check();
    }
    return failures;
  };
  for (std::uint64_t n = 1; n <= 12; ++n) {
    EXPECT_EQ(life(n), 1) << "call " << n;
  }
  driver_.clear_faults();
  EXPECT_TRUE(driver_.free_range(range_, kSpace));
  EXPECT_TRUE(driver_.leaks().none());
}

TEST_F(SimulatedMemoryTest, FaultScripts) {
  std::string error;
  ASSERT_TRUE(driver_.add_faults("create:2=out_of_memory,any:4+=driver_failure", &error)) << error;
  EXPECT_TRUE(driver_.create(kDevice, kUnit));                                  // 1
  EXPECT_TRUE(driver_.event_create(kDevice));                                   // 2
  EXPECT_EQ(driver_.create(kDevice, kUnit).error().driver_code, 2);             // 3
  EXPECT_EQ(driver_.memory_info(kDevice).code(), Errc::kDriverFailure);         // 4
  EXPECT_EQ(driver_.device_synchronize(kDevice).code(), Errc::kDriverFailure);  // 5
  driver_.clear_faults();
  EXPECT_TRUE(driver_.create(kDevice, kUnit));
}

TEST_F(SimulatedMemoryTest, BadFaultScriptsSayWhatIsExpected) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"map", "CALL:N=CODE"},
      {"mapp:1=out_of_memory", "unknown call 'mapp'"},
      {"map:0=out_of_memory", "number from 1"},
      {"map:x=out_of_memory", "number from 1"},
      {"map:1=oom", "out_of_memory"},
      {"map:1=ok", "out_of_memory"},
      {"create:1=out_of_memory,,", "CALL:N=CODE"}};
  for (const auto& [script, expected] : bad) {
    std::string error;
    EXPECT_FALSE(driver_.add_faults(script, &error)) << script;
    EXPECT_NE(error.find(expected), std::string::npos) << script << " -> " << error;
  }
  EXPECT_TRUE(driver_.create(kDevice, kUnit)) << "a bad script adds no fault";
}

TEST(SimulatedPlainDevice, HasNoVirtualMemory) {
  SimulatedDeviceSpec spec;
  spec.info.virtual_memory = false;
  spec.info.granularity = Bytes(0);
  SimulatedDriver driver(spec);
  EXPECT_EQ(driver.create(kDevice, kUnit).code(), Errc::kNotSupported);
  EXPECT_EQ(driver.reserve(kUnit, Bytes(0)).code(), Errc::kNotSupported);
  EXPECT_TRUE(driver.device_info(kDevice).value().granularity.is_zero());
  const VirtAddr address = driver.malloc(kDevice, Bytes(1)).value();
  EXPECT_EQ(driver.physical_in_use(kDevice), kUnit);
  EXPECT_TRUE(driver.free(kDevice, address));
}

}  // namespace
}  // namespace nofrag
