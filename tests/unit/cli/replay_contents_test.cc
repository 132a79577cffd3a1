// The recorded jobs with eyes on every byte, on the simulated driver: a kernel fills each block when it
// is allocated, another reads it before it is freed, all live blocks are read now and then, and work
// takes its time, so that freed memory is pending. The simulated driver reports what a GPU would let
// pass: kernels of two blocks on the same bytes at once, unmapping under a running one, wrong contents.
// The same on a GPU: tests/gpu/replay_canary.cu.
#include <unordered_map>

#include <gtest/gtest.h>

#include "cli/device_target.h"
#include "cli/replay/replay_run.h"
#include "cli/replay/replay_streams.h"
#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"
#include "trace/load_trace.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};
constexpr std::uint64_t kSweepEvery = 512;

class Canary final : public ReplayAllocator {
 public:
  Canary(SimulatedDriver& driver, const Options& options)
      : driver_(driver),
        allocator_(std::move(DeviceAllocator::create(driver, kDevice, options).value())) {}

  Status allocate(std::uint32_t block, Bytes size, StreamId stream) override {
    const Result<VirtAddr> address = allocator_->allocate(size, stream);
    if (!address.ok()) {
      return address.error();
    }
    live_[block] = {address.value(), size, stream};
    const Status written = driver_.write(stream, address.value(), size, tag(block));
    return written.ok() ? sweep_sometimes() : written;
  }

  Status free(std::uint32_t block, StreamId stream) override {
    const Live live = live_.at(block);
    live_.erase(block);
    if (stream != live.stream) {
      return Errc::kNotSupported;  // none of the recorded jobs does it
    }
    const Status read = driver_.launch(stream, live.address, live.size, tag(block));
    const Status intact = driver_.check_contents(live.address, live.size, tag(block));
    if (!read.ok() || !intact.ok()) {
      return read.ok() ? intact : read;
    }
    const Status freed = allocator_->free(live.address);
    return freed.ok() ? sweep_sometimes() : freed;
  }
  Status retire(StreamId stream) override { return allocator_->retire_stream(stream); }

  Status sweep() {
    for (const auto& [block, live] : live_) {
      const Status intact = driver_.check_contents(live.address, live.size, tag(block));
      if (!intact.ok()) {
        return intact;
      }
    }
    allocator_->check();
    return {};
  }

  [[nodiscard]] Bytes reserved() const override { return allocator_->stats().reserved; }
  [[nodiscard]] Bytes peak_reserved() const override { return allocator_->stats().peak_reserved; }
  [[nodiscard]] Bytes free_granules() const override { return allocator_->stats().free_handles; }

 private:
  struct Live {
    VirtAddr address;
    Bytes size;
    StreamId stream;
  };
  static std::uint64_t tag(std::uint32_t block) { return std::uint64_t{block} + 1; }
  Status sweep_sometimes() { return ++events_ % kSweepEvery == 0 ? sweep() : Status(); }

  SimulatedDriver& driver_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::unordered_map<std::uint32_t, Live> live_;
  std::uint64_t events_ = 0;
};

struct Case {
  const char* trace;
  std::uint32_t streams;  // the blocks of a job of one stream, spread over so many
  double lag_us;
  double capacity;  // times peak live; 0 = all the memory that there is
};

std::string describe(const testing::TestParamInfo<Case>& info) {
  const Case& param = info.param;
  return std::string(param.trace) + "On" + std::to_string(param.streams) + "Lag" +
         std::to_string(static_cast<int>(param.lag_us)) +
         (param.capacity > 0 ? "At" + std::to_string(static_cast<int>(param.capacity * 1000)) : "");
}

Trace load(const Case& param) {
  Trace trace;
  const auto error = load_trace(
      std::string(NOFRAG_TRACES) + "/" + param.trace + ".nofrag", TraceFormat::kAuto, &trace);
  EXPECT_FALSE(error.has_value()) << error->message();
  if (trace.streams.size() == 1 && param.streams > 1) {
    for (std::uint32_t i = 1; i < param.streams; ++i) {
      trace.streams.push_back(i);
    }
    for (TraceEvent& event : trace.events) {
      event.stream_and_op += event.block % param.streams;
    }
  }
  EXPECT_EQ(trace.streams.size(), param.streams);
  return trace;
}

class ReplayContentsTest : public testing::TestWithParam<Case> {};

TEST_P(ReplayContentsTest, EveryByteIsWhatItsBlockWrote) {
  const Trace trace = load(GetParam());
  const DeviceTarget device = DeviceTarget::parse("sim:h100-80g");
  const DeviceSession session = device.open({std::nullopt, GetParam().lag_us});
  SimulatedDriver& driver = *session.simulated;
  Options options;
  if (GetParam().capacity > 0) {
    options.limit =
        round_up(Bytes(static_cast<std::uint64_t>(static_cast<double>(trace.peak_live.count()) *
                                                  GetParam().capacity)),
                 session.granule());
  }
  {
    Canary canary(driver, options);
    const std::unique_ptr<ReplayStreams> streams =
        std::move(ReplayStreams::create(trace, driver, kDevice).value());
    ReplayTarget target;
    target.allocator = &canary;
    target.driver = &driver;
    target.simulated = &driver;
    target.device = kDevice;
    target.capacity = session.info.total_memory;
    target.streams = streams->ids();
    ReplayRun run;
    replay_trace(trace, target, {}, &run);
    EXPECT_TRUE(run.fault.empty()) << run.fault;
    EXPECT_TRUE(run.completed) << "event " << run.events_replayed;
    EXPECT_TRUE(canary.sweep());
    EXPECT_TRUE(streams->close(canary));
  }
  ASSERT_EQ(driver.violation_count(), 0U) << driver.violations().front();
  EXPECT_TRUE(driver.leaks().none());
}

INSTANTIATE_TEST_SUITE_P(RecordedJobs,
                         ReplayContentsTest,
                         testing::Values(Case{"gpt_varlen", 1, 500, 1.02},
                                         Case{"gpt_varlen", 4, 20000, 0},
                                         Case{"gpt_varlen", 4, 200000, 1.2},
                                         Case{"lora_ckpt", 1, 20000, 1.02},
                                         Case{"multistream8", 8, 0, 1.02},
                                         Case{"multistream8", 8, 500, 0},
                                         Case{"multistream8", 8, 20000, 1.05},
                                         Case{"multistream8", 8, 100000, 0},
                                         Case{"multistream8", 8, 400000, 1.05}),
                         describe);

}  // namespace
}  // namespace nofrag
