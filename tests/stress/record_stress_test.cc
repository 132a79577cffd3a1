// Recordings that begin and end while threads allocate and free through their caches, on own and shared streams,
// blocks going from hand to hand: each recording is whole, and tells of no block that is not there.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"
#include "trace/load_trace.h"
#include "trace/record/recorder.h"
#include "trace/record/recording.h"

namespace nofrag {
namespace {

constexpr int kThreads = 4;
constexpr int kRecordings = 8;

class RecordStress : public testing::Test {
 protected:
  RecordStress() {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = 8 * kGiB;
    driver_ = std::make_unique<SimulatedDriver>(spec);
    driver_->set_stream_lag_us(0);
    allocator_ = std::move(DeviceAllocator::create(*driver_, DeviceOrdinal(0), Options{}).value());
  }

  void work(int number) {
    std::mt19937_64 random(static_cast<std::uint64_t>(number));
    std::vector<VirtAddr> own;
    while (!stop_.load(std::memory_order_relaxed)) {
      const auto stream = StreamId(0x100 + random() % 3);
      if (own.size() < 40 || random() % 2 == 0) {
        const Result<VirtAddr> block = allocator_->allocate(
            Bytes(1 + random() % (std::uint64_t{512} << random() % 12)), stream);
        if (block.ok()) {
          own.push_back(block.value());
        }
      }
      if (own.size() > 60 || random() % 3 == 0) {
        give(random, &own);
      }
      ++operations_;
    }
    while (!own.empty()) {
      free(own.back());
      own.pop_back();
    }
  }

  // To itself, or through a common place to whoever frees next.
  void give(std::mt19937_64& random, std::vector<VirtAddr>* own) {
    if (own->empty()) {
      return;
    }
    std::swap(own->back(), (*own)[random() % own->size()]);
    VirtAddr block = own->back();
    own->pop_back();
    if (random() % 4 == 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::swap(block, passed_on_);
    }
    free(block);
  }
  void free(VirtAddr block) {
    if (!block.is_null() && !allocator_->free(block).ok()) {
      ++wrong_;
    }
  }

  Trace record() {
    const std::string path = testing::TempDir() + "record_stress." + std::to_string(::getpid());
    RecorderSettings settings;
    settings.path = path;
    std::string problem;
    recorders_.push_back(Recorder::start(std::move(settings), &problem));
    EXPECT_NE(recorders_.back(), nullptr) << problem;
    allocator_->set_event_sink(recorders_.back().get());
    const std::uint64_t until = operations_ + 4000;
    while (operations_ < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    allocator_->set_event_sink(nullptr);
    recorders_.back()->stop(NOFRAG_TRACE_STOP_ASKED);
    Trace trace;
    const auto error = load_trace(path, TraceFormat::kAuto, &trace);
    EXPECT_FALSE(error.has_value()) << error->message();
    std::remove(path.c_str());
    return trace;
  }

  std::unique_ptr<SimulatedDriver> driver_;
  std::vector<std::unique_ptr<Recorder>> recorders_;  // threads may still know the old ones
  std::unique_ptr<DeviceAllocator> allocator_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> operations_{0};
  std::atomic<int> wrong_{0};
  std::mutex mutex_;
  VirtAddr passed_on_;
};

TEST_F(RecordStress, RecordingsBeginAndEndWhileThreadsWork) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] { work(i); });
  }
  for (int i = 0; i < kRecordings; ++i) {
    const Trace trace = record();
    // Frees of unknown blocks, frees that are missing, lost events: there are none.
    EXPECT_TRUE(trace.warnings.empty()) << "recording " << i << ": " << trace.warnings.front();
    EXPECT_GT(trace.events.size(), 1000U);
    EXPECT_TRUE(trace.recording->whole);
  }
  stop_ = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  free(passed_on_);
  EXPECT_EQ(wrong_, 0);
  EXPECT_EQ(allocator_->stats().live_blocks, 0U);
  allocator_->check();
}

}  // namespace
}  // namespace nofrag
