// ForwardingDriver: passes every call on to a simulated driver; a base for drivers that watch or meddle.
//
// Owns: nothing; the target outlives it. Layer: tests. before() is told of every call that the ledger
// counts, before it is made; a subclass may change the target there, or override a call whole.
// Threads: the target's. Failure: the target's.
#pragma once

#include "driver/simulated/simulated_driver.h"

namespace nofrag {

class ForwardingDriver : public Driver {
 public:
  explicit ForwardingDriver(SimulatedDriver& target) : target_(target) {}

  [[nodiscard]] std::string name() const override { return target_.name(); }
  Result<int> device_count() override { return target_.device_count(); }
  Result<DeviceInfo> device_info(DeviceOrdinal d) override { return target_.device_info(d); }
  Result<MemoryInfo> memory_info(DeviceOrdinal d) override {
    before(DriverCall::kMemInfo);
    return target_.memory_info(d);
  }
  Result<HandleId> create(DeviceOrdinal d, Bytes size) override {
    before(DriverCall::kCreate);
    return target_.create(d, size);
  }
  Status release(HandleId handle) override {
    before(DriverCall::kRelease);
    return target_.release(handle);
  }
  Result<VirtAddr> reserve(Bytes size, Bytes alignment) override {
    before(DriverCall::kReserve);
    return target_.reserve(size, alignment);
  }
  Status free_range(VirtAddr address, Bytes size) override {
    before(DriverCall::kFreeRange);
    return target_.free_range(address, size);
  }
  Status map(VirtAddr address, Bytes size, HandleId handle) override {
    before(DriverCall::kMap);
    return target_.map(address, size, handle);
  }
  Status set_access(VirtAddr address, Bytes size, DeviceOrdinal d) override {
    before(DriverCall::kSetAccess);
    return target_.set_access(address, size, d);
  }
  Status unmap(VirtAddr address, Bytes size) override {
    before(DriverCall::kUnmap);
    return target_.unmap(address, size);
  }
  Result<VirtAddr> malloc(DeviceOrdinal d, Bytes size) override {
    before(DriverCall::kMalloc);
    return target_.malloc(d, size);
  }
  Status free(DeviceOrdinal d, VirtAddr address) override {
    before(DriverCall::kFree);
    return target_.free(d, address);
  }
  Result<EventId> event_create(DeviceOrdinal d) override {
    before(DriverCall::kEventCreate);
    return target_.event_create(d);
  }
  Status event_destroy(DeviceOrdinal d, EventId event) override {
    before(DriverCall::kEventDestroy);
    return target_.event_destroy(d, event);
  }
  Status event_record(DeviceOrdinal d, EventId event, StreamId stream) override {
    before(DriverCall::kEventRecord);
    return target_.event_record(d, event, stream);
  }
  Status event_query(DeviceOrdinal d, EventId event) override {
    before(DriverCall::kEventQuery);
    return target_.event_query(d, event);
  }
  Status event_synchronize(DeviceOrdinal d, EventId event) override {
    before(DriverCall::kEventSynchronize);
    return target_.event_synchronize(d, event);
  }
  Status stream_wait(DeviceOrdinal d, StreamId stream, EventId event) override {
    before(DriverCall::kStreamWait);
    return target_.stream_wait(d, stream, event);
  }
  Result<StreamId> stream_create(DeviceOrdinal d) override { return target_.stream_create(d); }
  Status stream_destroy(DeviceOrdinal d, StreamId stream) override {
    return target_.stream_destroy(d, stream);
  }
  Result<std::uint64_t> stream_identity(DeviceOrdinal d, StreamId stream) override {
    return target_.stream_identity(d, stream);
  }
  Result<bool> stream_is_capturing(DeviceOrdinal d, StreamId stream) override {
    before(DriverCall::kStreamCaptureQuery);
    return target_.stream_is_capturing(d, stream);
  }
  Status stream_synchronize(DeviceOrdinal d, StreamId stream) override {
    before(DriverCall::kStreamSynchronize);
    return target_.stream_synchronize(d, stream);
  }
  Status device_synchronize(DeviceOrdinal d) override {
    before(DriverCall::kDeviceSynchronize);
    return target_.device_synchronize(d);
  }
  [[nodiscard]] DriverLedger ledger() const override { return target_.ledger(); }

 protected:
  virtual void before(DriverCall /*call*/) {}
  [[nodiscard]] SimulatedDriver& target() { return target_; }

 private:
  SimulatedDriver& target_;
};

}  // namespace nofrag
