// A trace's streams on the driver: made, told apart, retired and destroyed.
#include "cli/replay/replay_streams.h"

#include <gtest/gtest.h>

#include "cli/peers/nofrag_adapter.h"
#include "cli/replay/replay_run.h"
#include "driver/simulated/simulated_driver.h"
#include "trace_of.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};

// Writes down which streams it was told of, and what the driver still had then.
class Listener final : public ReplayAllocator {
 public:
  explicit Listener(const SimulatedDriver& driver) : driver_(driver) {}
  Status allocate(std::uint32_t, Bytes, StreamId) override { return {}; }
  Status free(std::uint32_t, StreamId) override { return {}; }
  Status retire(StreamId stream) override {
    retired.push_back(stream);
    alive.push_back(driver_.leaks().streams);
    return answer;
  }
  [[nodiscard]] Bytes reserved() const override { return {}; }
  [[nodiscard]] Bytes peak_reserved() const override { return {}; }
  [[nodiscard]] Bytes free_granules() const override { return {}; }

  std::vector<StreamId> retired;
  std::vector<std::uint64_t> alive;
  Status answer;

 private:
  const SimulatedDriver& driver_;
};

class ReplayStreamsTest : public testing::Test {
 protected:
  ReplayStreamsTest()
      : driver_(SimulatedDeviceSpec{}),
        trace_(trace_of("0,a,0,1,7\n0,a,1,1,0\n0,a,2,1,1\n0,f,0,1,2\n")) {}

  std::unique_ptr<ReplayStreams> create() {
    return std::move(ReplayStreams::create(trace_, driver_, kDevice).value());
  }

  SimulatedDriver driver_;
  Trace trace_;
};

TEST_F(ReplayStreamsTest, OneForEachStreamOfTheTrace) {
  const std::unique_ptr<ReplayStreams> streams = create();
  const std::vector<StreamId>& ids = streams->ids();
  ASSERT_EQ(ids.size(), 4U);
  EXPECT_EQ(ids[1], StreamId(0)) << "the recorder's stream 0 is the default stream";
  EXPECT_EQ(driver_.leaks().streams, 3U);
  for (const std::size_t at : {0U, 2U, 3U}) {
    EXPECT_GT(ids[at].value(), 2U) << "1 and 2 are streams of the driver's own";
    for (std::size_t other = 0; other < at; ++other) {
      EXPECT_NE(ids[at], ids[other]);
    }
  }
}

TEST_F(ReplayStreamsTest, EachIsRetiredBeforeItIsDestroyed) {
  const std::unique_ptr<ReplayStreams> streams = create();
  Listener listener(driver_);
  EXPECT_TRUE(streams->close(listener));
  const std::vector<StreamId>& ids = streams->ids();
  EXPECT_EQ(listener.retired, (std::vector<StreamId>{ids[0], ids[2], ids[3]}));
  EXPECT_EQ(listener.alive, (std::vector<std::uint64_t>{3, 2, 1}));
  EXPECT_TRUE(driver_.leaks().none());
}

TEST_F(ReplayStreamsTest, ARefusedRetireIsToldAndLeavesNoStream) {
  const std::unique_ptr<ReplayStreams> streams = create();
  Listener listener(driver_);
  listener.answer = Errc::kCapturing;
  EXPECT_EQ(streams->close(listener).code(), Errc::kCapturing);
  EXPECT_EQ(listener.retired.size(), 3U);
  EXPECT_TRUE(driver_.leaks().none());
}

TEST_F(ReplayStreamsTest, WithoutCloseTheyAreDestroyedAllTheSame) {
  create().reset();
  EXPECT_TRUE(driver_.leaks().none());
}

TEST_F(ReplayStreamsTest, ADeviceThatIsNotThereHasNone) {
  EXPECT_EQ(ReplayStreams::create(trace_, driver_, DeviceOrdinal(5)).code(),
            Errc::kInvalidArgument);
  EXPECT_TRUE(driver_.leaks().none());
}

// The whole way with nofrag itself: blocks of every stream, one freed by another, one never.
TEST_F(ReplayStreamsTest, NofragLetsGoOfEveryStream) {
  driver_.set_completion(Completion::kByHand);
  {
    PeerConfig config;
    config.driver = &driver_;
    config.info = driver_.device_info(kDevice).value();
    config.blocks = static_cast<std::uint32_t>(trace_.allocations);
    const std::unique_ptr<ReplayAllocator> allocator =
        std::move(make_nofrag(config, Options()).value());
    const std::unique_ptr<ReplayStreams> streams = create();
    ReplayTarget target;
    target.allocator = allocator.get();
    target.driver = &driver_;
    target.device = kDevice;
    target.streams = streams->ids();
    ReplayRun run;
    replay_trace(trace_, target, {}, &run);
    EXPECT_TRUE(run.completed) << run.fault;
    EXPECT_TRUE(streams->close(*allocator));
  }
  EXPECT_TRUE(driver_.leaks().none());
  EXPECT_EQ(driver_.violation_count(), 0U);
}

}  // namespace
}  // namespace nofrag
