// Streams: ticks, markers, waits, captures, streams that go away.
#include "stream/streams.h"

#include <thread>

#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice(0);
constexpr StreamId kA(0x100);
constexpr StreamId kB(0x200);
constexpr StreamId kPerThread(2);

class StreamsTest : public testing::Test {
 protected:
  StreamsTest() { driver_.set_completion(Completion::kByHand); }
  ~StreamsTest() override { streams_.check(); }
  [[nodiscard]] std::uint64_t calls(DriverCall call) const { return driver_.ledger().count(call); }

  SimulatedDriver driver_{SimulatedDeviceSpec{}};
  Streams streams_{driver_, kDevice};
};

TEST_F(StreamsTest, AClockPerStream) {
  StreamClock& a = streams_.clock(kA);
  EXPECT_FALSE(streams_.several());
  StreamClock& b = streams_.clock(kB);
  EXPECT_TRUE(streams_.several());
  EXPECT_EQ(&streams_.clock(kA), &a);
  EXPECT_EQ(&streams_.clock(kB), &b);
  EXPECT_NE(a.index, b.index);
}

TEST_F(StreamsTest, OneMarkerAnswersForEverythingStampedBefore) {
  StreamClock& a = streams_.clock(kA);
  const Tick first = a.stamp();
  const Tick second = a.stamp();
  EXPECT_EQ(first, second) << "no marker lies between";
  ASSERT_TRUE(streams_.mark(a).ok());
  const Tick later = a.stamp();
  EXPECT_GT(later, first);
  EXPECT_FALSE(streams_.is_done(a, first));
  driver_.complete_stream(kA);
  EXPECT_TRUE(streams_.is_done(a, first));
  EXPECT_FALSE(streams_.is_done(a, later)) << "nobody recorded its marker";
  ASSERT_TRUE(streams_.mark_up_to(a, later).ok());
  EXPECT_FALSE(streams_.is_done(a, later));
  driver_.complete_stream(kA);
  EXPECT_TRUE(streams_.is_done(a, later));
}

TEST_F(StreamsTest, MarkUpToRecordsOnlyWhenNeeded) {
  StreamClock& a = streams_.clock(kA);
  const Tick tick = a.stamp();
  const std::uint64_t records = calls(DriverCall::kEventRecord);  // one at first sight
  ASSERT_TRUE(streams_.mark_up_to(a, tick).ok());
  ASSERT_TRUE(streams_.mark_up_to(a, tick).ok());
  EXPECT_EQ(calls(DriverCall::kEventRecord), records + 1);
}

TEST_F(StreamsTest, EventsAreUsedAgain) {
  StreamClock& a = streams_.clock(kA);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(streams_.mark(a).ok());
    driver_.complete_stream(kA);
    streams_.poll(a);
  }
  EXPECT_EQ(calls(DriverCall::kEventCreate), 2U) << "one at first sight, one for all the others";
}

TEST_F(StreamsTest, PollStopsAtTheFirstMarkerThatIsNotDone) {
  StreamClock& a = streams_.clock(kA);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(streams_.mark(a).ok());
  }
  streams_.poll(a);
  EXPECT_EQ(calls(DriverCall::kEventQuery), 1U);
  EXPECT_EQ(a.completed, 0U);
}

TEST_F(StreamsTest, AnErrorIsNeverTakenForDone) {
  StreamClock& a = streams_.clock(kA);
  const Tick tick = a.stamp();
  ASSERT_TRUE(streams_.mark(a).ok());
  driver_.complete_stream(kA);
  driver_.fail_call(DriverCall::kEventQuery, 1, Errc::kDriverFailure);
  EXPECT_FALSE(streams_.is_done(a, tick));
  EXPECT_TRUE(streams_.is_done(a, tick));
}

TEST_F(StreamsTest, ARefusedMarkerLeavesTheClockAsItWas) {
  StreamClock& a = streams_.clock(kA);
  for (const DriverCall call :
       {DriverCall::kStreamCaptureQuery, DriverCall::kEventCreate, DriverCall::kEventRecord}) {
    driver_.fail_call(call, 1, Errc::kDriverFailure);
    EXPECT_FALSE(streams_.mark(a).ok()) << to_string(call);
    EXPECT_EQ(a.issued, 1U) << "the marker of first sight";
    streams_.check();
  }
  EXPECT_TRUE(streams_.mark(a).ok());
  EXPECT_EQ(driver_.leaks().events, 2U) << "the event of the refused record is used";
}

TEST_F(StreamsTest, HostWaitRecordsTheMarkerItNeeds) {
  StreamClock& a = streams_.clock(kA);
  const Tick tick = a.stamp();
  ASSERT_TRUE(streams_.wait_host(a, tick).ok());
  EXPECT_TRUE(a.done(tick));
  ASSERT_TRUE(streams_.wait_host(a, tick).ok());
  EXPECT_EQ(calls(DriverCall::kEventSynchronize), 1U);
}

TEST_F(StreamsTest, DeviceWaitOrdersTheWaiterAndHoldsNobodyUp) {
  StreamClock& a = streams_.clock(kA);
  StreamClock& b = streams_.clock(kB);
  const HandleId handle = driver_.create(kDevice, 2 * kMiB).value();
  const VirtAddr address = driver_.reserve(2 * kMiB, Bytes(0)).value();
  ASSERT_TRUE(driver_.map(address, 2 * kMiB, handle).ok());
  ASSERT_TRUE(driver_.set_access(address, 2 * kMiB, kDevice).ok());
  ASSERT_TRUE(driver_.launch(kA, address, kMiB, 1).ok());
  ASSERT_TRUE(streams_.wait_device(b, a, a.stamp()).ok());
  EXPECT_FALSE(a.done(1));
  EXPECT_TRUE(driver_.launch(kB, address, kMiB, 2).ok()) << "ordered behind the first owner";
  EXPECT_EQ(driver_.violation_count(), 0U);
  EXPECT_TRUE(streams_.wait_device(a, a, a.stamp()).ok()) << "a stream follows itself";
  EXPECT_EQ(calls(DriverCall::kStreamWait), 1U);
}

TEST_F(StreamsTest, NothingIsRecordedOnOrWaitedForACapturedStream) {
  StreamClock& a = streams_.clock(kA);
  StreamClock& b = streams_.clock(kB);
  driver_.begin_capture(kA);
  EXPECT_EQ(streams_.mark(a).code(), Errc::kCapturing);
  EXPECT_EQ(streams_.wait_host(a, a.stamp()).code(), Errc::kCapturing);
  EXPECT_EQ(streams_.wait_device(b, a, a.stamp()).code(), Errc::kCapturing);
  EXPECT_EQ(streams_.wait_device(a, b, b.stamp()).code(), Errc::kCapturing);
  EXPECT_EQ(streams_.retire(kA).code(), Errc::kCapturing);
  EXPECT_EQ(streams_.wait_device_idle().code(), Errc::kCapturing);
  EXPECT_TRUE(streams_.any_capturing());
  EXPECT_TRUE(driver_.end_capture(kA)) << "the capture is still good";
  EXPECT_TRUE(streams_.mark(a).ok());
  EXPECT_FALSE(streams_.any_capturing());
}

TEST_F(StreamsTest, RetiredStreamIsNeverTouchedAgain) {
  StreamClock& a = streams_.clock(kA);
  const Tick before = a.stamp();
  ASSERT_TRUE(streams_.retire(kA).ok());
  EXPECT_EQ(a.stamp(), before) << "its last marker covers whatever is stamped later";
  const std::uint64_t records = calls(DriverCall::kEventRecord);
  EXPECT_FALSE(streams_.mark(a).ok());
  EXPECT_TRUE(streams_.mark_up_to(a, before).ok());
  EXPECT_TRUE(streams_.wait_host(a, a.stamp()).ok());
  EXPECT_TRUE(streams_.retire(kA).ok()) << "twice is once";
  EXPECT_EQ(calls(DriverCall::kEventRecord), records);
  EXPECT_EQ(calls(DriverCall::kDeviceSynchronize), 0U);
}

// Memory is freed after its stream is gone, as a rule: that is no reason to visit the stream for ever.
TEST_F(StreamsTest, AStreamThatTakesNoMarkerRestsOnceItsMarkersAreDone) {
  const auto visited = [this] {
    std::size_t count = 0;
    streams_.for_each_active([&](StreamClock& clock) {
      ++count;
      streams_.poll(clock);
      clock.taken_in = clock.completed;
    });
    return count;
  };
  StreamClock& a = streams_.clock(kA);
  ASSERT_TRUE(streams_.retire(kA).ok());
  streams_.note_freed(a, kMiB);
  EXPECT_EQ(visited(), 1U) << "its last marker is not done";
  driver_.complete_all();
  EXPECT_EQ(visited(), 1U);
  EXPECT_EQ(visited(), 0U);
  streams_.check();
  streams_.note_freed(a, kMiB);
  visited();
  EXPECT_EQ(visited(), 0U);
  // A wait for the device has news of all.
  ASSERT_TRUE(streams_.wait_device_idle().ok());
  EXPECT_EQ(visited(), 1U);
}

// The driver gives a destroyed stream's handle to the next one made, while the old work still runs.
TEST_F(StreamsTest, AHandleThatComesBackIsAnotherStream) {
  StreamClock& old = streams_.clock(kA);
  const Tick tick = old.stamp();
  ASSERT_TRUE(streams_.retire(kA).ok());
  driver_.destroy_stream(kA);
  StreamClock& fresh = streams_.clock(kA);
  ASSERT_NE(&fresh, &old);
  EXPECT_EQ(&streams_.clock(kA), &fresh);
  ASSERT_TRUE(streams_.wait_host(fresh, fresh.stamp()).ok());
  EXPECT_FALSE(old.done(tick)) << "the new stream's event says nothing about the old one's work";
  ASSERT_TRUE(streams_.wait_host(old, tick).ok());
  EXPECT_EQ(calls(DriverCall::kDeviceSynchronize), 0U) << "its last marker was enough";
}

TEST_F(StreamsTest, AStreamDestroyedWithoutAWordIsWaitedForByTheDevice) {
  StreamClock& old = streams_.clock(kA);
  const Tick tick = old.stamp();
  driver_.destroy_stream(kA);
  // Nobody has named the handle since: the question comes from a marker.
  EXPECT_FALSE(streams_.mark(old).ok());
  EXPECT_TRUE(old.gone);
  EXPECT_NE(&streams_.clock(kA), &old);
  EXPECT_FALSE(old.done(tick));
  ASSERT_TRUE(streams_.wait_host(old, tick).ok());
  EXPECT_EQ(calls(DriverCall::kDeviceSynchronize), 1U);
  EXPECT_TRUE(old.done(old.stamp())) << "no more work can come";
}

// Asking a captured stream who it is breaks its capture (the simulated driver does the same).
TEST_F(StreamsTest, ACapturedHandleHasAClockOfItsOwnAndIsNotAsked) {
  StreamClock& before = streams_.clock(kA);
  driver_.begin_capture(kA);
  StreamClock& captured = streams_.clock(kA);
  EXPECT_NE(&captured, &before);
  EXPECT_EQ(&streams_.clock(kA), &captured);
  const Tick tick = captured.stamp();
  EXPECT_FALSE(streams_.mark(captured).ok());
  EXPECT_TRUE(driver_.end_capture(kA)) << "the capture is still good";
  EXPECT_EQ(&streams_.clock(kA), &before);
  EXPECT_FALSE(streams_.mark(captured).ok()) << "whose handle is it now?";
  ASSERT_TRUE(streams_.wait_host(captured, tick).ok());
  EXPECT_EQ(calls(DriverCall::kDeviceSynchronize), 1U);
}

// The next stream with the handle must not take what the one before did while captured for its own work.
TEST_F(StreamsTest, ACapturedClockGoesWithItsStream) {
  for (const bool retired : {true, false}) {
    streams_.clock(kA);
    driver_.begin_capture(kA);
    StreamClock& captured = streams_.clock(kA);
    ASSERT_TRUE(driver_.end_capture(kA));
    const Tick tick = captured.stamp();
    if (retired) {
      ASSERT_TRUE(streams_.retire(kA).ok());
    }
    driver_.destroy_stream(kA);
    streams_.clock(kA);
    driver_.begin_capture(kA);
    EXPECT_NE(&streams_.clock(kA), &captured) << (retired ? "retired" : "gone without a word");
    ASSERT_TRUE(driver_.end_capture(kA));
    EXPECT_FALSE(captured.done(tick));
    ASSERT_TRUE(streams_.wait_host(captured, tick).ok()) << "a wait for the device completes it";
  }
}

// As with a stream of another context: its markers are refused from the first one on.
TEST_F(StreamsTest, AStreamThatNeverTookAMarkerIsNeverDone) {
  driver_.fail_call(DriverCall::kEventRecord, 1, Errc::kInvalidArgument, true);
  StreamClock& foreign = streams_.clock(kA);
  const Tick tick = foreign.stamp();
  EXPECT_EQ(streams_.wait_host(foreign, tick).code(), Errc::kNotReady);
  EXPECT_FALSE(foreign.done(tick));
  driver_.clear_faults();
  ASSERT_TRUE(streams_.wait_host(foreign, tick).ok());
}

// A marker that became part of a graph is recorded anew; what was freed after it is not forgotten.
TEST_F(StreamsTest, AMarkerRecordedAnewDoesNotSpeakOfLaterFrees) {
  StreamClock& a = streams_.clock(kA);
  streams_.note_freed(a, kMiB);
  const Tick tick = a.stamp();
  driver_.fail_call(DriverCall::kEventQuery, 1, Errc::kCapturing);
  streams_.poll(a);
  driver_.complete_all();
  streams_.poll(a);
  ASSERT_FALSE(a.done(tick));
  a.taken_in = a.completed;
  EXPECT_TRUE(a.at_work()) << "nobody would ask for the marker that is missing";
}

TEST_F(StreamsTest, TheLegacyStreamHasOneClockUnderBothNames) {
  EXPECT_EQ(&streams_.clock(StreamId(0)), &streams_.clock(StreamId(1)));
}

TEST_F(StreamsTest, RetiringAStreamNeverSeenMakesNoClock) {
  streams_.clock(kA);
  EXPECT_TRUE(streams_.retire(kB).ok());
  EXPECT_EQ(streams_.count(), 1U);
}

TEST_F(StreamsTest, AFailedRetirementIsNone) {
  StreamClock& a = streams_.clock(kA);
  driver_.fail_call(DriverCall::kEventRecord, 1, Errc::kDriverFailure);
  EXPECT_FALSE(streams_.retire(kA).ok());
  EXPECT_FALSE(a.retired);
  EXPECT_TRUE(streams_.retire(kA).ok());
}

TEST_F(StreamsTest, AllDoneCoversWhatNoMarkerCovered) {
  StreamClock& a = streams_.clock(kA);
  ASSERT_TRUE(streams_.mark(a).ok());
  const Tick unmarked = a.stamp();
  ASSERT_TRUE(streams_.wait_device_idle().ok());
  EXPECT_TRUE(a.done(unmarked));
  EXPECT_FALSE(a.done(a.stamp()));
}

TEST_F(StreamsTest, PerThreadDefaultStreamsAreOneAThread) {
  StreamClock& mine = streams_.clock(kPerThread);
  EXPECT_EQ(&streams_.clock(kPerThread), &mine);
  StreamClock* theirs = nullptr;
  Tick tick = 0;
  std::thread([&] {
    theirs = &streams_.clock(kPerThread);
    tick = theirs->stamp();
  }).join();
  ASSERT_NE(theirs, &mine);
  EXPECT_FALSE(streams_.mark(*theirs).ok()) << "only its own thread can record there";
  EXPECT_TRUE(streams_.retire(kPerThread).ok());
  EXPECT_TRUE(mine.retired);
  EXPECT_FALSE(theirs->retired);
  ASSERT_TRUE(streams_.wait_host(*theirs, tick).ok()) << "by waiting for the device";
  EXPECT_EQ(calls(DriverCall::kDeviceSynchronize), 1U);
}

TEST(StreamsLifetime, EveryEventIsGivenBack) {
  SimulatedDriver driver{SimulatedDeviceSpec{}};
  {
    Streams streams(driver, kDevice);
    for (const StreamId id : {kA, kB}) {
      for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(streams.mark(streams.clock(id)).ok());
      }
    }
    driver.advance_us(1000);
    streams.poll(streams.clock(kA));
    EXPECT_EQ(driver.leaks().events, 8U) << "one more a stream, at first sight";
  }
  EXPECT_TRUE(driver.leaks().none());
}

}  // namespace
}  // namespace nofrag
