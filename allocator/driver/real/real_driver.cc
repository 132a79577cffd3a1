// The calls of Driver. Opening and probing are in real_driver_open.cc.
#include "driver/real/real_driver.h"

#include <chrono>
#include <mutex>

#include "driver/real/driver_api.h"
#include "driver/real/driver_errors.h"

namespace nofrag {
namespace {

constexpr int kNoContext = -1;
constexpr std::uint64_t kLastDefaultStream = 2;  // 0, 1, 2: the streams without a handle

CUdeviceptr pointer(VirtAddr address) {
  return static_cast<CUdeviceptr>(address.value());
}

template <typename Handle>
Handle as_handle(std::uint64_t raw) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's opaque handles, kept as integers
  return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(raw));
}

template <typename Handle>
std::uint64_t as_raw(Handle handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

CUmemAccessDesc read_write(int ordinal) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

}  // namespace

// ---- what surrounds a call

// Makes the device's primary context current for one call: events, the default streams and waits must
// mean that one, whatever context (a green one, say) the calling thread works in. kNoContext: the call
// needs none (physical memory, mappings and address space belong to the device; measured).
class RealDriver::ContextScope {
 public:
  ContextScope(RealDriver& driver, int ordinal) : api_(*driver.api_) {
    if (ordinal == kNoContext) {
      return;
    }
    CUcontext current = nullptr;
    result_ = api_.context_current(&current);
    if (result_ != CUDA_SUCCESS) {
      return;
    }
    void* primary = driver.primary_context(ordinal, &result_);
    if (primary != nullptr && primary != current) {
      result_ = api_.context_push(static_cast<CUcontext>(primary));
      pushed_ = result_ == CUDA_SUCCESS;
    }
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    if (pushed_) {
      CUcontext popped = nullptr;
      api_.context_pop(&popped);
    }
  }
  [[nodiscard]] int result() const { return result_; }

 private:
  const DriverApi& api_;
  int result_ = CUDA_SUCCESS;
  bool pushed_ = false;
};

// Lets this thread make calls that a global-mode capture would forbid it.
class RealDriver::CaptureScope {
 public:
  CaptureScope(const DriverApi& api, bool wanted) : api_(api), wanted_(wanted) {
    if (wanted_) {
      wanted_ = api_.exchange_capture_mode(&mode_) == CUDA_SUCCESS;
    }
  }
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
  ~CaptureScope() {
    if (wanted_) {
      api_.exchange_capture_mode(&mode_);
    }
  }

 private:
  const DriverApi& api_;
  bool wanted_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

template <typename Action>
Status RealDriver::call(DriverCall kind, DeviceOrdinal device, bool relax_capture, Action action) {
  if (!valid(device)) {
    return invalid_device();
  }
  return timed(kind, device.value(), relax_capture, action);
}

template <typename Action>
Status RealDriver::timed(DriverCall kind, int ordinal, bool relax_capture, Action action) {
  const auto begin = std::chrono::steady_clock::now();
  const int result = within(ordinal, relax_capture, action);
  const auto spent = std::chrono::steady_clock::now() - begin;
  const auto index = static_cast<std::size_t>(kind);
  calls_[index].fetch_add(1, std::memory_order_relaxed);
  nanoseconds_[index].fetch_add(
      static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()),
      std::memory_order_relaxed);
  return result == CUDA_SUCCESS ? Status() : Status(error_of(result));
}

template <typename Action>
int RealDriver::within(int ordinal, bool relax_capture, Action action) {
  const CaptureScope capture(*api_, relax_capture);
  const ContextScope context(*this, ordinal);
  return context.result() == CUDA_SUCCESS ? static_cast<int>(action()) : context.result();
}

bool RealDriver::valid(DeviceOrdinal device) const {
  return device.value() >= 0 && static_cast<std::size_t>(device.value()) < devices_.size();
}

void* RealDriver::primary_context(int ordinal, int* code) {
  Device& device = devices_[static_cast<std::size_t>(ordinal)];
  void* context = device.primary.load(std::memory_order_acquire);
  if (context != nullptr) {
    *code = CUDA_SUCCESS;
    return context;
  }
  const std::lock_guard lock(mutex_);
  context = device.primary.load(std::memory_order_acquire);
  if (context == nullptr) {
    CUcontext retained = nullptr;
    *code = api_->primary_retain(&retained, ordinal);
    if (*code != CUDA_SUCCESS) {
      return nullptr;
    }
    context = retained;
    device.primary.store(context, std::memory_order_release);
  }
  return context;
}

// ---- devices

Result<int> RealDriver::device_count() {
  return static_cast<int>(devices_.size());
}

Result<DeviceInfo> RealDriver::device_info(DeviceOrdinal device) {
  if (!valid(device)) {
    return invalid_device();
  }
  DeviceInfo info = at(device).info;
  info.rdma_in_use = at(device).rdma.load(std::memory_order_relaxed) == Rdma::kOn;
  return info;
}

Result<MemoryInfo> RealDriver::memory_info(DeviceOrdinal device) {
  std::size_t free = 0;
  std::size_t total = 0;
  const Status status =
      call(DriverCall::kMemInfo, device, true, [&] { return api_->memory_info(&free, &total); });
  if (!status) {
    return status.error();
  }
  return MemoryInfo{Bytes(free), Bytes(total)};
}

// ---- physical memory and address space

int RealDriver::create_handle(int ordinal, Bytes size, bool rdma, unsigned long long* handle) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  properties.allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
  if (options_.shareable_fd && devices_[static_cast<std::size_t>(ordinal)].info.shareable_fd) {
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  return api_->create(handle, size.count(), &properties, 0);
}

RealDriver::Rdma RealDriver::try_rdma(int ordinal) {
  const Bytes size = devices_[static_cast<std::size_t>(ordinal)].info.granularity;
  unsigned long long handle = 0;
  const int created = create_handle(ordinal, size, true, &handle);
  if (created != CUDA_SUCCESS) {
    // No memory says nothing about the flag.
    return created == CUDA_ERROR_OUT_OF_MEMORY ? Rdma::kUntried : Rdma::kOff;
  }
  Rdma verdict = Rdma::kUntried;
  CUdeviceptr address = 0;
  if (api_->address_reserve(&address, size.count(), 0, 0, 0) == CUDA_SUCCESS) {
    if (api_->map(address, size.count(), 0, handle, 0) == CUDA_SUCCESS) {
      const CUmemAccessDesc access = read_write(ordinal);
      const CUresult granted = api_->set_access(address, size.count(), &access, 1);
      verdict = granted == CUDA_SUCCESS ? Rdma::kOn : Rdma::kOff;
      api_->unmap(address, size.count());
    } else {
      verdict = Rdma::kOff;
    }
    api_->address_free(address, size.count());
  }
  api_->release(handle);
  return verdict;
}

bool RealDriver::settle_rdma(DeviceOrdinal ordinal) {
  Device& device = at(ordinal);
  if (device.rdma.load(std::memory_order_acquire) == Rdma::kUntried) {
    const std::lock_guard lock(mutex_);
    if (device.rdma.load(std::memory_order_acquire) == Rdma::kUntried) {
      device.rdma.store(try_rdma(ordinal.value()), std::memory_order_release);
    }
  }
  return device.rdma.load(std::memory_order_acquire) != Rdma::kOff;
}

Result<HandleId> RealDriver::create(DeviceOrdinal device, Bytes size) {
  unsigned long long handle = 0;
  if (!valid(device)) {
    return invalid_device();
  }
  const Status status = timed(DriverCall::kCreate, kNoContext, true, [&] {
    const bool rdma = settle_rdma(device);
    int result = create_handle(device.value(), size, rdma, &handle);
    if (rdma && result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
      const int plain = create_handle(device.value(), size, false, &handle);
      if (plain == CUDA_SUCCESS) {
        at(device).rdma.store(Rdma::kOff, std::memory_order_release);
      }
      result = plain;
    }
    return result;
  });
  return status ? Result<HandleId>(HandleId{handle}) : Result<HandleId>(status.error());
}

Status RealDriver::release(HandleId handle) {
  return timed(DriverCall::kRelease, kNoContext, true, [&] { return api_->release(handle.raw); });
}

Result<int> RealDriver::export_handle(HandleId handle) {
  if (api_->export_handle == nullptr) {
    return Errc::kNotSupported;
  }
  int descriptor = -1;
  const int result =
      api_->export_handle(&descriptor, handle.raw, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return result == CUDA_SUCCESS ? Result<int>(descriptor) : Result<int>(error_of(result));
}

Result<HandleId> RealDriver::import_handle(DeviceOrdinal device, int descriptor) {
  if (!valid(device)) {
    return invalid_device();
  }
  if (api_->import_handle == nullptr) {
    return Errc::kNotSupported;
  }
  unsigned long long handle = 0;
  // The driver takes the descriptor's number by value, as a pointer.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  void* const os_handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
  const int result =
      api_->import_handle(&handle, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  return result == CUDA_SUCCESS ? Result<HandleId>(HandleId{handle})
                                : Result<HandleId>(error_of(result));
}

Result<VirtAddr> RealDriver::reserve(Bytes size, Bytes alignment) {
  CUdeviceptr address = 0;
  const Status status = timed(DriverCall::kReserve, kNoContext, true, [&] {
    return api_->address_reserve(&address, size.count(), alignment.count(), 0, 0);
  });
  if (status) {
    return VirtAddr(std::uint64_t{address});
  }
  // Here the driver means address space; for us the word is kept for device memory.
  const Error failure = status.error();
  return failure.code == Errc::kOutOfMemory ? Error{Errc::kDriverFailure, failure.driver_code}
                                            : failure;
}

Status RealDriver::free_range(VirtAddr address, Bytes size) {
  return timed(DriverCall::kFreeRange, kNoContext, true, [&] {
    return api_->address_free(pointer(address), size.count());
  });
}

Status RealDriver::map(VirtAddr address, Bytes size, HandleId handle) {
  return timed(DriverCall::kMap, kNoContext, true, [&] {
    return api_->map(pointer(address), size.count(), 0, handle.raw, 0);
  });
}

Status RealDriver::set_access(VirtAddr address, Bytes size, DeviceOrdinal device) {
  if (!valid(device)) {
    return invalid_device();
  }
  const CUmemAccessDesc access = read_write(device.value());
  return timed(DriverCall::kSetAccess, kNoContext, true, [&] {
    return api_->set_access(pointer(address), size.count(), &access, 1);
  });
}

Status RealDriver::unmap(VirtAddr address, Bytes size) {
  return timed(DriverCall::kUnmap, kNoContext, true, [&] {
    return api_->unmap(pointer(address), size.count());
  });
}

// ---- plain allocations

Result<VirtAddr> RealDriver::malloc(DeviceOrdinal device, Bytes size) {
  CUdeviceptr address = 0;
  const Status status = call(
      DriverCall::kMalloc, device, true, [&] { return api_->mem_alloc(&address, size.count()); });
  return status ? Result<VirtAddr>(VirtAddr(std::uint64_t{address}))
                : Result<VirtAddr>(status.error());
}

Status RealDriver::free(DeviceOrdinal device, VirtAddr address) {
  return call(DriverCall::kFree, device, true, [&] { return api_->mem_free(pointer(address)); });
}

// ---- events and streams

Result<EventId> RealDriver::event_create(DeviceOrdinal device) {
  CUevent event = nullptr;
  const Status status = call(DriverCall::kEventCreate, device, true, [&] {
    return api_->event_create(&event, CU_EVENT_DISABLE_TIMING);
  });
  return status ? Result<EventId>(EventId{as_raw(event)}) : Result<EventId>(status.error());
}

Status RealDriver::event_destroy(DeviceOrdinal device, EventId event) {
  return call(DriverCall::kEventDestroy, device, true, [&] {
    return api_->event_destroy(as_handle<CUevent>(event.raw));
  });
}

Status RealDriver::event_record(DeviceOrdinal device, EventId event, StreamId stream) {
  return call(DriverCall::kEventRecord, device, false, [&] {
    return api_->event_record(as_handle<CUevent>(event.raw), as_handle<CUstream>(stream.value()));
  });
}

Status RealDriver::event_query(DeviceOrdinal device, EventId event) {
  return call(DriverCall::kEventQuery, device, true, [&] {
    return api_->event_query(as_handle<CUevent>(event.raw));
  });
}

Status RealDriver::event_synchronize(DeviceOrdinal device, EventId event) {
  return call(DriverCall::kEventSynchronize, device, true, [&] {
    return api_->event_synchronize(as_handle<CUevent>(event.raw));
  });
}

Status RealDriver::stream_wait(DeviceOrdinal device, StreamId stream, EventId event) {
  return call(DriverCall::kStreamWait, device, false, [&] {
    return api_->stream_wait_event(
        as_handle<CUstream>(stream.value()), as_handle<CUevent>(event.raw), 0);
  });
}

// Asked at every allocation, so it is counted but not timed (the call takes 13 ns, the clock 50),
// and the context is looked at only where the handle does not say which one is meant.
Result<bool> RealDriver::stream_is_capturing(DeviceOrdinal device, StreamId stream) {
  if (!valid(device)) {
    return invalid_device();
  }
  calls_[static_cast<std::size_t>(DriverCall::kStreamCaptureQuery)].fetch_add(
      1, std::memory_order_relaxed);
  const bool default_stream = stream.value() <= kLastDefaultStream;
  const ContextScope context(*this, default_stream ? device.value() : kNoContext);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const int result = context.result() == CUDA_SUCCESS
                         ? api_->stream_is_capturing(as_handle<CUstream>(stream.value()), &status)
                         : context.result();
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    // The legacy stream, while a stream that it would synchronize with is captured: nothing may be
    // recorded on it now, which is what the caller wants to know. The capture goes on (measured).
    return true;
  }
  // What a destroyed stream's handle answers. A live one answers 0 whatever context is current.
  if (!default_stream &&
      (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED)) {
    return Error{Errc::kInvalidArgument, result};
  }
  if (result != CUDA_SUCCESS) {
    return error_of(result);
  }
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Result<std::uint64_t> RealDriver::stream_identity(DeviceOrdinal device, StreamId stream) {
  if (!valid(device)) {
    return invalid_device();
  }
  if (api_->stream_get_id == nullptr) {
    return Errc::kNotSupported;
  }
  unsigned long long identity = 0;
  const int result = api_->stream_get_id(as_handle<CUstream>(stream.value()), &identity);
  return result == CUDA_SUCCESS ? Result<std::uint64_t>(identity)
                                : Result<std::uint64_t>(error_of(result));
}

bool RealDriver::stream_is(DeviceOrdinal /*device*/, StreamId stream, std::uint64_t identity) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  unsigned long long known = 0;
  const auto handle = as_handle<CUstream>(stream.value());
  return api_->stream_get_id != nullptr &&
         api_->stream_is_capturing(handle, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_NONE &&
         api_->stream_get_id(handle, &known) == CUDA_SUCCESS && known == identity;
}

Result<StreamId> RealDriver::stream_create(DeviceOrdinal device) {
  if (!valid(device)) {
    return invalid_device();
  }
  CUstream stream = nullptr;
  const int result = within(
      device.value(), true, [&] { return api_->stream_create(&stream, CU_STREAM_NON_BLOCKING); });
  return result == CUDA_SUCCESS ? Result<StreamId>(StreamId(as_raw(stream)))
                                : Result<StreamId>(error_of(result));
}

Status RealDriver::stream_destroy(DeviceOrdinal device, StreamId stream) {
  if (!valid(device)) {
    return invalid_device();
  }
  const int result = within(device.value(), true, [&] {
    return api_->stream_destroy(as_handle<CUstream>(stream.value()));
  });
  return result == CUDA_SUCCESS ? Status() : Status(error_of(result));
}

Status RealDriver::stream_synchronize(DeviceOrdinal device, StreamId stream) {
  return call(DriverCall::kStreamSynchronize, device, true, [&] {
    return api_->stream_synchronize(as_handle<CUstream>(stream.value()));
  });
}

Status RealDriver::device_synchronize(DeviceOrdinal device) {
  CUcontext current = nullptr;
  CUdevice owner = -1;
  // Before the primary context is pushed: the thread's own, which may be another of this device.
  const bool same_device = api_->context_current(&current) == CUDA_SUCCESS && current != nullptr &&
                           api_->context_device(&owner) == CUDA_SUCCESS && owner == device.value();
  return call(DriverCall::kDeviceSynchronize, device, true, [&] {
    CUresult result = api_->context_synchronize();
    CUcontext primary = nullptr;
    api_->context_current(&primary);
    if (result == CUDA_SUCCESS && same_device && current != primary) {
      result = api_->context_push(current);
      if (result == CUDA_SUCCESS) {
        result = api_->context_synchronize();
        CUcontext popped = nullptr;
        api_->context_pop(&popped);
      }
    }
    return result;
  });
}

void RealDriver::release_context(DeviceOrdinal device) {
  const std::lock_guard lock(mutex_);
  if (valid(device) && at(device).primary.exchange(nullptr) != nullptr) {
    api_->primary_release(device.value());
  }
}

DriverLedger RealDriver::ledger() const {
  DriverLedger ledger;
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    ledger.calls[i] = calls_[i].load(std::memory_order_relaxed);
    ledger.microseconds[i] =
        static_cast<double>(nanoseconds_[i].load(std::memory_order_relaxed)) / 1000.0;
  }
  return ledger;
}

}  // namespace nofrag
