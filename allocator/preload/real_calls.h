// RealCalls: the driver's entries that the preload itself needs beside those it stands before.
//
// Owns: nothing; pointers into libcuda.so.1. Layer: preload. Threads: filled once by find_driver, twice at once
// gives the same. Failure: null where the driver lacks one; whoever calls an optional one asks first.
// Cost: one load a call.
#pragma once

#include "driver/real/driver_api.h"

// NOFRAG_REAL(member, function as in cuda.h, exported symbol)
#define NOFRAG_REAL_CALLS(NOFRAG_REAL)                                                         \
  NOFRAG_REAL(device_count, cuDeviceGetCount, "cuDeviceGetCount")                              \
  NOFRAG_REAL(can_access_peer, cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer")                 \
  NOFRAG_REAL(pointer_attributes, cuPointerGetAttributes, "cuPointerGetAttributes")            \
  NOFRAG_REAL(context_current, cuCtxGetCurrent, "cuCtxGetCurrent")                             \
  NOFRAG_REAL(context_push, cuCtxPushCurrent, "cuCtxPushCurrent_v2")                           \
  NOFRAG_REAL(context_pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2")                              \
  NOFRAG_REAL(context_device, cuCtxGetDevice, "cuCtxGetDevice")                                \
  NOFRAG_REAL(context_synchronize, cuCtxSynchronize, "cuCtxSynchronize")                       \
  NOFRAG_REAL(primary_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")            \
  NOFRAG_REAL(primary_release, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")      \
  NOFRAG_REAL(primary_state, cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState")         \
  NOFRAG_REAL(stream_create, cuStreamCreate, "cuStreamCreate")                                 \
  NOFRAG_REAL(stream_destroy, cuStreamDestroy, "cuStreamDestroy_v2")                           \
  NOFRAG_REAL(stream_query, cuStreamQuery, "cuStreamQuery")                                    \
  NOFRAG_REAL(stream_synchronize, cuStreamSynchronize, "cuStreamSynchronize")                  \
  NOFRAG_REAL(stream_context, cuStreamGetCtx, "cuStreamGetCtx")                                \
  NOFRAG_REAL(stream_flags, cuStreamGetFlags, "cuStreamGetFlags")                              \
  NOFRAG_REAL(stream_is_capturing, cuStreamIsCapturing, "cuStreamIsCapturing")                 \
  NOFRAG_REAL(exchange_capture_mode,                                                           \
              cuThreadExchangeStreamCaptureMode,                                               \
              "cuThreadExchangeStreamCaptureMode")                                             \
  NOFRAG_REAL(stream_wait_event, cuStreamWaitEvent, "cuStreamWaitEvent")                       \
  NOFRAG_REAL(event_create, cuEventCreate, "cuEventCreate")                                    \
  NOFRAG_REAL(event_record, cuEventRecord, "cuEventRecord")                                    \
  NOFRAG_REAL(event_destroy, cuEventDestroy, "cuEventDestroy_v2")                              \
  NOFRAG_REAL(copy_peer, cuMemcpyPeer, "cuMemcpyPeer")                                         \
  NOFRAG_REAL(copy_peer_ptds, cuMemcpyPeer, "cuMemcpyPeer_ptds")                               \
  NOFRAG_REAL(copy_peer_async, cuMemcpyPeerAsync, "cuMemcpyPeerAsync")                         \
  NOFRAG_REAL(copy_peer_async_ptsz, cuMemcpyPeerAsync, "cuMemcpyPeerAsync_ptsz")               \
  NOFRAG_REAL(mem_alloc, cuMemAlloc, "cuMemAlloc_v2")                                          \
  NOFRAG_REAL(mem_free, cuMemFree, "cuMemFree_v2")                                             \
  NOFRAG_REAL(default_pool, cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool")            \
  NOFRAG_REAL(current_pool, cuDeviceGetMemPool, "cuDeviceGetMemPool")                          \
  NOFRAG_REAL(address_range, cuMemGetAddressRange, "cuMemGetAddressRange_v2")                  \
  NOFRAG_REAL(retain_handle, cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle")       \
  NOFRAG_REAL(export_handle, cuMemExportToShareableHandle, "cuMemExportToShareableHandle")     \
  NOFRAG_REAL(import_handle, cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle") \
  NOFRAG_REAL(release_handle, cuMemRelease, "cuMemRelease")                                    \
  NOFRAG_REAL(reserve, cuMemAddressReserve, "cuMemAddressReserve")                             \
  NOFRAG_REAL(free_addresses, cuMemAddressFree, "cuMemAddressFree")                            \
  NOFRAG_REAL(map, cuMemMap, "cuMemMap")                                                       \
  NOFRAG_REAL(unmap, cuMemUnmap, "cuMemUnmap")                                                 \
  NOFRAG_REAL(set_access, cuMemSetAccess, "cuMemSetAccess")

namespace nofrag::preload {

struct RealCalls {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declarator cannot stand in parentheses
#define NOFRAG_REAL(member, function, symbol) decltype(&::function) member = nullptr;
  NOFRAG_REAL_CALLS(NOFRAG_REAL)
#undef NOFRAG_REAL
};

// pre: find_driver succeeded.
[[nodiscard]] const RealCalls& real();
// False if one that every driver since CUDA 11.2 has is missing; its name in *missing.
bool fill_real_calls(void* library, const char** missing);

}  // namespace nofrag::preload
