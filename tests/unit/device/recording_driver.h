// RecordingDriver: passes every call on to a simulated driver and writes down its name.
//
// Owns: the list of calls. Layer: tests. Sizes are written in MiB: "create 4", "map 4", "unmap 8".
// Threads: none. Failure: the simulated driver's.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {

class RecordingDriver final : public Driver {
 public:
  explicit RecordingDriver(SimulatedDriver& target) : target_(target) {}

  // What was called since the last take().
  std::vector<std::string> take() {
    std::vector<std::string> taken;
    taken.swap(calls_);
    return taken;
  }

  // How often a handle was mapped that was mapped already, and at how many addresses one was at most.
  [[nodiscard]] std::uint64_t aliases() const { return aliases_; }
  [[nodiscard]] std::uint64_t most_mappings() const { return most_mappings_; }
  [[nodiscard]] std::uint64_t memory_questions() const { return memory_questions_; }
  [[nodiscard]] VirtAddr last_unmapped() const { return last_unmapped_; }
  [[nodiscard]] std::size_t mappings() const { return mapped_.size(); }

  [[nodiscard]] std::string name() const override { return target_.name(); }
  Result<int> device_count() override { return target_.device_count(); }
  Result<DeviceInfo> device_info(DeviceOrdinal d) override { return target_.device_info(d); }
  Result<MemoryInfo> memory_info(DeviceOrdinal d) override {
    ++memory_questions_;  // not written down: they change nothing
    Result<MemoryInfo> info = target_.memory_info(d);
    if (info.ok() && others_hidden_) {
      info = MemoryInfo{info.value().total - target_.physical_in_use(d), info.value().total};
    }
    return info;
  }
  // A driver that does not tell what others hold, as under a quota: memory ends without a warning.
  void hide_others() { others_hidden_ = true; }
  Result<HandleId> create(DeviceOrdinal d, Bytes size) override {
    note("create", size);
    return target_.create(d, size);
  }
  Status release(HandleId handle) override {
    note("release");
    return target_.release(handle);
  }
  Result<VirtAddr> reserve(Bytes size, Bytes alignment) override {
    note("reserve");
    return target_.reserve(size, alignment);
  }
  Status free_range(VirtAddr address, Bytes size) override {
    note("free_range");
    return target_.free_range(address, size);
  }
  Status map(VirtAddr address, Bytes size, HandleId handle) override {
    note("map", size);
    const Status status = target_.map(address, size, handle);
    if (status.ok()) {
      mapped_[address.value()] = handle.raw;
      std::uint64_t& count = mappings_[handle.raw];
      aliases_ += ++count > 1 ? 1U : 0U;
      most_mappings_ = std::max(most_mappings_, count);
    }
    return status;
  }
  Status set_access(VirtAddr address, Bytes size, DeviceOrdinal d) override {
    note("set_access", size);
    return target_.set_access(address, size, d);
  }
  Status unmap(VirtAddr address, Bytes size) override {
    note("unmap", size);
    const Status status = target_.unmap(address, size);
    if (status.ok()) {
      --mappings_[mapped_[address.value()]];
      mapped_.erase(address.value());
      last_unmapped_ = address;
    }
    return status;
  }
  Result<VirtAddr> malloc(DeviceOrdinal d, Bytes size) override {
    note("malloc", size);
    return target_.malloc(d, size);
  }
  Status free(DeviceOrdinal d, VirtAddr address) override {
    note("free");
    return target_.free(d, address);
  }
  Result<EventId> event_create(DeviceOrdinal d) override { return target_.event_create(d); }
  Status event_destroy(DeviceOrdinal d, EventId event) override {
    return target_.event_destroy(d, event);
  }
  Status event_record(DeviceOrdinal d, EventId event, StreamId stream) override {
    note("event_record");
    return target_.event_record(d, event, stream);
  }
  Status event_query(DeviceOrdinal d, EventId event) override {
    note("event_query");
    return target_.event_query(d, event);
  }
  Status event_synchronize(DeviceOrdinal d, EventId event) override {
    note("event_synchronize");
    return target_.event_synchronize(d, event);
  }
  Status stream_wait(DeviceOrdinal d, StreamId stream, EventId event) override {
    note("stream_wait");
    return target_.stream_wait(d, stream, event);
  }
  Result<std::uint64_t> stream_identity(DeviceOrdinal d, StreamId stream) override {
    return target_.stream_identity(d, stream);
  }
  Result<bool> stream_is_capturing(DeviceOrdinal d, StreamId stream) override {
    return target_.stream_is_capturing(d, stream);
  }
  Result<StreamId> stream_create(DeviceOrdinal d) override { return target_.stream_create(d); }
  Status stream_destroy(DeviceOrdinal d, StreamId stream) override {
    return target_.stream_destroy(d, stream);
  }
  Status stream_synchronize(DeviceOrdinal d, StreamId stream) override {
    note("stream_synchronize");
    return target_.stream_synchronize(d, stream);
  }
  Status device_synchronize(DeviceOrdinal d) override {
    note("device_synchronize");
    return target_.device_synchronize(d);
  }
  [[nodiscard]] DriverLedger ledger() const override { return target_.ledger(); }

 private:
  void note(std::string call) { calls_.push_back(std::move(call)); }
  void note(std::string call, Bytes size) {
    calls_.push_back(std::move(call) + " " + std::to_string(size / kMiB));
  }

  SimulatedDriver& target_;
  std::vector<std::string> calls_;
  std::map<std::uint64_t, std::uint64_t> mapped_;    // address -> handle
  std::map<std::uint64_t, std::uint64_t> mappings_;  // handle -> how many
  VirtAddr last_unmapped_;
  std::uint64_t memory_questions_ = 0;
  bool others_hidden_ = false;
  std::uint64_t aliases_ = 0;
  std::uint64_t most_mappings_ = 0;
};

}  // namespace nofrag
