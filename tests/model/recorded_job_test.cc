// A random job of several threads and streams on the simulated driver, recorded while it runs: its recording,
// replayed, has the job's own peak of live bytes, and holds within 1 % of the memory that the job held.
//
//   recorded_job_test [--seeds=N] [--seed=N]     default 6 seeds
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "cli/peers/nofrag_adapter.h"
#include "cli/replay/replay_run.h"
#include "cli/replay/replay_streams.h"
#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"
#include "trace/load_trace.h"
#include "trace/record/recorder.h"
#include "trace/record/recording.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};
constexpr double kLag = 500;
constexpr Bytes kMemory = 16 * kGiB;
std::uint64_t seeds = 6;
std::uint64_t only_seed = 0;

struct Live {
  VirtAddr address;
  Bytes held;
};

std::unique_ptr<SimulatedDriver> open_driver() {
  SimulatedDeviceSpec spec;
  spec.info.total_memory = kMemory;
  auto driver = std::make_unique<SimulatedDriver>(spec);
  driver->set_stream_lag_us(kLag);
  driver->set_streams_busy(true);
  return driver;
}

// Passes events on, stamped with the simulated device's time: a replay has no other.
class SimulatedClock final : public EventSink {
 public:
  SimulatedClock(const SimulatedDriver& driver, Recorder& recorder)
      : driver_(driver), recorder_(recorder) {}
  [[nodiscard]] bool concurrent() const override { return true; }
  [[nodiscard]] std::uint64_t stamp() const override {
    last_ = std::max(last_ + 1, static_cast<std::uint64_t>(driver_.time_us() * 1000.0));
    return last_;
  }
  void on_event(const AllocatorEvent& event) override {
    AllocatorEvent stamped = event;
    stamped.stamp = event.stamp != 0 ? event.stamp : stamp();
    recorder_.on_event(stamped);
  }

 private:
  const SimulatedDriver& driver_;
  Recorder& recorder_;
  mutable std::uint64_t last_ = 0;
};

// Threads take turns at random, so that what was live at the peak is known exactly.
class Job {
 public:
  explicit Job(std::uint64_t seed) : seed_(seed) {}

  void run(Recorder& recorder) {
    driver_ = open_driver();
    allocator_ = std::move(DeviceAllocator::create(*driver_, kDevice, Options{}).value());
    SimulatedClock clock(*driver_, recorder);
    allocator_->set_event_sink(&clock);
    std::mt19937_64 random(seed_);
    const int threads = 1 + static_cast<int>(random() % 4);
    streams_ = 1 + random() % 5;
    largest_ = 4 + random() % 18;
    all_done_ = std::make_unique<std::barrier<>>(threads);
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([this, &recorder, number = i] { work(recorder, number); });
    }
    for (std::thread& worker : workers) {
      worker.join();
    }
    peak_reserved = allocator_->stats().peak_reserved;
    allocator_->set_event_sink(nullptr);
    allocator_.reset();
    EXPECT_EQ(driver_->violation_count(), 0U);
  }

  Bytes peak_live;
  Bytes peak_reserved;
  std::uint64_t operations = 0;

 private:
  void work(Recorder& recorder, int number) {
    std::mt19937_64 random(seed_ * 1000 + static_cast<std::uint64_t>(number));
    std::vector<Live> own;
    for (int i = 0; i < 4000; ++i) {
      // A training step: it grows, and shrinks.
      const bool grows = i / 500 % 2 == 0;
      const std::lock_guard<std::mutex> turn(turn_);
      ++operations;
      driver_->set_time_us(driver_->time_us() + 10.0 + static_cast<double>(random() % 40));
      if (own.empty() || random() % 100 < (grows ? 60U : 40U)) {
        allocate(random, &own);
      } else {
        free(random, &own);
      }
      if (i % 1000 == 0) {
        recorder.mark("step " + std::to_string(i));
      }
    }
    {
      const std::lock_guard<std::mutex> turn(turn_);
      while (!own.empty()) {
        free(random, &own);
      }
    }
    // The simulated time does not say when a thread ends, and what it keeps with it.
    all_done_->arrive_and_wait();
  }

  void allocate(std::mt19937_64& random, std::vector<Live>* own) {
    const Bytes size(1 + random() % (std::uint64_t{512} << random() % largest_));
    const StreamId stream(random() % streams_ * 0x100);
    const Result<VirtAddr> address = allocator_->allocate(size, stream);
    if (!address.ok()) {
      return;
    }
    if (streams_ > 1 && random() % 16 == 0) {
      ASSERT_TRUE(
          allocator_->record_stream(address.value(), StreamId(random() % streams_ * 0x100)).ok());
    }
    const Bytes held = round_up(size, kTraceRounding);
    own->push_back({address.value(), held});
    live_ += held;
    peak_live = std::max(peak_live, live_);
  }

  // Of another thread's blocks, now and then.
  void free(std::mt19937_64& random, std::vector<Live>* own) {
    std::vector<Live>& from = !shared_.empty() && random() % 8 == 0 ? shared_ : *own;
    const std::size_t at = random() % from.size();
    std::swap(from[at], from.back());
    const Live block = from.back();
    from.pop_back();
    if (&from == own && random() % 8 == 0) {
      shared_.push_back(block);
      return;
    }
    live_ -= block.held;
    ASSERT_TRUE(allocator_->free(block.address).ok());
  }

  std::uint64_t seed_;
  std::uint64_t streams_ = 1;
  std::uint64_t largest_ = 1;
  std::unique_ptr<SimulatedDriver> driver_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::unique_ptr<std::barrier<>> all_done_;
  std::mutex turn_;
  std::vector<Live> shared_;
  Bytes live_;
};

ReplayRun replay(const Trace& trace) {
  const std::unique_ptr<SimulatedDriver> driver = open_driver();
  PeerConfig config;
  config.driver = driver.get();
  config.device = kDevice;
  config.info = driver->device_info(kDevice).value();
  config.recording = trace.recording.get();
  config.blocks = static_cast<std::uint32_t>(trace.allocations);
  const auto made = make_nofrag(config, Options{});
  const auto streams = ReplayStreams::create(trace, *driver, kDevice);
  ReplayTarget target;
  target.allocator = made.value().get();
  target.driver = driver.get();
  target.simulated = driver.get();
  target.device = kDevice;
  target.with_threads = true;
  target.capacity = kMemory;
  target.streams = streams.value()->ids();
  ReplayRun run;
  replay_trace(trace, target, {}, &run);
  return run;
}

class RecordedJob : public testing::TestWithParam<std::uint64_t> {};

void check_seed(std::uint64_t seed) {
  SCOPED_TRACE("--seed=" + std::to_string(seed));
  const std::string path = testing::TempDir() + "recorded_job_" + std::to_string(::getpid());
  Job job(seed);
  {
    RecorderSettings settings;
    settings.path = path;
    settings.monotonic = true;
    std::string problem;
    const std::unique_ptr<Recorder> recorder = Recorder::start(std::move(settings), &problem);
    ASSERT_NE(recorder, nullptr) << problem;
    job.run(*recorder);
    recorder->stop(NOFRAG_TRACE_STOP_ASKED);
  }
  Trace trace;
  const std::optional<TraceError> error = load_trace(path, TraceFormat::kAuto, &trace);
  ::unlink(path.c_str());
  ASSERT_FALSE(error.has_value()) << error->message();
  EXPECT_TRUE(trace.warnings.empty()) << trace.warnings.front();
  EXPECT_EQ(trace.peak_live, job.peak_live);
  EXPECT_EQ(trace.recording->peak_reserved.at(0), job.peak_reserved);
  const ReplayRun run = replay(trace);
  EXPECT_TRUE(run.completed) << run.fault;
  const double difference = static_cast<double>(run.peak_reserved.count()) /
                                static_cast<double>(job.peak_reserved.count()) -
                            1.0;
  std::printf("seed %llu: %llu operations, live %.1f MiB, reserved %.1f MiB, replayed %+.2f %%\n",
              static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(job.operations),
              static_cast<double>(job.peak_live.count()) / 1048576.0,
              static_cast<double>(job.peak_reserved.count()) / 1048576.0,
              100 * difference);
  EXPECT_LE(std::abs(difference), 0.01);
}

TEST(RecordedJobs, ReplayToWhatTheJobHeld) {
  const std::uint64_t first = only_seed != 0 ? only_seed : 1;
  const std::uint64_t last = only_seed != 0 ? only_seed : seeds;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    check_seed(seed);
  }
}

}  // namespace
}  // namespace nofrag

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seeds=", 8) == 0) {
      nofrag::seeds = std::strtoull(argv[i] + 8, nullptr, 10);
    } else if (std::strncmp(argv[i], "--seed=", 7) == 0) {
      nofrag::only_seed = std::strtoull(argv[i] + 7, nullptr, 10);
    }
  }
  return RUN_ALL_TESTS();
}
