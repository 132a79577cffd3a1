#include "driver/real/real_driver.h"

#include <dlfcn.h>

#include <chrono>
#include <mutex>

#include "driver/real/driver_api.h"

namespace nofrag {
namespace {

constexpr int kOldestDriver = 10020;  // the first with the virtual-memory calls

constexpr int kAnyDevice = -1;

// By number, so that headers of every CUDA 12 know them.
constexpr auto kAttributeVirtualMemory = static_cast<CUdevice_attribute>(102);
constexpr auto kAttributeShareableFd = static_cast<CUdevice_attribute>(103);
constexpr auto kAttributeCompression = static_cast<CUdevice_attribute>(107);
constexpr auto kAttributeRdmaWithVmm = static_cast<CUdevice_attribute>(110);
constexpr auto kAttributeFabric = static_cast<CUdevice_attribute>(128);
constexpr auto kAttributeHostNumaVmm = static_cast<CUdevice_attribute>(141);

Errc errc_of(int result) {
  if (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_CAPTURED_EVENT) {
    return Errc::kCapturing;
  }
  switch (result) {
    case CUDA_SUCCESS:
      return Errc::kOk;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Errc::kOutOfMemory;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_HANDLE:
      return Errc::kInvalidArgument;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
      return Errc::kNotInitialized;
    case CUDA_ERROR_NOT_SUPPORTED:
      return Errc::kNotSupported;
    case CUDA_ERROR_NOT_READY:
      return Errc::kNotReady;
    default:
      return Errc::kDriverFailure;
  }
}

Error error_of(int result) {
  return {errc_of(result), result};
}

CUdeviceptr pointer(VirtAddr address) {
  return static_cast<CUdeviceptr>(address.value());
}

template <typename Handle>
Handle as_handle(std::uint64_t raw) {
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

// Makes the right context current for one call. kAnyDevice: whatever is current will do, and the
// device used last if nothing is (mappings and address space belong to no context).
class RealDriver::ContextScope {
 public:
  ContextScope(RealDriver& driver, int ordinal) : api_(*driver.api_) {
    CUcontext current = nullptr;
    CUdevice device = -1;
    result_ = api_.context_current(&current);
    if (result_ != CUDA_SUCCESS) {
      return;
    }
    if (current != nullptr &&
        (ordinal == kAnyDevice ||
         (api_.context_device(&device) == CUDA_SUCCESS && device == ordinal))) {
      return;
    }
    if (ordinal == kAnyDevice) {
      ordinal = driver.last_device_.load(std::memory_order_relaxed);
    } else {
      driver.last_device_.store(ordinal, std::memory_order_relaxed);
    }
    void* primary = driver.primary_context(ordinal, &result_);
    if (primary != nullptr) {
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
  if (device.value() != kAnyDevice && !valid(device)) {
    return Error{Errc::kInvalidArgument, CUDA_ERROR_INVALID_DEVICE};
  }
  const auto begin = std::chrono::steady_clock::now();
  int result = CUDA_SUCCESS;
  {
    const CaptureScope capture(*api_, relax_capture);
    const ContextScope context(*this, device.value());
    result = context.result() == CUDA_SUCCESS ? static_cast<int>(action()) : context.result();
  }
  const auto spent = std::chrono::steady_clock::now() - begin;
  const auto index = static_cast<std::size_t>(kind);
  calls_[index].fetch_add(1, std::memory_order_relaxed);
  nanoseconds_[index].fetch_add(
      static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()),
      std::memory_order_relaxed);
  return result == CUDA_SUCCESS ? Status() : Status(error_of(result));
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

// ---- opening

RealDriver::RealDriver() : api_(std::make_unique<DriverApi>()) {}

RealDriver::~RealDriver() {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].primary.load() != nullptr) {
      api_->primary_release(static_cast<CUdevice>(i));
    }
  }
}

Result<std::unique_ptr<RealDriver>> RealDriver::open(const RealDriverOptions& options,
                                                     std::string* error) {
  std::unique_ptr<RealDriver> driver(new RealDriver());
  const Error failure = driver->start(options, error);
  if (failure.code != Errc::kOk) {
    return failure;
  }
  return driver;
}

Error RealDriver::start(const RealDriverOptions& options, std::string* error) {
  options_ = options;
  const SymbolLookup lookup = options.lookup != nullptr ? options.lookup : &dlsym;
  if (!DriverApi::load(options.library, lookup, api_.get(), error)) {
    return {Errc::kNotInitialized, 0};
  }
  if (api_->driver_version(&cuda_version_) != CUDA_SUCCESS || cuda_version_ < kOldestDriver) {
    *error = "the driver supports CUDA " + std::to_string(cuda_version_ / 1000) + "." +
             std::to_string(cuda_version_ % 1000 / 10) + "; nofrag needs 10.2 or newer";
    return {Errc::kNotSupported, 0};
  }
  int count = 0;
  int result = api_->init(0);
  if (result == CUDA_SUCCESS) {
    result = api_->device_count(&count);
  }
  if (result == CUDA_SUCCESS && count == 0) {
    result = CUDA_ERROR_NO_DEVICE;
  }
  if (result != CUDA_SUCCESS) {
    const char* name = nullptr;
    api_->error_name(static_cast<CUresult>(result), &name);
    *error = std::string("the CUDA driver does not start: ") +
             (name != nullptr ? name : "unknown error") + " (" + std::to_string(result) + ")";
    return {Errc::kNotInitialized, result};
  }
  devices_ = std::vector<Device>(static_cast<std::size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    if (const Error failure = probe(ordinal, error); failure.code != Errc::kOk) {
      return failure;
    }
  }
  return {};
}

Error RealDriver::probe(int ordinal, std::string* error) {
  Device& device = devices_[static_cast<std::size_t>(ordinal)];
  DeviceInfo& info = device.info;
  CUdevice handle = 0;
  char name[256] = {};
  std::size_t total = 0;
  int result = api_->device_get(&handle, ordinal);
  if (result == CUDA_SUCCESS) {
    result = api_->device_name(name, sizeof(name) - 1, handle);
  }
  if (result == CUDA_SUCCESS) {
    result = api_->device_total_memory(&total, handle);
  }
  if (result != CUDA_SUCCESS) {
    *error = "device " + std::to_string(ordinal) + " cannot be asked for its name and size (" +
             std::to_string(result) + ")";
    return error_of(result);
  }
  // An attribute that the driver does not know means: cannot do it.
  const auto has = [&](CUdevice_attribute attribute) {
    int value = 0;
    return api_->device_attribute(&value, attribute, handle) == CUDA_SUCCESS && value != 0;
  };
  info.name = name;
  info.total_memory = Bytes(total);
  info.virtual_memory = has(kAttributeVirtualMemory);
  info.rdma_with_vmm = has(kAttributeRdmaWithVmm);
  info.shareable_fd = has(kAttributeShareableFd);
  info.shareable_fabric = has(kAttributeFabric);
  info.compression = has(kAttributeCompression);
  info.host_numa_vmm = has(kAttributeHostNumaVmm);
  if (info.virtual_memory) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = ordinal;
    std::size_t granularity = 0;
    const CUresult asked =
        api_->granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    info.virtual_memory = asked == CUDA_SUCCESS && granularity != 0;
    info.granularity = Bytes(info.virtual_memory ? granularity : 0);
  }
  const bool try_rdma = options_.rdma && info.virtual_memory && info.rdma_with_vmm;
  device.rdma.store(try_rdma ? Rdma::kUntried : Rdma::kOff);
  return {};
}

// ---- devices

Result<int> RealDriver::device_count() {
  return static_cast<int>(devices_.size());
}

Result<DeviceInfo> RealDriver::device_info(DeviceOrdinal device) {
  if (!valid(device)) {
    return Error{Errc::kInvalidArgument, CUDA_ERROR_INVALID_DEVICE};
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
  const Status status = call(DriverCall::kCreate, device, true, [&] {
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
  return call(DriverCall::kRelease, DeviceOrdinal(kAnyDevice), true, [&] {
    return api_->release(handle.raw);
  });
}

Result<VirtAddr> RealDriver::reserve(Bytes size, Bytes alignment) {
  CUdeviceptr address = 0;
  const Status status = call(DriverCall::kReserve, DeviceOrdinal(kAnyDevice), true, [&] {
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
  return call(DriverCall::kFreeRange, DeviceOrdinal(kAnyDevice), true, [&] {
    return api_->address_free(pointer(address), size.count());
  });
}

Status RealDriver::map(VirtAddr address, Bytes size, HandleId handle) {
  return call(DriverCall::kMap, DeviceOrdinal(kAnyDevice), true, [&] {
    return api_->map(pointer(address), size.count(), 0, handle.raw, 0);
  });
}

Status RealDriver::set_access(VirtAddr address, Bytes size, DeviceOrdinal device) {
  const CUmemAccessDesc access = read_write(device.value());
  return call(DriverCall::kSetAccess, device, true, [&] {
    return api_->set_access(pointer(address), size.count(), &access, 1);
  });
}

Status RealDriver::unmap(VirtAddr address, Bytes size) {
  return call(DriverCall::kUnmap, DeviceOrdinal(kAnyDevice), true, [&] {
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

Result<bool> RealDriver::stream_is_capturing(DeviceOrdinal device, StreamId stream) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  const Status status = call(DriverCall::kStreamCaptureQuery, device, false, [&] {
    return api_->stream_is_capturing(as_handle<CUstream>(stream.value()), &capture);
  });
  if (status.error().driver_code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    // The legacy stream, while a stream that it would synchronize with is captured: nothing may be
    // recorded on it now, which is what the caller wants to know.
    return true;
  }
  return status ? Result<bool>(capture != CU_STREAM_CAPTURE_STATUS_NONE)
                : Result<bool>(status.error());
}

Status RealDriver::stream_synchronize(DeviceOrdinal device, StreamId stream) {
  return call(DriverCall::kStreamSynchronize, device, true, [&] {
    return api_->stream_synchronize(as_handle<CUstream>(stream.value()));
  });
}

Status RealDriver::device_synchronize(DeviceOrdinal device) {
  return call(
      DriverCall::kDeviceSynchronize, device, true, [&] { return api_->context_synchronize(); });
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
