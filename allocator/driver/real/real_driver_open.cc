// Opening the driver and asking each device what it can do.
#include <dlfcn.h>

#include "driver/real/driver_api.h"
#include "driver/real/driver_errors.h"
#include "driver/real/real_driver.h"

namespace nofrag {
namespace {

constexpr int kOldestDriver = 10020;  // the first with the virtual-memory calls

// By number, so that headers of every CUDA 12 know them.
constexpr auto kAttributeVirtualMemory = static_cast<CUdevice_attribute>(102);
constexpr auto kAttributeShareableFd = static_cast<CUdevice_attribute>(103);
constexpr auto kAttributeCompression = static_cast<CUdevice_attribute>(107);
constexpr auto kAttributeRdmaWithVmm = static_cast<CUdevice_attribute>(110);
constexpr auto kAttributeFabric = static_cast<CUdevice_attribute>(128);
constexpr auto kAttributeHostNumaVmm = static_cast<CUdevice_attribute>(141);

}  // namespace

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

}  // namespace nofrag
