// When queued work is done: by the clock, by hand, behind other streams, under capture.
#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};
constexpr StreamId kA{0xA0};
constexpr StreamId kB{0xB0};
constexpr StreamId kC{0xC0};

class SimulatedStreamsTest : public testing::Test {
 protected:
  SimulatedStreamsTest() : driver_(SimulatedDeviceSpec{}) {}
  ~SimulatedStreamsTest() override {
    driver_.check();
    EXPECT_EQ(driver_.violation_count(), 0U);
  }

  EventId record(StreamId stream) {
    const EventId event = driver_.event_create(kDevice).value();
    EXPECT_TRUE(driver_.event_record(kDevice, event, stream));
    return event;
  }
  bool done(EventId event) {
    const Status status = driver_.event_query(kDevice, event);
    EXPECT_TRUE(status.ok() || status.code() == Errc::kNotReady);
    return status.ok();
  }
  // What the host waited in `call`, in modelled microseconds (the default device charges nothing).
  template <typename Call>
  double waited(Call call) {
    driver_.reset_ledger();
    EXPECT_TRUE(call());
    return driver_.ledger().total_microseconds();
  }

  SimulatedDriver driver_;
};

TEST_F(SimulatedStreamsTest, ClockCompletesAfterTheLag) {
  driver_.set_time_us(1000);
  const EventId event = record(kA);
  EXPECT_FALSE(done(event));
  driver_.set_time_us(1499);
  EXPECT_FALSE(done(event));
  driver_.set_time_us(1500);
  EXPECT_TRUE(done(event));
}

TEST_F(SimulatedStreamsTest, ClockNeverGoesBackAndCallsDoNotMoveIt) {
  driver_.set_time_us(100);
  driver_.set_time_us(50);
  EXPECT_EQ(driver_.time_us(), 100);
  driver_.advance_us(25);
  EXPECT_TRUE(driver_.event_synchronize(kDevice, record(kA)));
  EXPECT_EQ(driver_.time_us(), 125);
}

// In a live process nobody moves the clock but its own calls: asking often enough is waiting.
TEST_F(SimulatedStreamsTest, CallsMoveTheClockWhereTheyAreAskedTo) {
  driver_.move_with_calls(20);
  const EventId event = record(kA);
  EXPECT_EQ(driver_.time_us(), 40) << "two calls; the default device charges nothing";
  int asked = 1;
  while (!done(event)) {
    ASSERT_LT(++asked, 100);
  }
  EXPECT_EQ(asked, 25) << "500 us after it was recorded";
  driver_.move_with_calls(0);
  const double now = driver_.time_us();
  EXPECT_FALSE(done(record(kA)));
  EXPECT_EQ(driver_.time_us(), now);
}

TEST_F(SimulatedStreamsTest, NoLagMeansAtOnce) {
  driver_.set_stream_lag_us(0);
  EXPECT_TRUE(done(record(kA)));
}

TEST_F(SimulatedStreamsTest, RecordingAgainMovesTheEvent) {
  const EventId event = record(kA);
  driver_.set_time_us(499);
  EXPECT_TRUE(driver_.event_record(kDevice, event, kA));
  driver_.set_time_us(600);
  EXPECT_FALSE(done(event));
  driver_.set_time_us(999);
  EXPECT_TRUE(done(event));
}

TEST_F(SimulatedStreamsTest, WaitsAreChargedOnce) {
  const EventId first = record(kA);
  driver_.set_time_us(100);
  const EventId second = record(kA);
  EXPECT_EQ(waited([&] { return driver_.event_synchronize(kDevice, second); }), 500);
  EXPECT_TRUE(done(first)) << "it is ahead of what was waited for";
  EXPECT_TRUE(done(second));
  EXPECT_EQ(waited([&] { return driver_.event_synchronize(kDevice, first); }), 0);
  EXPECT_EQ(waited([&] { return driver_.stream_synchronize(kDevice, kA); }), 0);
  driver_.set_time_us(200);
  record(kA);
  driver_.set_time_us(300);
  EXPECT_EQ(waited([&] { return driver_.stream_synchronize(kDevice, kA); }), 400);
}

TEST_F(SimulatedStreamsTest, DeviceSynchronizeWaitsForTheLatestStream) {
  record(kA);
  driver_.set_time_us(200);
  const EventId late = record(kB);
  driver_.set_time_us(300);
  EXPECT_EQ(waited([&] { return driver_.device_synchronize(kDevice); }), 400);
  EXPECT_TRUE(done(late));
  EXPECT_EQ(waited([&] { return driver_.device_synchronize(kDevice); }), 0);
}

TEST_F(SimulatedStreamsTest, IdleStreamsCostNothingUnlessTheyCountAsBusy) {
  driver_.set_time_us(1000);
  EXPECT_EQ(waited([&] { return driver_.stream_synchronize(kDevice, kA); }), 0);
  EXPECT_EQ(waited([&] { return driver_.device_synchronize(kDevice); }), 0);
  driver_.set_streams_busy(true);
  driver_.set_time_us(2000);
  EXPECT_EQ(waited([&] { return driver_.stream_synchronize(kDevice, kA); }), 500);
  EXPECT_EQ(waited([&] { return driver_.stream_synchronize(kDevice, kA); }), 0)
      << "nothing was queued since";
  EXPECT_EQ(waited([&] { return driver_.device_synchronize(kDevice); }), 500);
  EXPECT_EQ(waited([&] { return driver_.stream_synchronize(kDevice, kB); }), 0);
  driver_.set_time_us(2001);
  const VirtAddr address = driver_.malloc(kDevice, kMiB).value();
  EXPECT_EQ(waited([&] { return driver_.free(kDevice, address); }), 500);
}

TEST_F(SimulatedStreamsTest, StreamWaitOrdersWithoutHostWait) {
  driver_.set_time_us(0);
  driver_.set_stream_lag_us(500);
  driver_.set_time_us(400);
  const EventId on_a = record(kA);  // done at 900
  EXPECT_EQ(waited([&] { return driver_.stream_wait(kDevice, kB, on_a); }), 0);
  driver_.set_stream_lag_us(100);  // what comes now is short
  EXPECT_FALSE(done(on_a));
  const EventId on_b = record(kB);
  driver_.set_time_us(499);
  EXPECT_FALSE(done(on_b));
  driver_.set_time_us(500);
  EXPECT_TRUE(done(on_b));
}

TEST_F(SimulatedStreamsTest, ByHandNothingIsDoneUntilCompleted) {
  driver_.set_completion(Completion::kByHand);
  const EventId first = record(kA);
  const EventId other = record(kB);
  driver_.advance_us(1e9);
  EXPECT_FALSE(done(first));
  driver_.complete_stream(kA);
  EXPECT_TRUE(done(first));
  EXPECT_FALSE(done(other));
  const EventId later = record(kA);
  EXPECT_FALSE(done(later));
  driver_.complete_all();
  EXPECT_TRUE(done(later));
  EXPECT_TRUE(done(other));
}

TEST_F(SimulatedStreamsTest, ByHandSynchronizeCompletesTheWork) {
  driver_.set_completion(Completion::kByHand);
  const EventId first = record(kA);
  const EventId second = record(kA);
  EXPECT_TRUE(driver_.event_synchronize(kDevice, first));
  EXPECT_TRUE(done(first));
  EXPECT_FALSE(done(second)) << "it was recorded after what was waited for";
  EXPECT_TRUE(driver_.stream_synchronize(kDevice, kA));
  EXPECT_TRUE(done(second));
  const EventId other = record(kB);
  EXPECT_TRUE(driver_.device_synchronize(kDevice));
  EXPECT_TRUE(done(other));
}

TEST_F(SimulatedStreamsTest, ByHandWorkBehindAnEventWaitsForIt) {
  driver_.set_completion(Completion::kByHand);
  const EventId before = record(kB);
  const EventId on_a = record(kA);
  EXPECT_TRUE(driver_.stream_wait(kDevice, kB, on_a));
  const EventId after = record(kB);
  driver_.complete_stream(kB);
  EXPECT_TRUE(done(before));
  EXPECT_FALSE(done(after)) << "stream B may run, but the event on A is not done";
  driver_.complete_stream(kA);
  EXPECT_TRUE(done(after));
}

TEST_F(SimulatedStreamsTest, WaitTakesTheEventAsItWasThen) {
  driver_.set_completion(Completion::kByHand);
  const EventId on_a = record(kA);
  EXPECT_TRUE(driver_.stream_wait(kDevice, kB, on_a));
  driver_.complete_stream(kA);
  EXPECT_TRUE(driver_.event_record(kDevice, on_a, kA));  // again: not what B waits for
  const EventId on_b = record(kB);
  driver_.complete_stream(kB);
  EXPECT_TRUE(done(on_b));
  EXPECT_FALSE(done(on_a));
}

TEST_F(SimulatedStreamsTest, SynchronizeCompletesWhatTheEventIsBehind) {
  driver_.set_completion(Completion::kByHand);
  const EventId on_a = record(kA);
  EXPECT_TRUE(driver_.stream_wait(kDevice, kB, on_a));
  const EventId on_b = record(kB);
  EXPECT_TRUE(driver_.stream_wait(kDevice, kC, on_b));
  EXPECT_TRUE(driver_.event_synchronize(kDevice, record(kC)));
  EXPECT_TRUE(done(on_a));
  EXPECT_TRUE(done(on_b));
}

TEST_F(SimulatedStreamsTest, LongChainsOfWaits) {
  EventId last = record(kA);
  for (int i = 0; i < 100'000; ++i) {
    const StreamId next = i % 2 == 0 ? kB : kA;
    ASSERT_TRUE(driver_.stream_wait(kDevice, next, last));
    ASSERT_TRUE(driver_.event_record(kDevice, last, next));
  }
  EXPECT_FALSE(done(last));
  EXPECT_EQ(waited([&] { return driver_.event_synchronize(kDevice, last); }), 500);
  EXPECT_TRUE(done(last));
}

TEST_F(SimulatedStreamsTest, DestroyedEventsAreGone) {
  const EventId event = record(kA);
  EXPECT_TRUE(driver_.event_destroy(kDevice, event));
  EXPECT_EQ(driver_.event_query(kDevice, event).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver_.event_destroy(kDevice, event).code(), Errc::kInvalidArgument);
  const EventId reborn = driver_.event_create(kDevice).value();
  EXPECT_NE(reborn, event);
  EXPECT_EQ(driver_.event_record(kDevice, event, kA).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver_.stream_wait(kDevice, kA, event).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver_.event_query(kDevice, EventId{}).code(), Errc::kInvalidArgument);
}

TEST(SimulatedStreams, EventsBelongToTheirDevice) {
  SimulatedDriver driver({SimulatedDeviceSpec{}, SimulatedDeviceSpec{}});
  const DeviceOrdinal other(1);
  const EventId event = driver.event_create(other).value();
  EXPECT_EQ(driver.event_record(kDevice, event, kA).code(), Errc::kInvalidArgument);
  EXPECT_TRUE(driver.event_record(other, event, kA));
  EXPECT_TRUE(driver.stream_wait(kDevice, kA, event)) << "waiting may cross devices";
  const EventId here = driver.event_create(kDevice).value();
  EXPECT_TRUE(driver.event_record(kDevice, here, kA));
  EXPECT_TRUE(driver.event_synchronize(kDevice, here));
  EXPECT_TRUE(driver.event_query(other, event));
}

// ---- capture

TEST_F(SimulatedStreamsTest, CaptureIsSeenAndEnds) {
  EXPECT_FALSE(driver_.stream_is_capturing(kDevice, kA).value());
  driver_.begin_capture(kA);
  EXPECT_TRUE(driver_.stream_is_capturing(kDevice, kA).value());
  EXPECT_FALSE(driver_.stream_is_capturing(kDevice, kB).value());
  EXPECT_TRUE(driver_.end_capture(kA));
  EXPECT_FALSE(driver_.stream_is_capturing(kDevice, kA).value());
}

TEST_F(SimulatedStreamsTest, CapturedEventsNeverCompleteOutside) {
  driver_.begin_capture(kA);
  const EventId event = record(kA);
  EXPECT_FALSE(driver_.capture_invalidated(kA)) << "recording is legal";
  EXPECT_TRUE(driver_.end_capture(kA));
  driver_.advance_us(1e9);
  EXPECT_EQ(driver_.event_query(kDevice, event).code(), Errc::kInvalidArgument);
  EXPECT_FALSE(driver_.capture_invalidated(kA)) << "the capture was over";
  EXPECT_TRUE(driver_.event_record(kDevice, event, kA));
  EXPECT_FALSE(done(event)) << "recorded outside, it is an event again";
}

TEST_F(SimulatedStreamsTest, ForbiddenCallsInvalidateTheCapture) {
  const auto invalidates = [&](int driver_code, auto forbidden) {
    driver_.begin_capture(kA);
    const EventId captured = record(kA);
    EXPECT_FALSE(driver_.capture_invalidated(kA));
    const Error error = forbidden(captured).error();
    EXPECT_EQ(error.code, Errc::kCapturing);
    EXPECT_EQ(error.driver_code, driver_code);
    EXPECT_TRUE(driver_.capture_invalidated(kA));
    EXPECT_FALSE(driver_.end_capture(kA));
  };
  const EventId outside = record(kB);
  invalidates(907, [&](EventId captured) { return driver_.event_query(kDevice, captured); });
  invalidates(907, [&](EventId captured) { return driver_.event_synchronize(kDevice, captured); });
  invalidates(900, [&](EventId) { return driver_.stream_synchronize(kDevice, kA); });
  invalidates(900, [&](EventId) { return driver_.device_synchronize(kDevice); });
  invalidates(905, [&](EventId) { return driver_.stream_wait(kDevice, kA, outside); });
}

TEST_F(SimulatedStreamsTest, OtherStreamsAreFreeDuringCapture) {
  const EventId outside = record(kB);
  driver_.begin_capture(kA);
  EXPECT_FALSE(done(outside));
  EXPECT_TRUE(driver_.event_synchronize(kDevice, outside));
  EXPECT_TRUE(driver_.stream_synchronize(kDevice, kB));
  EXPECT_TRUE(driver_.free(kDevice, driver_.malloc(kDevice, kMiB).value()));
  EXPECT_TRUE(driver_.end_capture(kA));
}

TEST_F(SimulatedStreamsTest, WaitingForACapturedEventJoinsTheCapture) {
  driver_.begin_capture(kA);
  const EventId forked = record(kA);
  EXPECT_TRUE(driver_.stream_wait(kDevice, kB, forked));
  EXPECT_TRUE(driver_.stream_is_capturing(kDevice, kB).value());
  EXPECT_TRUE(driver_.end_capture(kA));
  EXPECT_FALSE(driver_.stream_is_capturing(kDevice, kB).value());
  EXPECT_EQ(driver_.stream_wait(kDevice, kB, forked).code(), Errc::kInvalidArgument);
}

TEST_F(SimulatedStreamsTest, KernelsOfACaptureDoNotRun) {
  driver_.set_completion(Completion::kByHand);
  const Bytes unit = 2 * kMiB;
  const VirtAddr range = driver_.reserve(unit, Bytes(0)).value();
  ASSERT_TRUE(driver_.map(range, unit, driver_.create(kDevice, unit).value()));
  ASSERT_TRUE(driver_.set_access(range, unit, kDevice));
  driver_.begin_capture(kA);
  EXPECT_TRUE(driver_.write(kA, range, unit, 3));
  EXPECT_EQ(driver_.read_tag(range).value(), SimulatedDriver::kUninitialised);
  EXPECT_TRUE(driver_.end_capture(kA));
  EXPECT_TRUE(driver_.unmap(range, unit)) << "nothing runs there";
}

TEST_F(SimulatedStreamsTest, WorkOfADestroyedStreamGoesOnUnderNoName) {
  driver_.set_completion(Completion::kByHand);
  const StreamId made = driver_.stream_create(kDevice).value();
  const EventId old_work = record(made);
  EXPECT_TRUE(driver_.stream_destroy(kDevice, made));
  ASSERT_EQ(driver_.stream_create(kDevice).value(), made) << "the handle goes to the next one made";
  const EventId new_work = record(made);
  driver_.complete_stream(made);
  EXPECT_TRUE(done(new_work));
  EXPECT_FALSE(done(old_work)) << "it was queued on the stream that had the handle before";
  driver_.complete_all();
  EXPECT_TRUE(done(old_work));
  EXPECT_TRUE(driver_.stream_destroy(kDevice, made));
}

TEST_F(SimulatedStreamsTest, OnlyLiveCreatedStreamsOfTheDeviceAreDestroyed) {
  SimulatedDriver driver({SimulatedDeviceSpec{}, SimulatedDeviceSpec{}});
  const DeviceOrdinal other(1);
  const StreamId first = driver.stream_create(kDevice).value();
  const StreamId second = driver.stream_create(kDevice).value();
  EXPECT_EQ(driver.leaks().streams, 2U);
  EXPECT_EQ(driver.stream_destroy(other, first).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver.stream_destroy(kDevice, kA).code(), Errc::kInvalidArgument) << "never made";
  EXPECT_EQ(driver.stream_destroy(kDevice, StreamId(0)).code(), Errc::kInvalidArgument);
  EXPECT_TRUE(driver.stream_destroy(kDevice, first));
  EXPECT_EQ(driver.stream_destroy(kDevice, first).code(), Errc::kInvalidArgument) << "twice";
  EXPECT_FALSE(driver.leaks().none());
  const StreamId elsewhere = driver.stream_create(other).value();
  EXPECT_NE(elsewhere, first) << "a handle comes back on its own device";
  EXPECT_NE(elsewhere, second);
  EXPECT_TRUE(driver.stream_destroy(kDevice, second));
  EXPECT_TRUE(driver.stream_destroy(other, elsewhere));
  EXPECT_TRUE(driver.leaks().none());
  EXPECT_EQ(driver.stream_create(kDevice).value(), second) << "the last destroyed comes first";
  EXPECT_EQ(driver.stream_create(kDevice).value(), first);
}

}  // namespace
}  // namespace nofrag
