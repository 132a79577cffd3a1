// The observed entries: passed on, and what they mean for memory of ours seen to.
#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include <nofrag/nofrag.h>

#include "preload/captures.h"
#include "preload/devices.h"
#include "preload/entries.h"
#include "preload/hooks.h"
#include "preload/ipc/imports.h"
#include "preload/memory.h"
#include "preload/mode.h"
#include "preload/passed/passed.h"
#include "preload/retry.h"

namespace nofrag::preload {
namespace {

bool known_device(CUdevice device) {
  return device >= 0 && device < Process::kMostDevices;
}

// ---- captures

struct Capture {
  CUstream stream;
  pthread_t thread;  // that began it: the per-thread default stream is another one in each
  int device;        // whose context it dies with; -1: not one of ours
};
std::mutex captures_mutex;
std::vector<Capture>* captures;  // Sync: captures_mutex; leaked
std::atomic<std::size_t> capture_count;

void capture_begun(CUstream stream, int device) {
  const std::lock_guard lock(captures_mutex);
  if (captures == nullptr) {
    captures = new std::vector<Capture>;
  }
  captures->push_back({stream, pthread_self(), device});
  capture_count.store(captures->size(), std::memory_order_release);
}

void capture_over(CUstream stream) {
  if (capture_count.load(std::memory_order_acquire) == 0) {
    return;
  }
  const std::lock_guard lock(captures_mutex);
  std::erase_if(*captures, [&](const Capture& capture) {
    return capture.stream == stream &&
           (stream != per_thread_stream() || pthread_equal(capture.thread, pthread_self()) != 0);
  });
  capture_count.store(captures->size(), std::memory_order_release);
}

template <typename... Arguments>
CUresult begin_capture(Entry entry, CUstream given, CUstream stream, Arguments... arguments) {
  // Asked before: of a captured stream nothing may be asked.
  const int device = has_acted() ? device_of_stream(stream) : -1;
  const CUresult result = call_real(entry, given, arguments...);
  if (result == CUDA_SUCCESS && has_acted()) {
    capture_begun(stream, device);
  }
  return result;
}

CUresult end_capture(Entry entry, CUstream given, CUstream stream, void* graph) {
  const CUresult result = call_real(entry, given, graph);
  if (has_acted() && !is_capturing(stream)) {
    capture_over(stream);
  }
  return result;
}

// ---- contexts

// At exit nothing is torn down: the driver takes everything back, or has already.
bool may_drop(CUdevice device) {
  return has_acted() && known_device(device) && !Process::instance().exiting();
}

// As far as there is one: no more than a wait that comes early.
void wait_for_context(CUdevice device) {
  if (seat(device).primary.load(std::memory_order_acquire) != nullptr) {
    static_cast<void>(wait_for_device(device));
  }
}

// The gate stays closed until the driver has ended the context: a thread that came between would make a new
// allocator in a context about to die, or take hold of one whose blocks are gone.
CUresult reset(Entry entry, CUdevice device) {
  std::unique_lock alone(gate(), std::defer_lock);
  if (may_drop(device)) {
    // The driver would wait, too, and memory that work still uses cannot go. Most of it is waited for before the gate
    // is closed, behind which other threads' copies and allocations stand: the work may wait for them.
    wait_for_context(device);
    alone.lock();
    drop_device(device);
  }
  const CUresult result = call_real(entry, device);
  if (result == CUDA_SUCCESS) {
    forget_primary_blocks(device);
  }
  if (alone.owns_lock() && result == CUDA_SUCCESS) {
    unmap_ended_imports(device);
  }
  forget_contexts();
  return result;
}

CUresult release(Entry entry, CUdevice device) {
  std::unique_lock alone(gate(), std::defer_lock);
  bool last = false;
  if (may_drop(device)) {
    Seat& here = seat(device);
    if (here.retained.load() == 1) {
      wait_for_context(device);
    }
    alone.lock();
    const int count = here.retained.load();
    if (count > 0) {
      here.retained.store(count - 1);
    }
    last = count == 1;
    if (last) {
      drop_device(device);  // nofrag's own hold on the context ends with the program's last
    }
  }
  const CUresult result = call_real(entry, device);
  if (last && result == CUDA_SUCCESS) {
    forget_primary_blocks(device);
    unmap_ended_imports(device);
  }
  forget_contexts();
  return result;
}

}  // namespace

bool is_capturing(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return real().stream_is_capturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool any_capture() {
  if (capture_count.load(std::memory_order_acquire) == 0) {
    return false;
  }
  const std::lock_guard lock(captures_mutex);
  std::erase_if(*captures, [](const Capture& capture) {
    const bool askable =
        capture.stream != per_thread_stream() || pthread_equal(capture.thread, pthread_self()) != 0;
    return askable && !is_capturing(capture.stream);
  });
  capture_count.store(captures->size(), std::memory_order_release);
  return !captures->empty();
}

int capture_device(CUstream stream) {
  const std::lock_guard lock(captures_mutex);
  if (captures == nullptr) {
    return -1;
  }
  const auto found = std::find_if(captures->begin(), captures->end(), [&](const Capture& capture) {
    return capture.stream == stream &&
           (stream != per_thread_stream() || pthread_equal(capture.thread, pthread_self()) != 0);
  });
  return found != captures->end() ? found->device : -1;
}

void forget_captures(int device) {
  const std::lock_guard lock(captures_mutex);
  if (captures != nullptr) {
    std::erase_if(*captures, [&](const Capture& capture) { return capture.device == device; });
    capture_count.store(captures->size(), std::memory_order_release);
  }
}

CUresult hook_cuStreamBeginCapture(CUstream stream) {
  return begin_capture(Entry::k_cuStreamBeginCapture, stream, stream);
}

CUresult hook_cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin_capture(Entry::k_cuStreamBeginCapture_ptsz, stream, per_thread(stream));
}

CUresult hook_cuStreamBeginCapture_v2(CUstream stream, int mode) {
  return begin_capture(Entry::k_cuStreamBeginCapture_v2, stream, stream, mode);
}

CUresult hook_cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
  return begin_capture(Entry::k_cuStreamBeginCapture_v2_ptsz, stream, per_thread(stream), mode);
}

CUresult hook_cuStreamBeginCaptureToGraph(
    CUstream stream, void* graph, const void* nodes, const void* data, size_t count, int mode) {
  return begin_capture(
      Entry::k_cuStreamBeginCaptureToGraph, stream, stream, graph, nodes, data, count, mode);
}

CUresult hook_cuStreamBeginCaptureToGraph_ptsz(
    CUstream stream, void* graph, const void* nodes, const void* data, size_t count, int mode) {
  return begin_capture(Entry::k_cuStreamBeginCaptureToGraph_ptsz,
                       stream,
                       per_thread(stream),
                       graph,
                       nodes,
                       data,
                       count,
                       mode);
}

CUresult hook_cuStreamEndCapture(CUstream stream, void* graph) {
  return end_capture(Entry::k_cuStreamEndCapture, stream, stream, graph);
}

CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, void* graph) {
  return end_capture(Entry::k_cuStreamEndCapture_ptsz, stream, per_thread(stream), graph);
}

CUresult hook_cuStreamCreate(CUstream* stream, unsigned flags) {
  const CUresult result = Retry<CUstream*, unsigned>::call<Entry::k_cuStreamCreate>(stream, flags);
  if (result == CUDA_SUCCESS && has_acted() && !options().preload_free_waits &&
      !InsideNofrag::here()) {
    note_stream(*stream, flags);
  }
  return result;
}

CUresult hook_cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  const CUresult result =
      Retry<CUstream*, unsigned, int>::call<Entry::k_cuStreamCreateWithPriority>(
          stream, flags, priority);
  if (result == CUDA_SUCCESS && has_acted() && !options().preload_free_waits &&
      !InsideNofrag::here()) {
    note_stream(*stream, flags);
  }
  return result;
}

CUresult hook_cuStreamDestroy_v2(CUstream stream) {
  if (has_acted() && !InsideNofrag::here() && stream != nullptr && !Process::instance().exiting()) {
    const InsideNofrag inside;
    const int device = device_of_stream(stream);
    if (device >= 0) {
      const std::shared_lock lock(gate());
      if (DeviceAllocator* const allocator = Process::instance().used_device(device);
          allocator != nullptr) {
        allocator->retire_stream(StreamId(VirtAddr(stream).value())).ignore();
      }
    }
    capture_over(stream);
    forget_stream(stream);
  }
  return call_real(Entry::k_cuStreamDestroy_v2, stream);
}

CUresult hook_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const CUresult result = call_real(Entry::k_cuCtxEnablePeerAccess, peer, flags);
  if (result != CUDA_SUCCESS || !acting()) {
    return result;
  }
  const InsideNofrag inside;
  const std::shared_lock lock(gate());
  // Access goes by device: the caller's context need not be its device's primary one.
  CUdevice user = -1;
  const int device = device_of(peer);
  const bool known = real().context_device(&user) == CUDA_SUCCESS && known_device(user);
  if (device >= 0 && (!known || share_with(device, user) == Shared::kRefused)) {
    say_no_access(device);
    pass_on(device);
  }
  return result;
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device) {
  return reset(Entry::k_cuDevicePrimaryCtxReset, device);
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return reset(Entry::k_cuDevicePrimaryCtxReset_v2, device);
}

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device) {
  return release(Entry::k_cuDevicePrimaryCtxRelease, device);
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release(Entry::k_cuDevicePrimaryCtxRelease_v2, device);
}

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  std::shared_lock lock(gate(), std::defer_lock);
  const bool counted = has_acted() && known_device(device);
  if (counted) {
    // Counted before the driver holds it: another thread's last release then no longer is the last.
    lock.lock();
    seat(device).retained.fetch_add(1);
  }
  const CUresult result =
      Retry<CUcontext*, CUdevice>::call<Entry::k_cuDevicePrimaryCtxRetain>(context, device);
  if (counted && result != CUDA_SUCCESS) {
    seat(device).retained.fetch_sub(1);
  }
  return result;
}

CUresult hook_cuCtxDestroy_v2(CUcontext context) {
  const CUresult result = call_real(Entry::k_cuCtxDestroy_v2, context);
  if (result == CUDA_SUCCESS) {
    forget_blocks(context);
  }
  forget_contexts();
  return result;
}

}  // namespace nofrag::preload
