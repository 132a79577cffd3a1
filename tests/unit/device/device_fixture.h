// DeviceFixture: a device allocator on a simulated driver whose work is completed by hand.
//
// Owns: driver, recorder and allocator. Layer: tests. Every block is written with a canary on its
// stream. Units: MiB where a helper says so. Threads: none. Failure: the destructor expects no
// violation and no leak.
#pragma once

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "device/device_allocator.h"
#include "recording_driver.h"

namespace nofrag {

class DeviceFixture : public testing::Test {
 protected:
  static constexpr DeviceOrdinal kDevice{0};
  static constexpr StreamId kA{0x100};
  static constexpr StreamId kB{0x200};
  static constexpr StreamId kC{0x300};
  static constexpr PoolKey kFirst{1, 1};
  static constexpr PoolKey kSecond{1, 2};
  using Calls = std::vector<std::string>;

  ~DeviceFixture() override { finish(); }

  // Everything that must hold at the end; start() may follow.
  void finish() {
    if (allocator_ != nullptr) {
      sim_->clear_faults();
      allocator_->check();
      for (const auto& [address, content] : tags_) {
        EXPECT_TRUE(sim_->check_contents(VirtAddr(address), content.first, content.second).ok());
      }
      tags_.clear();
      allocator_.reset();
      EXPECT_TRUE(sim_->leaks().none());
      EXPECT_EQ(sim_->violation_count(), 0U)
          << (sim_->violations().empty() ? "" : sim_->violations().front());
    }
  }

  void start(Bytes memory, Bytes handle = 4 * kMiB, bool virtual_memory = true) {
    Options options;
    options.handle_size = handle;
    start(memory, options, virtual_memory);
  }
  void start(Bytes memory, const Options& options, bool virtual_memory = true) {
    finish();
    SimulatedDeviceSpec spec;
    spec.info.total_memory = memory;
    spec.info.virtual_memory = virtual_memory;
    sim_ = std::make_unique<SimulatedDriver>(spec);
    sim_->set_completion(Completion::kByHand);
    recorder_ = std::make_unique<RecordingDriver>(*sim_);
    Options used = options;
    used.thread_caches = options.thread_caches && caches_;
    allocator_ = std::move(DeviceAllocator::create(*recorder_, kDevice, used).value());
  }

  // A block whose bytes hold its canary; null if refused.
  VirtAddr allocate(Bytes size, StreamId stream = kA) {
    const Result<VirtAddr> address = allocator_->allocate(size, stream);
    return address.ok() ? written(address.value(), size, stream) : VirtAddr();
  }
  VirtAddr written(VirtAddr address, Bytes size, StreamId stream) {
    EXPECT_TRUE(sim_->write(stream, address, size, ++tag_).ok());
    tags_[address.value()] = {size, tag_};
    return address;
  }
  void free(VirtAddr address) {
    const auto [size, tag] = tags_.at(address.value());
    EXPECT_TRUE(sim_->check_contents(address, size, tag).ok());
    tags_.erase(address.value());
    EXPECT_TRUE(allocator_->free(address).ok());
  }
  void launch(VirtAddr address, StreamId stream) {
    const auto [size, tag] = tags_.at(address.value());
    EXPECT_TRUE(sim_->launch(stream, address, size, tag).ok());
  }
  // Orders `stream` behind `own`, uses the block there and records it.
  void use_on(VirtAddr address, StreamId own, StreamId stream) {
    const EventId event = sim_->event_create(kDevice).value();
    ASSERT_TRUE(sim_->event_record(kDevice, event, own).ok());
    ASSERT_TRUE(sim_->stream_wait(kDevice, stream, event).ok());
    ASSERT_TRUE(sim_->event_destroy(kDevice, event).ok());
    EXPECT_TRUE(allocator_->record_stream(address, stream).ok());
    launch(address, stream);
  }
  [[nodiscard]] std::uint64_t rung(Rung rung) const {
    return allocator_->stats().rungs[static_cast<std::size_t>(rung)];
  }
  // How many of the calls begin with `name`.
  static std::ptrdiff_t count(const Calls& calls, const std::string& name) {
    return std::count_if(calls.begin(), calls.end(), [&name](const std::string& call) {
      return call == name || call.rfind(name + " ", 0) == 0;
    });
  }
  // Without the questions about how far streams have come.
  static Calls without_questions(Calls calls) {
    std::erase(calls, "event_query");
    std::erase(calls, "event_record");
    return calls;
  }
  // From here on work is done as soon as it is queued.
  void work_is_done_at_once() {
    sim_->complete_all();
    sim_->set_completion(Completion::kClock);
    sim_->set_stream_lag_us(0);
  }
  void begin_pool(PoolKey pool, StreamId stream) {
    ASSERT_TRUE(
        allocator_->begin_allocate_to_pool(pool, [stream](StreamId s) { return s == stream; })
            .ok());
  }
  [[nodiscard]] PoolKey pool_of(VirtAddr address) const {
    return allocator_->find(address).value().pool;
  }

  std::unique_ptr<SimulatedDriver> sim_;
  std::unique_ptr<RecordingDriver> recorder_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::map<std::uint64_t, std::pair<Bytes, std::uint64_t>> tags_;
  std::uint64_t tag_ = 0;
  // Most tests look at the heap, call by call: there no thread keeps anything.
  bool caches_ = false;
};

}  // namespace nofrag
