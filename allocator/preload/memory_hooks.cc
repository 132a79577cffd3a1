// The owned entries: allocation and free.
#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include <nofrag/nofrag.h>

#include "preload/captures.h"
#include "preload/devices.h"
#include "preload/ended.h"
#include "preload/entries.h"
#include "preload/hooks.h"
#include "preload/ipc/exports.h"
#include "preload/ipc/imports.h"
#include "preload/memory.h"
#include "preload/mode.h"
#include "preload/passed/passed.h"
#include "preload/retry.h"

namespace nofrag::preload {
namespace {

// ---- blocks freed while something was captured: freed for the program, kept until waiting is allowed again

std::mutex aside_mutex;
std::vector<CUdeviceptr>* aside;  // Sync: aside_mutex; leaked
std::atomic<std::size_t> aside_count;

bool is_aside(CUdeviceptr pointer) {
  if (aside_count.load(std::memory_order_acquire) == 0) {
    return false;
  }
  const std::lock_guard lock(aside_mutex);
  return std::find(aside->begin(), aside->end(), pointer) != aside->end();
}

void put_aside(CUdeviceptr pointer) {
  const std::lock_guard lock(aside_mutex);
  if (aside == nullptr) {
    aside = new std::vector<CUdeviceptr>;
  }
  aside->push_back(pointer);
  aside_count.store(aside->size(), std::memory_order_release);
}

void take_from_aside() {
  if (aside_count.load(std::memory_order_acquire) == 0 || any_capture()) {
    return;
  }
  std::vector<CUdeviceptr> taken;
  {
    const std::lock_guard lock(aside_mutex);
    taken.swap(*aside);
    aside_count.store(0, std::memory_order_release);
  }
  const std::shared_lock lock(gate());
  for (const CUdeviceptr pointer : taken) {
    // Not live: its device was dropped meanwhile, and the block with it.
    const OwnBlock block = own_block_at_gate(pointer);
    if (!block.live) {
      continue;
    }
    if (wait_for_device(block.device) != CUDA_SUCCESS) {
      put_aside(pointer);  // another time
    } else {
      // Fails only if the program freed it once more just now; then its address may be another block's soon.
      nofrag_free(to_address(pointer));
    }
  }
}

}  // namespace

void forget_aside(int device) {
  if (aside_count.load(std::memory_order_acquire) == 0) {
    return;
  }
  const std::lock_guard lock(aside_mutex);
  std::erase_if(*aside, [&](CUdeviceptr pointer) {
    const DeviceAllocator* const owner = owner_of(pointer);
    return owner == nullptr || owner->device().value() == device;
  });
  aside_count.store(aside->size(), std::memory_order_release);
}

namespace {

// ---- allocation

enum class Served : unsigned char { kYes, kNo, kPassOn };

// What a failed allocation of ours means. kPassOn: not for lack of memory, so the driver may try.
Served refused() {
  switch (nofrag_last_error(nullptr)) {
    case NOFRAG_OUT_OF_MEMORY:
    case NOFRAG_LIMIT:
      return Served::kNo;
    case NOFRAG_EXITING:
    case NOFRAG_FORKED:
      return Served::kPassOn;
    default: {
      const char* why = nullptr;
      nofrag_last_error(&why);
      give_up("an allocation", why);
      return Served::kPassOn;
    }
  }
}

Served take(int device, size_t size, CUstream stream, CUdeviceptr* pointer) {
  const InsideNofrag inside;
  void* const block = nofrag_malloc(size, device, stream);
  if (block == nullptr) {
    return refused();
  }
  *pointer = to_pointer(block);
  return Served::kYes;
}

// Memory that any stream may use at once.
CUresult take_for_all(int device, size_t size, CUdeviceptr* pointer, bool* passed_on) {
  const CUstream courier = courier_of(device);
  CUdeviceptr block = 0;
  const Served served = courier != nullptr ? take(device, size, courier, &block) : Served::kPassOn;
  *passed_on = served == Served::kPassOn;
  if (served != Served::kYes) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // Memory of other streams may come with waits on the courier. It has nothing else to do.
  CUresult ready = real().stream_query(courier);
  if (ready == CUDA_ERROR_NOT_READY) {
    ready = real().stream_synchronize(courier);
  }
  if (ready != CUDA_SUCCESS) {
    nofrag_free(to_address(block));
    return ready;
  }
  *pointer = block;
  return CUDA_SUCCESS;
}

// pre: the gate is held.
bool may_serve(int device) {
  return device >= 0 && acting() && !InsideNofrag::here() && service_of(device) == Service::kVmm;
}

bool serves(int device) {
  const std::shared_lock lock(gate());
  return may_serve(device);
}

// False: the driver is to serve it.
bool alloc_here(CUdeviceptr* pointer, size_t size, CUresult* result) {
  if (pointer == nullptr || size == 0 || InsideNofrag::here() || !acting()) {
    return false;
  }
  const std::shared_lock lock(gate());
  const int device = current_device();
  // While something is captured, the driver's rules on what is legal hold, and what it gives stays.
  if (!may_serve(device) || any_capture()) {
    return false;
  }
  take_from_aside();
  bool passed_on = false;
  *result = take_for_all(device, size, pointer, &passed_on);
  return !passed_on;
}

bool alloc_async_here(
    CUdeviceptr* pointer, size_t size, CUstream stream, CUmemoryPool pool, CUresult* result) {
  if (pointer == nullptr || size == 0 || InsideNofrag::here() || !acting()) {
    return false;
  }
  const std::shared_lock lock(gate());
  const int device = device_of_stream(stream);
  if (!may_serve(device) || any_capture() || is_capturing(stream)) {
    return false;
  }
  const bool ours = pool == nullptr ? !seat(device).other_pool.load(std::memory_order_relaxed)
                                    : pool == default_pool_of(device);
  if (!ours) {
    return false;
  }
  take_from_aside();
  const Served served = take(device, size, stream, pointer);
  if (served == Served::kYes) {
    note_async(device, static_cast<std::int64_t>(size));
  }
  *result = served == Served::kYes ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  return served != Served::kPassOn;
}

CUresult alloc_async(
    Entry entry, CUdeviceptr* pointer, size_t size, CUstream given, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  if (alloc_async_here(pointer, size, stream, nullptr, &result)) {
    return result;
  }
  result = call_real(entry, pointer, size, given);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && give_idle_memory_back()) {
    result = call_real(entry, pointer, size, given);
  }
  return note_pool_block(result, pointer, size, stream);
}

CUresult alloc_from_pool(Entry entry,
                         CUdeviceptr* pointer,
                         size_t size,
                         CUmemoryPool pool,
                         CUstream given,
                         CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  if (pool != nullptr && alloc_async_here(pointer, size, stream, pool, &result)) {
    return result;
  }
  result = call_real(entry, pointer, size, pool, given);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && give_idle_memory_back()) {
    result = call_real(entry, pointer, size, pool, given);
  }
  return note_pool_block(result, pointer, size, stream);
}

// ---- rows of a width that the driver would choose

// What pitches are multiples of, learnt from two calls of the driver; 0 if that is not how it chooses.
std::uint64_t learn_pitch() {
  std::uint64_t unit = 0;
  for (const bool second : {false, true}) {
    CUdeviceptr pointer = 0;
    size_t pitch = 0;
    const size_t width = second ? unit + 1 : 1;
    if (call_real(Entry::k_cuMemAllocPitch_v2, &pointer, &pitch, width, size_t{1}, 4U) !=
        CUDA_SUCCESS) {
      return 0;
    }
    real().mem_free(pointer);
    if (second) {
      return pitch == 2 * unit ? unit : 0;
    }
    unit = pitch;
  }
  return 0;
}

// ---- free

// pre: nothing more is to be waited for. Of two threads that free the same block one is told so.
CUresult give_back(const OwnBlock& block) {
  note_free(block.base);
  if (nofrag_free(to_address(block.base)) != NOFRAG_OK) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (block.async) {
    note_async(block.device, -static_cast<std::int64_t>(block.size));
  }
  return CUDA_SUCCESS;
}

CUresult free_waiting(const OwnBlock& block, CUdeviceptr pointer) {
  if (options().preload_free_waits) {
    if (const CUresult waited = wait_for_device(block.device); waited != CUDA_SUCCESS) {
      return waited;  // the block is still the program's, with all that is known of it
    }
  } else {
    // The legacy stream's event covers all streams that it synchronizes with; the others are named.
    nofrag_record_stream(to_address(pointer), nullptr);
    for (const CUstream stream : streams_of(block.device)) {
      nofrag_record_stream(to_address(pointer), stream);
    }
  }
  return give_back(block);
}

// What is not ours, or no more: an ended block is nothing to the driver, which has errors of its own for what else
// is wrong (a context that has ended, a capture in which this may not be).
CUresult free_others(CUdeviceptr pointer) {
  const CUresult result =
      freeing(pointer, [&] { return call_real(Entry::k_cuMemFree_v2, pointer); });
  return result == CUDA_ERROR_INVALID_VALUE && free_ended(pointer) ? CUDA_SUCCESS : result;
}

CUresult free_others_async(Entry entry, CUdeviceptr pointer, CUstream given, CUstream stream) {
  const CUresult result = freeing(pointer, [&] { return call_real(entry, pointer, given); });
  const bool ended =
      result == CUDA_ERROR_INVALID_VALUE && is_ended(pointer) && !is_capturing(stream);
  return ended && free_ended(pointer) ? CUDA_SUCCESS : result;
}

CUresult free_async(Entry entry, CUdeviceptr pointer, CUstream given, CUstream stream) {
  if (Process::instance().forked()) {
    return call_real(entry, pointer, given);  // its locks may be held by threads that are not there
  }
  std::shared_lock lock(gate());
  if (owner_of(pointer) == nullptr) {
    lock.unlock();
    return free_others_async(entry, pointer, given, stream);
  }
  if (Process::instance().exiting()) {
    return CUDA_SUCCESS;
  }
  // A graph frees only what it allocates, and that is the driver's: it says so.
  if (is_capturing(stream)) {
    return call_real(entry, pointer, given);
  }
  const InsideNofrag inside;
  const OwnBlock block = own_block_at_gate(pointer);
  if (!block.live || block.base != pointer || is_aside(pointer)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The per-thread default stream is one name for a stream in each thread: the owner's may be another.
  const CUstream user = stream == legacy_stream() ? nullptr : stream;
  if (block.stream != user || user == per_thread_stream()) {
    nofrag_record_stream(to_address(pointer), stream);
  }
  return give_back(block);
}

}  // namespace

// Would the driver let this thread free memory now, while something is captured?
CUresult may_free_now() {
  CUdeviceptr probe = 0;
  const CUresult result = real().mem_alloc(&probe, 512);
  if (result == CUDA_SUCCESS) {
    real().mem_free(probe);
  }
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

bool give_idle_memory_back() {
  if (!acting() || InsideNofrag::here() || any_capture()) {
    return false;
  }
  const InsideNofrag inside;
  const std::shared_lock lock(gate());
  take_from_aside();
  std::uint64_t given = 0;
  for (int i = 0; i < Process::kMostDevices; ++i) {
    if (DeviceAllocator* const device = Process::instance().used_device(i); device != nullptr) {
      given += device->trim().count();
    }
  }
  return given != 0;
}

OwnBlock own_block(CUdeviceptr pointer) {
  if (Process::instance().forked()) {
    return {};  // locks may be held by threads that are not there
  }
  const std::shared_lock lock(gate());
  return own_block_at_gate(pointer);
}

OwnBlock own_block_at_gate(CUdeviceptr pointer) {
  OwnBlock block;
  const DeviceAllocator* const owner = owner_of(pointer);
  if (owner == nullptr) {
    return block;
  }
  block.ours = true;
  block.device = owner->device().value();
  const Result<BlockInfo> info = owner->find(VirtAddr(std::uint64_t{pointer}));
  if (!info.ok()) {
    return block;
  }
  block.live = true;
  block.base = info.value().address.value();
  block.size = info.value().requested.count();
  block.stream = to_stream_handle(info.value().stream.value());
  block.async = !is_courier(block.device, block.stream);
  return block;
}

bool is_live_block(const OwnBlock& block) {
  return block.live && !is_aside(block.base);
}

CUresult hook_cuMemAlloc_v2(CUdeviceptr* pointer, size_t size) {
  CUresult result = CUDA_SUCCESS;
  if (alloc_here(pointer, size, &result)) {
    return result;
  }
  result = Retry<CUdeviceptr*, size_t>::call<Entry::k_cuMemAlloc_v2>(pointer, size);
  return note_allocated(result, pointer, size);
}

CUresult hook_cuMemAllocPitch_v2(
    CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height, unsigned element) {
  const auto pass_on = [&] {
    const CUresult result =
        Retry<CUdeviceptr*, size_t*, size_t, size_t, unsigned>::call<Entry::k_cuMemAllocPitch_v2>(
            pointer, pitch, width, height, element);
    return note_allocated(
        result, pointer, result == CUDA_SUCCESS && pitch != nullptr ? *pitch * height : 0);
  };
  const bool element_known = element == 4 || element == 8 || element == 16;
  if (pitch == nullptr || width == 0 || height == 0 || !element_known || InsideNofrag::here() ||
      !acting()) {
    return pass_on();
  }
  // Passing on may take long: without the gate.
  const int device = current_device();
  if (!serves(device) || any_capture()) {
    return pass_on();
  }
  std::uint64_t unit = seat(device).pitch.load(std::memory_order_relaxed);
  if (unit == 0) {
    unit = learn_pitch();
    seat(device).pitch.store(unit, std::memory_order_relaxed);
  }
  size_t row = 0;
  size_t bytes = 0;
  if (unit == 0 || __builtin_add_overflow(width, unit - 1, &row) ||
      __builtin_mul_overflow(row / unit * unit, height, &bytes)) {
    return pass_on();
  }
  CUresult result = CUDA_SUCCESS;
  if (!alloc_here(pointer, bytes, &result)) {
    return pass_on();
  }
  if (result == CUDA_SUCCESS) {
    *pitch = row / unit * unit;
  }
  return result;
}

CUresult hook_cuMemFree_v2(CUdeviceptr pointer) {
  if (pointer == 0 || Process::instance().forked()) {
    return call_real(Entry::k_cuMemFree_v2, pointer);
  }
  std::shared_lock lock(gate());
  if (owner_of(pointer) == nullptr) {
    lock.unlock();
    return imported_range(pointer).size != 0 ? CUDA_ERROR_INVALID_VALUE : free_others(pointer);
  }
  if (Process::instance().exiting()) {
    return CUDA_SUCCESS;  // the driver may be gone, and takes everything back itself
  }
  CUcontext context = nullptr;
  if (real().context_current(&context) != CUDA_SUCCESS || context == nullptr) {
    return call_real(Entry::k_cuMemFree_v2, pointer);  // it has an error for this
  }
  const InsideNofrag inside;
  take_from_aside();
  const OwnBlock block = own_block_at_gate(pointer);
  if (!block.live || block.base != pointer || is_aside(pointer)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!any_capture()) {
    return free_waiting(block, pointer);
  }
  if (const CUresult legal = may_free_now(); legal != CUDA_SUCCESS) {
    return legal;
  }
  note_free(pointer);
  if (block.async) {
    note_async(block.device, -static_cast<std::int64_t>(block.size));
  }
  put_aside(pointer);
  return CUDA_SUCCESS;
}

CUresult hook_cuMemAllocAsync(CUdeviceptr* pointer, size_t size, CUstream stream) {
  return alloc_async(Entry::k_cuMemAllocAsync, pointer, size, stream, stream);
}

CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr* pointer, size_t size, CUstream stream) {
  return alloc_async(Entry::k_cuMemAllocAsync_ptsz, pointer, size, stream, per_thread(stream));
}

CUresult hook_cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return free_async(Entry::k_cuMemFreeAsync, pointer, stream, stream);
}

CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  return free_async(Entry::k_cuMemFreeAsync_ptsz, pointer, stream, per_thread(stream));
}

CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr* pointer,
                                      size_t size,
                                      CUmemoryPool pool,
                                      CUstream stream) {
  return alloc_from_pool(Entry::k_cuMemAllocFromPoolAsync, pointer, size, pool, stream, stream);
}

CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* pointer,
                                           size_t size,
                                           CUmemoryPool pool,
                                           CUstream stream) {
  return alloc_from_pool(
      Entry::k_cuMemAllocFromPoolAsync_ptsz, pointer, size, pool, stream, per_thread(stream));
}

}  // namespace nofrag::preload
