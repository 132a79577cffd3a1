// Hooks: what the preload does in place of the driver's entries, one function an entry of entries.def.
//
// Owns: nothing; the state is in devices.h, ended.h, ipc, captures.h and passed/passed.h. Layer: preload. Signatures are
// the driver's, with void* for structures whose layout we do not need. Threads: any, as the driver's.
// Failure: answers are CUresults; where something of ours fails, the driver's own answer is returned.
#pragma once

#include <cstddef>

#include "driver/real/driver_api.h"

namespace nofrag::preload {

using std::size_t;

// lookup_hooks.cc
CUresult hook_cuGetProcAddress(const char* name,
                               void** function,
                               int version,
                               unsigned long long flags);
CUresult hook_cuGetProcAddress_v2(
    const char* name, void** function, int version, unsigned long long flags, int* status);

// memory_hooks.cc
CUresult hook_cuMemAlloc_v2(CUdeviceptr* pointer, size_t size);
CUresult hook_cuMemAllocPitch_v2(
    CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height, unsigned element);
CUresult hook_cuMemFree_v2(CUdeviceptr pointer);
CUresult hook_cuMemAllocAsync(CUdeviceptr* pointer, size_t size, CUstream stream);
CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr* pointer, size_t size, CUstream stream);
CUresult hook_cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);
CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr* pointer,
                                      size_t size,
                                      CUmemoryPool pool,
                                      CUstream stream);
CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* pointer,
                                           size_t size,
                                           CUmemoryPool pool,
                                           CUstream stream);

// query_hooks.cc
CUresult hook_cuMemGetInfo_v2(size_t* free, size_t* total);
CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer);
CUresult hook_cuPointerGetAttribute(void* data, int attribute, CUdeviceptr pointer);
CUresult hook_cuPointerGetAttributes(unsigned count,
                                     int* attributes,
                                     void** data,
                                     CUdeviceptr pointer);

// ipc/import_hooks.cc
CUresult hook_cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags);
CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags);
CUresult hook_cuIpcCloseMemHandle(CUdeviceptr pointer);

// ipc/export_hooks.cc
CUresult hook_cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer);
CUresult hook_cuMemRetainAllocationHandle(unsigned long long* handle, void* address);
CUresult hook_cuMemGetHandleForAddressRange(
    void* handle, CUdeviceptr pointer, size_t size, int type, unsigned long long flags);
CUresult hook_cuPointerSetAttribute(const void* value, int attribute, CUdeviceptr pointer);

// pool_hooks.cc
CUresult hook_cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value);
CUresult hook_cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value);
CUresult hook_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult hook_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUresult hook_cuMemSetMemPool(void* location, int type, CUmemoryPool pool);
CUresult hook_cuMemPoolSetAccess(CUmemoryPool pool, const void* access, size_t count);

// passed/passed_hooks.cc
CUresult hook_cuMemCreate(unsigned long long* handle,
                          size_t size,
                          const void* properties,
                          unsigned long long flags);
CUresult hook_cuMemRelease(unsigned long long handle);
CUresult hook_cuMemMap(CUdeviceptr pointer,
                       size_t size,
                       size_t offset,
                       unsigned long long handle,
                       unsigned long long flags);
CUresult hook_cuMemUnmap(CUdeviceptr pointer, size_t size);
CUresult hook_cuMemAllocManaged(CUdeviceptr* pointer, size_t size, unsigned flags);
CUresult hook_cuArrayCreate_v2(void** array, const void* descriptor);
CUresult hook_cuArray3DCreate_v2(void** array, const void* descriptor);
CUresult hook_cuMipmappedArrayCreate(void** array, const void* descriptor, unsigned levels);
CUresult hook_cuArrayDestroy(void* array);
CUresult hook_cuMipmappedArrayDestroy(void* array);

// observe_hooks.cc
CUresult hook_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
CUresult hook_cuDevicePrimaryCtxReset(CUdevice device);
CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device);
CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult hook_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult hook_cuCtxDestroy_v2(CUcontext context);
CUresult hook_cuStreamCreate(CUstream* stream, unsigned flags);
CUresult hook_cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority);
CUresult hook_cuStreamDestroy_v2(CUstream stream);
CUresult hook_cuStreamBeginCapture(CUstream stream);
CUresult hook_cuStreamBeginCapture_ptsz(CUstream stream);
CUresult hook_cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult hook_cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode);
CUresult hook_cuStreamBeginCaptureToGraph(
    CUstream stream, void* graph, const void* nodes, const void* data, size_t count, int mode);
CUresult hook_cuStreamBeginCaptureToGraph_ptsz(
    CUstream stream, void* graph, const void* nodes, const void* data, size_t count, int mode);
CUresult hook_cuStreamEndCapture(CUstream stream, void* graph);
CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, void* graph);

}  // namespace nofrag::preload
