#include "fake_libcuda.h"

#include <cstdint>
#include <cstring>

#include "driver/real/driver_api.h"

// One thread uses it at a time.
namespace {

nofrag::FakeCuda state;
std::vector<CUcontext> pushed_contexts;
CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
std::map<unsigned long long, bool> handle_has_rdma;
std::map<CUdeviceptr, unsigned long long> mapped;
std::uint64_t next_id = 0x1000;

constexpr std::size_t kGranularity = std::size_t{2} << 20;

// A primary context is the device number plus one; a caller's own, 100 more.
constexpr std::uintptr_t kOwnContexts = 100;
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
}
int device_of(CUcontext context) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(context) % kOwnContexts) - 1;
}
CUcontext current_context() {
  if (!pushed_contexts.empty()) {
    return pushed_contexts.back();
  }
  if (state.current_device < 0) {
    return nullptr;
  }
  const auto primary = reinterpret_cast<std::uintptr_t>(context_of(state.current_device));
  return reinterpret_cast<CUcontext>(state.own_context ? primary + kOwnContexts : primary);
}
int current_device() {
  const CUcontext context = current_context();
  return context == nullptr ? -1 : device_of(context);
}

// `device`: the one whose context must be current.
constexpr int kNone = -1;
constexpr int kAny = -2;

CUresult enter(const char* entry, int device) {
  state.calls.emplace_back(entry);
  if (device != kNone && current_device() < 0) {
    ++state.wrong_context[entry];
  }
  if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    ++state.unrelaxed[entry];
  }
  const auto failure = state.fail.find(entry);
  return failure == state.fail.end() ? CUDA_SUCCESS : static_cast<CUresult>(failure->second);
}

}  // namespace

extern "C" {

nofrag::FakeCuda* fake_cuda_state();
nofrag::FakeCuda* fake_cuda_state() {
  return &state;
}

CUresult cuInit(unsigned int) {
  return static_cast<CUresult>(state.init_result);
}
CUresult cuDriverGetVersion(int* version) {
  *version = state.driver_version;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = state.devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(size));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = std::size_t{8} << 30;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (static_cast<int>(attribute)) {
    case 102:
      *value = state.virtual_memory ? 1 : 0;
      return CUDA_SUCCESS;
    case 103:
      *value = 1;
      return CUDA_SUCCESS;
    case 110:
      *value = state.rdma_attribute ? 1 : 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;  // an old driver does not know the attribute
  }
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ++state.retains;
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) {
  ++state.releases;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current_context();
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  ++state.pushes;
  pushed_contexts.push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  ++state.pops;
  *context = pushed_contexts.back();
  pushed_contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return *device < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  state.synchronized.push_back(current_context() == context_of(current_device()) ? "primary"
                                                                                 : "own");
  return enter("cuCtxSynchronize", kAny);
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* wanted) {
  ++state.mode_changes;
  const CUstreamCaptureMode before = mode;
  mode = *wanted;
  *wanted = before;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  *free = std::size_t{6} << 30;
  *total = std::size_t{8} << 30;
  return enter("cuMemGetInfo", kAny);
}
CUresult cuMemAlloc(CUdeviceptr* address, size_t) {
  *address = next_id += kGranularity;
  return enter("cuMemAlloc", kAny);
}
CUresult cuMemFree(CUdeviceptr) {
  return enter("cuMemFree", kAny);
}
CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                       const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle,
                     size_t,
                     const CUmemAllocationProp* properties,
                     unsigned long long) {
  state.rdma_flag = properties->allocFlags.gpuDirectRDMACapable != 0;
  state.handle_types = static_cast<unsigned>(properties->requestedHandleTypes);
  CUresult result = enter("cuMemCreate", kNone);
  if (result == CUDA_SUCCESS && state.rdma_flag) {
    result = static_cast<CUresult>(state.rdma_create_result);
  }
  if (result == CUDA_SUCCESS) {
    *handle = ++next_id;
    handle_has_rdma[*handle] = state.rdma_flag;
    ++state.handles;
  }
  return result;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle) {
  const CUresult result = enter("cuMemRelease", kNone);
  state.handles -= result == CUDA_SUCCESS ? 1 : 0;
  return result;
}
CUresult cuMemAddressReserve(
    CUdeviceptr* address, size_t, size_t, CUdeviceptr, unsigned long long) {
  const CUresult result = enter("cuMemAddressReserve", kNone);
  if (result == CUDA_SUCCESS) {
    *address = next_id += kGranularity;
    ++state.reservations;
  }
  return result;
}
CUresult cuMemAddressFree(CUdeviceptr, size_t) {
  const CUresult result = enter("cuMemAddressFree", kNone);
  state.reservations -= result == CUDA_SUCCESS ? 1 : 0;
  return result;
}
CUresult cuMemMap(
    CUdeviceptr address, size_t, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  const CUresult result = enter("cuMemMap", kNone);
  if (result == CUDA_SUCCESS) {
    mapped[address] = handle;
    ++state.mappings;
  }
  return result;
}
CUresult cuMemUnmap(CUdeviceptr, size_t) {
  const CUresult result = enter("cuMemUnmap", kNone);
  state.mappings -= result == CUDA_SUCCESS ? 1 : 0;
  return result;
}
CUresult cuMemSetAccess(CUdeviceptr address, size_t, const CUmemAccessDesc*, size_t) {
  const CUresult result = enter("cuMemSetAccess", kNone);
  if (result == CUDA_SUCCESS && handle_has_rdma[mapped[address]]) {
    return static_cast<CUresult>(state.rdma_access_result);
  }
  return result;
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  *event = reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(++next_id));
  return flags == CU_EVENT_DISABLE_TIMING ? enter("cuEventCreate", kAny) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuEventDestroy(CUevent) {
  return enter("cuEventDestroy", kAny);
}
CUresult cuEventRecord(CUevent, CUstream) {
  return enter("cuEventRecord", kAny);
}
CUresult cuEventQuery(CUevent) {
  return enter("cuEventQuery", kAny);
}
CUresult cuEventSynchronize(CUevent) {
  return enter("cuEventSynchronize", kAny);
}
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int) {
  return enter("cuStreamWaitEvent", kAny);
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return state.implicit_capture ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                : enter("cuStreamIsCapturing", kNone);
}
CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  *stream = reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(++next_id));
  return flags == CU_STREAM_NON_BLOCKING ? enter("cuStreamCreate", kAny) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamDestroy(CUstream) {
  return enter("cuStreamDestroy", kAny);
}
CUresult cuStreamSynchronize(CUstream) {
  return enter("cuStreamSynchronize", kAny);
}

}  // extern "C"
