/* The driver's functions that the client programs call, found by one of the ways.
 * Layer: tests. load_api ends the program if the way does not find one. Threads: loaded once. Failure: exit 3.
 * A: exported symbol, member, parameters. */
#pragma once

#include <cuda.h>
#include <stddef.h>

#include "ways.h"

#define API_FUNCTIONS(A)                                                                       \
  A(cuMemAlloc_v2, alloc, (CUdeviceptr*, size_t))                                              \
  A(cuMemAllocPitch_v2, alloc_pitch, (CUdeviceptr*, size_t*, size_t, size_t, unsigned))        \
  A(cuMemFree_v2, free, (CUdeviceptr))                                                         \
  A(cuMemAllocAsync, alloc_async, (CUdeviceptr*, size_t, CUstream))                            \
  A(cuMemAllocAsync_ptsz, alloc_async_ptsz, (CUdeviceptr*, size_t, CUstream))                  \
  A(cuMemFreeAsync, free_async, (CUdeviceptr, CUstream))                                       \
  A(cuMemFreeAsync_ptsz, free_async_ptsz, (CUdeviceptr, CUstream))                             \
  A(cuMemAllocFromPoolAsync, alloc_from_pool, (CUdeviceptr*, size_t, CUmemoryPool, CUstream))  \
  A(cuMemGetInfo_v2, info, (size_t*, size_t*))                                                 \
  A(cuMemGetAddressRange_v2, range, (CUdeviceptr*, size_t*, CUdeviceptr))                      \
  A(cuPointerGetAttribute, attribute, (void*, CUpointer_attribute, CUdeviceptr))               \
  A(cuPointerGetAttributes, attributes, (unsigned, CUpointer_attribute*, void**, CUdeviceptr)) \
  A(cuIpcGetMemHandle, ipc_get, (CUipcMemHandle*, CUdeviceptr))                                \
  A(cuIpcOpenMemHandle_v2, ipc_open, (CUdeviceptr*, CUipcMemHandle, unsigned))                 \
  A(cuIpcCloseMemHandle, ipc_close, (CUdeviceptr))                                             \
  A(cuMemPoolGetAttribute, pool_get, (CUmemoryPool, CUmemPool_attribute, void*))               \
  A(cuMemPoolSetAttribute, pool_set, (CUmemoryPool, CUmemPool_attribute, void*))               \
  A(cuMemPoolTrimTo, pool_trim, (CUmemoryPool, size_t))                                        \
  A(cuDeviceSetMemPool, set_pool, (CUdevice, CUmemoryPool))                                    \
  A(cuDevicePrimaryCtxRetain, retain, (CUcontext*, CUdevice))                                  \
  A(cuDevicePrimaryCtxRelease_v2, release, (CUdevice))                                         \
  A(cuDevicePrimaryCtxReset_v2, reset, (CUdevice))                                             \
  A(cuCtxCreate_v2, context_create, (CUcontext*, unsigned, CUdevice))                          \
  A(cuCtxDestroy_v2, context_destroy, (CUcontext))                                             \
  A(cuCtxEnablePeerAccess, enable_peer, (CUcontext, unsigned))                                 \
  A(cuStreamCreate, stream_create, (CUstream*, unsigned))                                      \
  A(cuStreamDestroy_v2, stream_destroy, (CUstream))                                            \
  A(cuStreamBeginCapture_v2, begin_capture, (CUstream, CUstreamCaptureMode))                   \
  A(cuStreamEndCapture, end_capture, (CUstream, CUgraph*))                                     \
  A(cuMemAllocManaged, alloc_managed, (CUdeviceptr*, size_t, unsigned))                        \
  A(cuMemPoolCreate, pool_create, (CUmemoryPool*, const CUmemPoolProps*))                      \
  A(cuGraphInstantiateWithFlags, instantiate, (CUgraphExec*, CUgraph, unsigned long long))     \
  A(cuGraphLaunch, launch_graph, (CUgraphExec, CUstream))                                      \
  A(cuMemcpyDtoD_v2, copy, (CUdeviceptr, CUdeviceptr, size_t))                                 \
  A(cuMemcpyDtoH_v2, read, (void*, CUdeviceptr, size_t))

/* What the preload does not stand before: always from the library itself. */
#define API_PLAIN_FUNCTIONS(A)                                                \
  A(cuInit, init, (unsigned))                                                 \
  A(cuCtxSetCurrent, set_current, (CUcontext))                                \
  A(cuCtxGetCurrent, get_current, (CUcontext*))                               \
  A(cuCtxSynchronize, synchronize, (void))                                    \
  A(cuDevicePrimaryCtxGetState, primary_state, (CUdevice, unsigned*, int*))   \
  A(cuDeviceGetDefaultMemPool, default_pool, (CUmemoryPool*, CUdevice))       \
  A(cuStreamSynchronize, stream_synchronize, (CUstream))                      \
  A(cuThreadExchangeStreamCaptureMode, exchange_mode, (CUstreamCaptureMode*)) \
  A(cuMemsetD8_v2, fill, (CUdeviceptr, unsigned char, size_t))

struct api {
#define MEMBER(symbol, member, parameters) CUresult(*member) parameters;
  API_FUNCTIONS(MEMBER)
  API_PLAIN_FUNCTIONS(MEMBER)
#undef MEMBER
};

#ifdef __cplusplus
extern "C"
#endif
    void
    load_api(struct api* api, const char* way);
