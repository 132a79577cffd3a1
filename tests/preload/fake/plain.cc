// The fake's other entries: older versions, the forms of per-thread default streams, what is only passed on, and
// cuGetProcAddress. Without cuda.h, whose macros and declarations stand in the way of the exported names.
#include <cstddef>
#include <cstring>
#include <initializer_list>

extern "C" {

// From the other files, under the names that cuda.h gives them.
int cuMemAllocAsync(void*, std::size_t, void*);
int cuMemFreeAsync(unsigned long long, void*);
int cuMemcpyPeer(unsigned long long, void*, unsigned long long, void*, std::size_t);
int cuMemcpyPeerAsync(unsigned long long, void*, unsigned long long, void*, std::size_t, void*);
int cuMemAllocFromPoolAsync(void*, std::size_t, void*, void*);
int cuStreamBeginCapture_v2(void*, int);
int cuStreamEndCapture(void*, void*);
int cuDevicePrimaryCtxReset_v2(int);
int cuDevicePrimaryCtxRelease_v2(int);
unsigned long fake_cuda_note(const char* name);
struct FakeIpcHandle {
  char bytes[64];
};
int cuIpcOpenMemHandle_v2(void*, FakeIpcHandle, unsigned);

// A generic entry succeeds, or fails as a test asked for. Those that the other files have are stronger.
#define NOFRAG_HOOK(symbol)
using CUdeviceptr = unsigned long long;
using CUstream = void*;
using CUcontext = void*;
using CUarray = void*;
struct CUDA_MEMCPY2D;
struct CUDA_MEMCPY3D;
struct GraphNode;
struct BatchedCopy;
#define NOFRAG_RETRY(symbol, ...)                     \
  [[gnu::weak]] int symbol(__VA_ARGS__) {             \
    return static_cast<int>(fake_cuda_note(#symbol)); \
  }
#define NOFRAG_ACROSS NOFRAG_RETRY
#include "preload/entries.def"
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS

#define NOTE(name)                                                            \
  if (const int fault = static_cast<int>(fake_cuda_note(name)); fault != 0) { \
    return fault;                                                             \
  }

namespace {
void* per_thread(void* stream) {
  static char two;
  static_cast<void>(two);
  return stream == nullptr ? reinterpret_cast<void*>(2)
                           : stream;  // NOLINT(performance-no-int-to-ptr)
}
}  // namespace

int cuMemAllocAsync_ptsz(void* pointer, std::size_t size, void* stream) {
  NOTE("cuMemAllocAsync_ptsz")
  return cuMemAllocAsync(pointer, size, per_thread(stream));
}
int cuMemFreeAsync_ptsz(unsigned long long pointer, void* stream) {
  NOTE("cuMemFreeAsync_ptsz")
  return cuMemFreeAsync(pointer, per_thread(stream));
}
int cuMemAllocFromPoolAsync_ptsz(void* pointer, std::size_t size, void* pool, void* stream) {
  NOTE("cuMemAllocFromPoolAsync_ptsz")
  return cuMemAllocFromPoolAsync(pointer, size, pool, per_thread(stream));
}
int cuMemcpyPeer_ptds(
    unsigned long long to, void* there, unsigned long long from, void* here, std::size_t size) {
  return cuMemcpyPeer(to, there, from, here, size);
}
int cuMemcpyPeerAsync_ptsz(unsigned long long to,
                           void* there,
                           unsigned long long from,
                           void* here,
                           std::size_t size,
                           void* stream) {
  return cuMemcpyPeerAsync(to, there, from, here, size, per_thread(stream));
}
int cuStreamBeginCapture_v2_ptsz(void* stream, int mode) {
  return cuStreamBeginCapture_v2(per_thread(stream), mode);
}
int cuStreamBeginCapture(void* stream) {
  return cuStreamBeginCapture_v2(stream, 0);
}
int cuStreamBeginCapture_ptsz(void* stream) {
  return cuStreamBeginCapture_v2(per_thread(stream), 0);
}
int cuStreamBeginCaptureToGraph(
    void* stream, void*, const void*, const void*, std::size_t, int mode) {
  return cuStreamBeginCapture_v2(stream, mode);
}
int cuStreamBeginCaptureToGraph_ptsz(
    void* stream, void*, const void*, const void*, std::size_t, int mode) {
  return cuStreamBeginCapture_v2(per_thread(stream), mode);
}
int cuStreamEndCapture_ptsz(void* stream, void* graph) {
  return cuStreamEndCapture(per_thread(stream), graph);
}
int cuDevicePrimaryCtxReset(int device) {
  return cuDevicePrimaryCtxReset_v2(device);
}
int cuDevicePrimaryCtxRelease(int device) {
  return cuDevicePrimaryCtxRelease_v2(device);
}
int cuIpcOpenMemHandle(void* pointer, FakeIpcHandle handle, unsigned flags) {
  return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}
int cuMemSetMemPool(void*, int, void*) {
  return static_cast<int>(fake_cuda_note("cuMemSetMemPool"));
}

// What CUDA 2 had: 32-bit pointers. Nobody takes it over.
int cuMemAlloc(unsigned* pointer, unsigned size) {
  NOTE("cuMemAlloc")
  *pointer = 0x1000;
  return size == 0 ? 1 : 0;
}
int cuMemFree(unsigned) {
  return static_cast<int>(fake_cuda_note("cuMemFree"));
}
int cuMemGetInfo(unsigned*, unsigned*) {
  return static_cast<int>(fake_cuda_note("cuMemGetInfo"));
}
// What no header has yet.
int cuMemGetAddressRange_v3(void*, void*, unsigned long long) {
  return static_cast<int>(fake_cuda_note("cuMemGetAddressRange_v3"));
}

int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags);
int cuGetProcAddress_v2(
    const char* name, void** function, int version, unsigned long long flags, int* status);

// Addresses of this library's own symbols (it is linked with -Bsymbolic).
#define NOFRAG_HOOK(symbol) extern const char fake_at_##symbol[] __asm__(#symbol);
#define NOFRAG_RETRY(symbol, ...) extern const char fake_at_##symbol[] __asm__(#symbol);
#define NOFRAG_ACROSS(symbol, ...) extern const char fake_at_##symbol[] __asm__(#symbol);
#include "preload/entries.def"
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS
extern const char fake_at_cuMemAlloc[] __asm__("cuMemAlloc");
extern const char fake_at_cuMemGetAddressRange_v3[] __asm__("cuMemGetAddressRange_v3");
extern const char fake_at_cuInit[] __asm__("cuInit");
}

namespace {

struct Symbol {
  const char* name;
  const char* address;
};
const Symbol kSymbols[] = {
#define NOFRAG_HOOK(symbol) {#symbol, fake_at_##symbol},
#define NOFRAG_RETRY(symbol, ...) {#symbol, fake_at_##symbol},
#define NOFRAG_ACROSS(symbol, ...) {#symbol, fake_at_##symbol},
#include "preload/entries.def"
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS
    {"cuMemAlloc", fake_at_cuMemAlloc},
    {"cuMemGetAddressRange_v3", fake_at_cuMemGetAddressRange_v3},
    {"cuInit", fake_at_cuInit},
};

const char* exported(const char* base, const char* suffix) {
  char name[128];
  std::strcpy(name, base);
  std::strcat(name, suffix);
  for (const Symbol& symbol : kSymbols) {
    if (std::strcmp(symbol.name, name) == 0) {
      return symbol.address;
    }
  }
  return nullptr;
}

// The version since when a suffix is what the name means.
struct Version {
  const char* base;
  const char* suffix;
  int since;
};
constexpr Version kVersions[] = {
    {"cuMemAlloc", "_v2", 3020},
    {"cuMemAlloc", "", 0},
    {"cuIpcOpenMemHandle", "_v2", 11000},
    {"cuIpcOpenMemHandle", "", 4010},
    {"cuDevicePrimaryCtxReset", "_v2", 11000},
    {"cuDevicePrimaryCtxReset", "", 7000},
    {"cuDevicePrimaryCtxRelease", "_v2", 11000},
    {"cuDevicePrimaryCtxRelease", "", 7000},
    {"cuStreamBeginCapture", "_v2", 10010},
    {"cuStreamBeginCapture", "", 10000},
    {"cuGetProcAddress", "_v2", 12000},
    {"cuGetProcAddress", "", 11030},
    {"cuMemGetAddressRange", "_v3", 13010},
    {"cuMemGetAddressRange", "_v2", 3020},
    {"cuGraphInstantiate", "_v2", 11000},
    {"cuGraphInstantiate", "", 10000},
    {"cuMemcpyBatchAsync", "_v2", 13000},
    {"cuMemcpyBatchAsync", "", 12080},
    {"cuMemcpy3DBatchAsync", "_v2", 13000},
    {"cuMemcpy3DBatchAsync", "", 12080},
    {"cuGraphAddNode", "_v2", 12030},
    {"cuGraphAddNode", "", 12020},
    {"cuCtxCreate", "_v4", 12050},
    {"cuCtxCreate", "_v3", 11040},
    {"cuCtxCreate", "_v2", 3020},
};

const char* look_up(const char* name, int version, bool per_thread_streams) {
  for (const Version& known : kVersions) {
    if (std::strcmp(known.base, name) == 0) {
      if (version < known.since) {
        continue;
      }
      char with[32];
      std::strcpy(with, known.suffix);
      std::strcat(with, "_ptsz");
      const char* const ptsz = per_thread_streams ? exported(name, with) : nullptr;
      return ptsz != nullptr ? ptsz : exported(name, known.suffix);
    }
  }
  if (per_thread_streams) {
    for (const char* suffix : {"_v2_ptsz", "_ptsz", "_v2_ptds", "_ptds"}) {
      if (const char* const found = exported(name, suffix); found != nullptr) {
        return found;
      }
    }
  }
  for (const char* suffix : {"_v2", ""}) {
    if (const char* const found = exported(name, suffix); found != nullptr) {
      return found;
    }
  }
  return nullptr;
}

}  // namespace

extern "C" {

int cuGetProcAddress_v2(
    const char* name, void** function, int version, unsigned long long flags, int* status) {
  fake_cuda_note("cuGetProcAddress_v2");
  if (function == nullptr) {
    return 1;
  }
  if (*name == '\0') {
    *function = nullptr;
    return 500;
  }
  *function = const_cast<char*>(look_up(name, version, (flags & 2) != 0));
  if (status != nullptr) {
    *status = *function != nullptr ? 0 : 1;
  }
  return *function != nullptr || status != nullptr ? 0 : 500;
}

int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

}  // extern "C"
