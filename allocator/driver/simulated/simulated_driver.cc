// The calls of Driver. The control surface is in simulated_control.cc.
#include "driver/simulated/simulated_driver.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>

#include <sys/mman.h>

#include "driver/simulated/simulated_errors.h"

namespace nofrag {
namespace {

using Guard = std::lock_guard<RankedMutex>;

// What an exported descriptor holds: whose handle it is.
struct ExportedHandle {
  const SimulatedDriver* driver = nullptr;
  std::uint64_t handle = 0;
};

}  // namespace

// ---- what every call does

Status SimulatedDriver::begin(DriverCall call) {
  ++ledger_.calls[static_cast<std::size_t>(call)];
  if (between_calls_us_ > 0) {
    // (Nobody else moves it then: a plain addition, which costs a live process's calls next to nothing.)
    streams_.clock_us.store(streams_.clock_us.load(std::memory_order_relaxed) + between_calls_us_,
                            std::memory_order_relaxed);
  }
  const Errc fault = faults_.next(call);
  return fault == Errc::kOk ? Status() : Status(simulated_error(fault));
}

void SimulatedDriver::charge(DriverCall call, double microseconds) {
  ledger_.microseconds[static_cast<std::size_t>(call)] += microseconds;
}

void SimulatedDriver::charge_refusal(const CallCost& cost, DriverCall call, Bytes size) {
  charge(call, cost.failure_us > 0 ? cost.failure_us : cost.microseconds(size));
}

const CallCost& SimulatedDriver::cost(int device, DriverCall call) const {
  const bool known = device >= 0 && static_cast<std::size_t>(device) < specs_.size();
  return specs_[known ? static_cast<std::size_t>(device) : 0].costs[call];
}

bool SimulatedDriver::valid(DeviceOrdinal device) const {
  return device.value() >= 0 && static_cast<std::size_t>(device.value()) < specs_.size();
}

bool SimulatedDriver::has_virtual_memory() const {
  return std::any_of(specs_.begin(), specs_.end(), [](const SimulatedDeviceSpec& spec) {
    return spec.info.virtual_memory;
  });
}

template <typename Action>
Status SimulatedDriver::fixed_price_call(DriverCall call, DeviceOrdinal device, Action action) {
  const Guard lock(mutex_);
  charge(call, cost(device.value(), call).microseconds(Bytes(0)));
  if (Status status = begin(call); !status) {
    return status;
  }
  if (!valid(device)) {
    return simulated_invalid();
  }
  double waited_us = 0;
  const Status status = action(device.value(), &waited_us);
  charge(call, waited_us);
  return status;
}

// ---- devices

Result<int> SimulatedDriver::device_count() {
  return static_cast<int>(specs_.size());
}

Result<DeviceInfo> SimulatedDriver::device_info(DeviceOrdinal device) {
  const Guard lock(mutex_);
  if (!valid(device)) {
    return simulated_invalid();
  }
  DeviceInfo info = specs_[static_cast<std::size_t>(device.value())].info;
  info.total_memory = memory_.physical(device.value());
  return info;
}

Result<MemoryInfo> SimulatedDriver::memory_info(DeviceOrdinal device) {
  MemoryInfo info;
  const Status status = fixed_price_call(DriverCall::kMemInfo, device, [&](int d, double*) {
    info = {memory_.free(d), memory_.physical(d)};
    return Status();
  });
  return status ? Result<MemoryInfo>(info) : Result<MemoryInfo>(status.error());
}

// ---- physical memory and address space

Result<HandleId> SimulatedDriver::create(DeviceOrdinal device, Bytes size) {
  const Guard lock(mutex_);
  const CallCost& price = cost(device.value(), DriverCall::kCreate);
  Result<HandleId> result = HandleId{};
  if (const Status status = begin(DriverCall::kCreate); !status) {
    result = status.error();
  } else if (!valid(device)) {
    result = simulated_invalid();
  } else if (!specs_[static_cast<std::size_t>(device.value())].info.virtual_memory) {
    result = simulated_error(Errc::kNotSupported);
  } else {
    result = memory_.create(device.value(), size);
  }
  if (result) {
    charge(DriverCall::kCreate, price.microseconds(size));
  } else {
    charge_refusal(price, DriverCall::kCreate, size);
  }
  return result;
}

Result<int> SimulatedDriver::export_handle(HandleId handle) {
  const Guard lock(mutex_);
  if (memory_.handle_size(handle).is_zero()) {
    return simulated_invalid();
  }
  const ExportedHandle exported{this, handle.raw};
  const int descriptor = ::memfd_create("nofrag-simulated-memory", MFD_CLOEXEC);
  if (descriptor < 0 ||
      ::write(descriptor, &exported, sizeof exported) != static_cast<ssize_t>(sizeof exported)) {
    return Errc::kDriverFailure;
  }
  return descriptor;
}

Result<HandleId> SimulatedDriver::import_handle(DeviceOrdinal device, int descriptor) {
  const Guard lock(mutex_);
  ExportedHandle exported;
  if (!valid(device) ||
      ::pread(descriptor, &exported, sizeof exported, 0) != static_cast<ssize_t>(sizeof exported)) {
    return simulated_invalid();
  }
  const HandleId handle{exported.handle};
  if (exported.driver != this || !memory_.retain(handle)) {
    return simulated_invalid();
  }
  return handle;
}

Status SimulatedDriver::release(HandleId handle) {
  const Guard lock(mutex_);
  const Bytes size = memory_.handle_size(handle);
  const CallCost& price = cost(memory_.handle_device(handle), DriverCall::kRelease);
  Status status = begin(DriverCall::kRelease);
  if (status) {
    status = memory_.release(handle);
  }
  if (status) {
    charge(DriverCall::kRelease, price.microseconds(size));
  } else {
    charge_refusal(price, DriverCall::kRelease, size);
  }
  return status;
}

Result<VirtAddr> SimulatedDriver::reserve(Bytes size, Bytes alignment) {
  const Guard lock(mutex_);
  charge(DriverCall::kReserve, cost(0, DriverCall::kReserve).microseconds(size));
  if (const Status status = begin(DriverCall::kReserve); !status) {
    return status.error();
  }
  if (!has_virtual_memory()) {
    return simulated_error(Errc::kNotSupported);
  }
  return memory_.reserve(size, alignment);
}

Status SimulatedDriver::free_range(VirtAddr address, Bytes size) {
  const Guard lock(mutex_);
  charge(DriverCall::kFreeRange, cost(0, DriverCall::kFreeRange).microseconds(size));
  if (Status status = begin(DriverCall::kFreeRange); !status) {
    return status;
  }
  return memory_.free_range(address, size);
}

Status SimulatedDriver::map(VirtAddr address, Bytes size, HandleId handle) {
  const Guard lock(mutex_);
  const CallCost& price = cost(memory_.handle_device(handle), DriverCall::kMap);
  Status status = begin(DriverCall::kMap);
  if (status) {
    status = memory_.map(address, size, handle);
  }
  if (status) {
    charge(DriverCall::kMap, price.microseconds(size));
  } else {
    charge_refusal(price, DriverCall::kMap, size);
  }
  return status;
}

Status SimulatedDriver::set_access(VirtAddr address, Bytes size, DeviceOrdinal device) {
  const Guard lock(mutex_);
  Status status = begin(DriverCall::kSetAccess);
  if (status && !valid(device)) {
    status = simulated_invalid();
  }
  if (status) {
    status = memory_.set_access(address, size, device.value());
  }
  if (!status) {
    charge_refusal(cost(device.value(), DriverCall::kSetAccess), DriverCall::kSetAccess, size);
    return status;
  }
  double total = 0;
  memory_.for_each_mapping(address, size, [&](const SimulatedMemory::Mapping& mapping) {
    const CallCost& price = cost(mapping.owner, DriverCall::kSetAccess);
    if (mapping.owner != device.value() && price.peer_mapping_us > 0) {
      total += price.peer_mapping_us;
    } else {
      total += total > 0 ? price.further_mapping(mapping.size) : price.microseconds(mapping.size);
    }
  });
  charge(DriverCall::kSetAccess, total);
  return status;
}

Status SimulatedDriver::unmap(VirtAddr address, Bytes size) {
  const Guard lock(mutex_);
  Status status = begin(DriverCall::kUnmap);
  if (status && !memory_.covered_exactly(address, size)) {
    status = simulated_invalid();
  }
  if (status && streams_.running_in(address, size) != nullptr) {
    status = violation("unmap of a range that a running kernel uses, at " +
                       std::to_string(address.value()));
  }
  if (!status) {
    charge_refusal(cost(0, DriverCall::kUnmap), DriverCall::kUnmap, size);
    return status;
  }
  double total = 0;
  memory_.for_each_mapping(address, size, [&](const SimulatedMemory::Mapping& mapping) {
    const CallCost& price = cost(mapping.owner, DriverCall::kUnmap);
    total += total > 0 ? price.further_mapping(mapping.size) : price.microseconds(mapping.size);
  });
  charge(DriverCall::kUnmap, total);
  return memory_.unmap(address, size);
}

// ---- plain allocations

Result<VirtAddr> SimulatedDriver::malloc(DeviceOrdinal device, Bytes size) {
  const Guard lock(mutex_);
  const CallCost& price = cost(device.value(), DriverCall::kMalloc);
  Result<VirtAddr> result = VirtAddr();
  if (const Status status = begin(DriverCall::kMalloc); !status) {
    result = status.error();
  } else if (!valid(device)) {
    result = simulated_invalid();
  } else {
    result = memory_.malloc(device.value(), size);
  }
  if (result) {
    charge(DriverCall::kMalloc, price.microseconds(size));
  } else {
    charge_refusal(price, DriverCall::kMalloc, size);
  }
  return result;
}

Status SimulatedDriver::free(DeviceOrdinal device, VirtAddr address) {
  const Guard lock(mutex_);
  const CallCost& price = cost(device.value(), DriverCall::kFree);
  charge(DriverCall::kFree, price.microseconds(memory_.malloc_size(address)));
  if (Status status = begin(DriverCall::kFree); !status) {
    return status;
  }
  if (!valid(device) || memory_.malloc_size(address).is_zero()) {
    return simulated_invalid();
  }
  // Waits for the device to go idle, so that no kernel can lose its memory.
  double waited_us = 0;
  streams_.wait_idle(device.value(), &waited_us);
  charge(DriverCall::kFree, waited_us);
  return memory_.free(device.value(), address);
}

// ---- events and streams

Result<EventId> SimulatedDriver::event_create(DeviceOrdinal device) {
  Result<EventId> event = EventId{};
  const Status status = fixed_price_call(DriverCall::kEventCreate, device, [&](int d, double*) {
    event = streams_.create_event(d);
    return Status();
  });
  return status ? event : Result<EventId>(status.error());
}

Status SimulatedDriver::event_destroy(DeviceOrdinal device, EventId event) {
  return fixed_price_call(DriverCall::kEventDestroy, device, [&](int d, double*) {
    return streams_.destroy_event(d, event);
  });
}

Status SimulatedDriver::event_record(DeviceOrdinal device, EventId event, StreamId stream) {
  return fixed_price_call(DriverCall::kEventRecord, device, [&](int d, double*) {
    return streams_.record(d, event, stream);
  });
}

Status SimulatedDriver::event_query(DeviceOrdinal device, EventId event) {
  return fixed_price_call(
      DriverCall::kEventQuery, device, [&](int d, double*) { return streams_.query(d, event); });
}

Status SimulatedDriver::event_synchronize(DeviceOrdinal device, EventId event) {
  return fixed_price_call(DriverCall::kEventSynchronize, device, [&](int d, double* waited_us) {
    return streams_.synchronize_event(d, event, waited_us);
  });
}

Status SimulatedDriver::stream_wait(DeviceOrdinal device, StreamId stream, EventId event) {
  return fixed_price_call(DriverCall::kStreamWait, device, [&](int d, double*) {
    return streams_.wait(d, stream, event);
  });
}

Result<bool> SimulatedDriver::stream_is_capturing(DeviceOrdinal device, StreamId stream) {
  bool capturing = false;
  const Status status =
      fixed_price_call(DriverCall::kStreamCaptureQuery, device, [&](int d, double*) {
        capturing = streams_.capturing(d, stream);
        return Status();
      });
  return status ? Result<bool>(capturing) : Result<bool>(status.error());
}

Result<std::uint64_t> SimulatedDriver::stream_identity(DeviceOrdinal device, StreamId stream) {
  const Guard lock(mutex_);
  if (!valid(device)) {
    return Errc::kInvalidArgument;
  }
  return streams_.identity(device.value(), stream);
}

Result<StreamId> SimulatedDriver::stream_create(DeviceOrdinal device) {
  const Guard lock(mutex_);
  if (!valid(device)) {
    return simulated_invalid();
  }
  return streams_.create_stream(device.value());
}

Status SimulatedDriver::stream_destroy(DeviceOrdinal device, StreamId stream) {
  const Guard lock(mutex_);
  const bool destroyed = valid(device) && streams_.destroy_created(device.value(), stream);
  return destroyed ? Status() : Status(simulated_invalid());
}

Status SimulatedDriver::stream_synchronize(DeviceOrdinal device, StreamId stream) {
  return fixed_price_call(DriverCall::kStreamSynchronize, device, [&](int d, double* waited_us) {
    return streams_.synchronize_stream(d, stream, waited_us);
  });
}

Status SimulatedDriver::device_synchronize(DeviceOrdinal device) {
  return fixed_price_call(DriverCall::kDeviceSynchronize, device, [&](int d, double* waited_us) {
    return streams_.synchronize_device(d, waited_us);
  });
}

DriverLedger SimulatedDriver::ledger() const {
  const Guard lock(mutex_);
  return ledger_;
}

}  // namespace nofrag
