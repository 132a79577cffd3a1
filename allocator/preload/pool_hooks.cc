// The device's default memory pool, from which cuMemAllocAsync allocates: what is ours counts as its own.
#include <algorithm>
#include <shared_mutex>

#include "preload/captures.h"
#include "preload/devices.h"
#include "preload/entries.h"
#include "preload/hooks.h"
#include "preload/memory.h"
#include "preload/mode.h"

namespace nofrag::preload {
namespace {

// CUmemPool_attribute, by number.
constexpr int kReservedNow = 5;
constexpr int kReservedHigh = 6;
constexpr int kUsedNow = 7;
constexpr int kUsedHigh = 8;

// The device whose default pool this is, if we serve it; or -1.
int device_of_pool(CUmemoryPool pool) {
  if (pool == nullptr || !acting() || InsideNofrag::here()) {
    return -1;
  }
  for (int i = 0; i < Process::kMostDevices; ++i) {
    const Seat& here = seat(i);
    if (here.service.load(std::memory_order_acquire) == Service::kVmm &&
        default_pool_of(i) == pool) {
      return i;
    }
  }
  return -1;
}

void raise(std::atomic<std::uint64_t>& peak, std::uint64_t value) {
  std::uint64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

std::uint64_t reserved_of(int device) {
  const DeviceAllocator* const allocator = Process::instance().used_device(device);
  return allocator != nullptr ? allocator->stats().reserved.count() : 0;
}

// After the current pool of a device may have changed.
void look_at_pools() {
  for (int i = 0; i < Process::kMostDevices; ++i) {
    CUmemoryPool current = nullptr;
    const CUmemoryPool usual = seat(i).default_pool.load(std::memory_order_acquire);
    if (usual != nullptr && real().current_pool(&current, i) == CUDA_SUCCESS) {
      seat(i).other_pool.store(current != usual, std::memory_order_relaxed);
    }
  }
}

}  // namespace

CUmemoryPool default_pool_of(int device) {
  Seat& here = seat(device);
  CUmemoryPool pool = here.default_pool.load(std::memory_order_acquire);
  if (pool == nullptr && real().default_pool(&pool, device) == CUDA_SUCCESS) {
    here.default_pool.store(pool, std::memory_order_release);
    CUmemoryPool current = nullptr;
    if (real().current_pool(&current, device) == CUDA_SUCCESS) {
      here.other_pool.store(current != pool, std::memory_order_relaxed);
    }
  }
  return pool;
}

void note_async(int device, std::int64_t difference) {
  Seat& here = seat(device);
  std::uint64_t now = here.async_live.load(std::memory_order_relaxed);
  std::uint64_t next = 0;
  do {
    const auto less = static_cast<std::uint64_t>(-difference);
    next =
        difference >= 0 ? now + static_cast<std::uint64_t>(difference) : now - std::min(now, less);
  } while (!here.async_live.compare_exchange_weak(now, next, std::memory_order_relaxed));
  raise(here.async_peak, next);
}

CUresult hook_cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
  const CUresult result = call_real(Entry::k_cuMemPoolGetAttribute, pool, attribute, value);
  const int device = device_of_pool(pool);
  if (result != CUDA_SUCCESS || device < 0 || value == nullptr) {
    return result;
  }
  const std::shared_lock lock(gate());
  Seat& here = seat(device);
  auto* const number = static_cast<std::uint64_t*>(value);
  switch (attribute) {
    case kUsedNow:
      *number += here.async_live.load(std::memory_order_relaxed);
      break;
    case kUsedHigh:
      *number += here.async_peak.load(std::memory_order_relaxed);
      break;
    case kReservedNow:
      *number += reserved_of(device);
      break;
    case kReservedHigh:
      raise(here.reserved_peak, reserved_of(device));
      *number += here.reserved_peak.load(std::memory_order_relaxed);
      break;
    default:
      break;
  }
  return CUDA_SUCCESS;
}

CUresult hook_cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
  const CUresult result = call_real(Entry::k_cuMemPoolSetAttribute, pool, attribute, value);
  const int device = device_of_pool(pool);
  if (result != CUDA_SUCCESS || device < 0) {
    return result;
  }
  // The driver lets high marks be set to 0 only: from here on.
  const std::shared_lock lock(gate());
  Seat& here = seat(device);
  if (attribute == kUsedHigh) {
    here.async_peak.store(here.async_live.load(std::memory_order_relaxed),
                          std::memory_order_relaxed);
  } else if (attribute == kReservedHigh) {
    here.reserved_peak.store(reserved_of(device), std::memory_order_relaxed);
  }
  return CUDA_SUCCESS;
}

CUresult hook_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  const CUresult result = call_real(Entry::k_cuMemPoolTrimTo, pool, keep);
  const int device = device_of_pool(pool);
  // Giving memory back waits, which a capture does not survive.
  if (result != CUDA_SUCCESS || device < 0 || any_capture()) {
    return result;
  }
  const InsideNofrag inside;
  const std::shared_lock lock(gate());
  if (DeviceAllocator* const allocator = Process::instance().used_device(device);
      allocator != nullptr) {
    allocator->trim(Bytes(keep));
  }
  return CUDA_SUCCESS;
}

CUresult hook_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  const CUresult result = call_real(Entry::k_cuDeviceSetMemPool, device, pool);
  if (result == CUDA_SUCCESS && acting()) {
    if (device >= 0 && device < Process::kMostDevices) {
      static_cast<void>(default_pool_of(device));
    }
    look_at_pools();
  }
  return result;
}

CUresult hook_cuMemSetMemPool(void* location, int type, CUmemoryPool pool) {
  const CUresult result = call_real(Entry::k_cuMemSetMemPool, location, type, pool);
  if (result == CUDA_SUCCESS && acting()) {
    look_at_pools();
  }
  return result;
}

CUresult hook_cuMemPoolSetAccess(CUmemoryPool pool, const void* access, size_t count) {
  const CUresult result = call_real(Entry::k_cuMemPoolSetAccess, pool, access, count);
  const int device = device_of_pool(pool);
  const auto* const given = static_cast<const CUmemAccessDesc*>(access);
  for (size_t i = 0; result == CUDA_SUCCESS && device >= 0 && i < count; ++i) {
    if (given[i].location.id != device && given[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
      say("another GPU was given access to the default pool of device %d; its memory comes from "
          "the driver now",
          device);
      pass_on(device);
    }
  }
  return result;
}

}  // namespace nofrag::preload
