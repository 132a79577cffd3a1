// DriverApi: the entries of libcuda.so.1 that nofrag calls, as a table of function pointers.
//
// Owns: nothing; the library stays loaded for good. Layer: driver. The ONLY file that includes
// <cuda.h>, and only for its types: nothing links CUDA, so the same program runs on machines with
// and without a driver. Each entry names its exported symbol with the version suffix whose
// prototype the header gives (checked: CUDA 12 and 13), because the plain names are older ABIs.
// Threads: immutable after load(). Failure: load() names the library or symbol that is missing.
#pragma once

#include <cuda.h>

#include <string>

#ifdef __CUDA_API_PER_THREAD_DEFAULT_STREAM
#error "stream 0 must mean the legacy default stream here"
#endif

// NOFRAG_CUDA_ENTRY(member, function as in cuda.h, exported symbol)
#define NOFRAG_CUDA_ENTRIES(NOFRAG_CUDA_ENTRY)                                                   \
  NOFRAG_CUDA_ENTRY(init, cuInit, "cuInit")                                                      \
  NOFRAG_CUDA_ENTRY(driver_version, cuDriverGetVersion, "cuDriverGetVersion")                    \
  NOFRAG_CUDA_ENTRY(error_name, cuGetErrorName, "cuGetErrorName")                                \
  NOFRAG_CUDA_ENTRY(device_count, cuDeviceGetCount, "cuDeviceGetCount")                          \
  NOFRAG_CUDA_ENTRY(device_get, cuDeviceGet, "cuDeviceGet")                                      \
  NOFRAG_CUDA_ENTRY(device_name, cuDeviceGetName, "cuDeviceGetName")                             \
  NOFRAG_CUDA_ENTRY(device_total_memory, cuDeviceTotalMem, "cuDeviceTotalMem_v2")                \
  NOFRAG_CUDA_ENTRY(device_attribute, cuDeviceGetAttribute, "cuDeviceGetAttribute")              \
  NOFRAG_CUDA_ENTRY(primary_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")        \
  NOFRAG_CUDA_ENTRY(primary_release, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")  \
  NOFRAG_CUDA_ENTRY(context_current, cuCtxGetCurrent, "cuCtxGetCurrent")                         \
  NOFRAG_CUDA_ENTRY(context_push, cuCtxPushCurrent, "cuCtxPushCurrent_v2")                       \
  NOFRAG_CUDA_ENTRY(context_pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2")                          \
  NOFRAG_CUDA_ENTRY(context_device, cuCtxGetDevice, "cuCtxGetDevice")                            \
  NOFRAG_CUDA_ENTRY(context_synchronize, cuCtxSynchronize, "cuCtxSynchronize")                   \
  NOFRAG_CUDA_ENTRY(exchange_capture_mode,                                                       \
                    cuThreadExchangeStreamCaptureMode,                                           \
                    "cuThreadExchangeStreamCaptureMode")                                         \
  NOFRAG_CUDA_ENTRY(memory_info, cuMemGetInfo, "cuMemGetInfo_v2")                                \
  NOFRAG_CUDA_ENTRY(mem_alloc, cuMemAlloc, "cuMemAlloc_v2")                                      \
  NOFRAG_CUDA_ENTRY(mem_free, cuMemFree, "cuMemFree_v2")                                         \
  NOFRAG_CUDA_ENTRY(granularity, cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity") \
  NOFRAG_CUDA_ENTRY(create, cuMemCreate, "cuMemCreate")                                          \
  NOFRAG_CUDA_ENTRY(release, cuMemRelease, "cuMemRelease")                                       \
  NOFRAG_CUDA_ENTRY(address_reserve, cuMemAddressReserve, "cuMemAddressReserve")                 \
  NOFRAG_CUDA_ENTRY(address_free, cuMemAddressFree, "cuMemAddressFree")                          \
  NOFRAG_CUDA_ENTRY(map, cuMemMap, "cuMemMap")                                                   \
  NOFRAG_CUDA_ENTRY(unmap, cuMemUnmap, "cuMemUnmap")                                             \
  NOFRAG_CUDA_ENTRY(set_access, cuMemSetAccess, "cuMemSetAccess")                                \
  NOFRAG_CUDA_ENTRY(event_create, cuEventCreate, "cuEventCreate")                                \
  NOFRAG_CUDA_ENTRY(event_destroy, cuEventDestroy, "cuEventDestroy_v2")                          \
  NOFRAG_CUDA_ENTRY(event_record, cuEventRecord, "cuEventRecord")                                \
  NOFRAG_CUDA_ENTRY(event_query, cuEventQuery, "cuEventQuery")                                   \
  NOFRAG_CUDA_ENTRY(event_synchronize, cuEventSynchronize, "cuEventSynchronize")                 \
  NOFRAG_CUDA_ENTRY(stream_wait_event, cuStreamWaitEvent, "cuStreamWaitEvent")                   \
  NOFRAG_CUDA_ENTRY(stream_is_capturing, cuStreamIsCapturing, "cuStreamIsCapturing")             \
  NOFRAG_CUDA_ENTRY(stream_create, cuStreamCreate, "cuStreamCreate")                             \
  NOFRAG_CUDA_ENTRY(stream_destroy, cuStreamDestroy, "cuStreamDestroy_v2")                       \
  NOFRAG_CUDA_ENTRY(stream_synchronize, cuStreamSynchronize, "cuStreamSynchronize")

// Entries of newer drivers: nullptr where the driver does not have them.
#define NOFRAG_CUDA_OPTIONAL_ENTRIES(NOFRAG_CUDA_ENTRY)                                           \
  NOFRAG_CUDA_ENTRY(stream_get_id, cuStreamGetId, "cuStreamGetId")                                \
  NOFRAG_CUDA_ENTRY(                                                                              \
      export_handle, cuMemExportToShareableHandle, "cuMemExportToShareableHandle")                \
  NOFRAG_CUDA_ENTRY(                                                                              \
      import_handle, cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle")

namespace nofrag {

// dlsym's shape. An interposer passes the loader's own, because its own name for it is a hook.
using SymbolLookup = void* (*)(void* library, const char* symbol);

struct DriverApi {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declarator cannot stand in parentheses
#define NOFRAG_CUDA_MEMBER(member, function, symbol) decltype(&::function) member = nullptr;
  NOFRAG_CUDA_ENTRIES(NOFRAG_CUDA_MEMBER)
  NOFRAG_CUDA_OPTIONAL_ENTRIES(NOFRAG_CUDA_MEMBER)
#undef NOFRAG_CUDA_MEMBER

  // Opens `library` and fills the table. On failure *error names what is missing.
  static bool load(const char* library, SymbolLookup lookup, DriverApi* out, std::string* error);
};

}  // namespace nofrag
