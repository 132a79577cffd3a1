// The virtualised entries: what the driver would say of a pointer if it had given it out itself.
#include <algorithm>
#include <shared_mutex>

#include "preload/devices.h"
#include "preload/entries.h"
#include "preload/hooks.h"
#include "preload/ipc/imports.h"
#include "preload/memory.h"
#include "preload/mode.h"

namespace nofrag::preload {
namespace {

// By number, so that headers of every CUDA 12 know them.
constexpr int kContext = 1;
constexpr int kLegacyIpc = 10;
constexpr int kRangeStart = 11;
constexpr int kRangeSize = 12;
constexpr int kMemoryPool = 17;

template <typename Value>
bool write(void* data, Value value) {
  *static_cast<Value*>(data) = value;
  return true;
}

// What the driver knows otherwise of memory that is mapped. False: its own answer holds.
bool answer_attribute(int attribute, const OwnBlock& block, void* data) {
  switch (attribute) {
    case kContext:
      return write(data, seat(block.device).primary.load(std::memory_order_acquire));
    case kLegacyIpc:
      return write(data, block.async ? 0 : 1);
    case kRangeStart:
      return write(data, block.base);
    case kRangeSize:
      return write(data, static_cast<std::size_t>(block.size));
    case kMemoryPool:
      return write(data, block.async ? default_pool_of(block.device) : nullptr);
    default:
      return false;
  }
}

// An address that no driver gives out.
constexpr CUdeviceptr kNowhere = 4096;

// The lower of the limits that nofrag keeps on this device; no limit: `total`.
std::uint64_t limit_of(int device, std::uint64_t total) {
  std::uint64_t limit = std::min(total, options().limit.count());
  if (options().memory_fraction < 1.0) {
    limit = std::min(
        limit, static_cast<std::uint64_t>(static_cast<double>(total) * options().memory_fraction));
  }
  if (const DeviceAllocator* const allocator = Process::instance().used_device(device);
      allocator != nullptr) {
    limit = std::min(limit, allocator->stats().limit.count());
  }
  return limit;
}

}  // namespace

CUresult hook_cuMemGetInfo_v2(size_t* free, size_t* total) {
  const CUresult result = call_real(Entry::k_cuMemGetInfo_v2, free, total);
  if (result != CUDA_SUCCESS || free == nullptr || total == nullptr || !acting() ||
      InsideNofrag::here()) {
    return result;
  }
  CUdevice device = -1;
  if (real().context_device(&device) != CUDA_SUCCESS || device < 0 ||
      device >= Process::kMostDevices) {
    return result;
  }
  const std::shared_lock lock(gate());
  // Where the driver serves alone, its own count holds, and no limit of ours.
  if (current_device() == device && service_of(device) == Service::kNative) {
    return result;
  }
  const InsideNofrag inside;
  // What one request can surely have beside what the driver still has: whole idle handles, the free ends
  // of two others, and what threads keep, which comes back before anything is refused.
  std::uint64_t idle = 0;
  std::uint64_t reserved = 0;
  if (const DeviceAllocator* const allocator = Process::instance().used_device(device);
      allocator != nullptr) {
    const DeviceStats stats = allocator->stats();
    idle = stats.free_handles.count() + stats.composable.count() + stats.kept.count();
    reserved = stats.reserved.count();
  }
  const std::uint64_t limit = limit_of(device, *total);
  const std::uint64_t below_limit = limit > reserved - std::min(idle, reserved)
                                        ? limit - (reserved - std::min(idle, reserved))
                                        : 0;
  *free = std::min<std::uint64_t>({*free + idle, below_limit, limit});
  *total = limit;
  return CUDA_SUCCESS;
}

CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
  const OwnBlock block = own_block(pointer);
  ImportedRange range{block.base, block.size};
  if (!block.ours) {
    range = imported_range(pointer);
    if (range.size == 0) {
      return call_real(Entry::k_cuMemGetAddressRange_v2, base, size, pointer);
    }
  } else if (!is_live_block(block)) {
    return call_real(Entry::k_cuMemGetAddressRange_v2, base, size, kNowhere);
  }
  if (base != nullptr) {
    *base = range.base;
  }
  if (size != nullptr) {
    *size = range.size;
  }
  return CUDA_SUCCESS;
}

CUresult hook_cuPointerGetAttribute(void* data, int attribute, CUdeviceptr pointer) {
  const OwnBlock block = own_block(pointer);
  if (block.ours && !is_live_block(block)) {
    return call_real(Entry::k_cuPointerGetAttribute, data, attribute, kNowhere);
  }
  if (block.ours && data != nullptr && answer_attribute(attribute, block, data)) {
    return CUDA_SUCCESS;
  }
  return call_real(Entry::k_cuPointerGetAttribute, data, attribute, pointer);
}

CUresult hook_cuPointerGetAttributes(unsigned count,
                                     int* attributes,
                                     void** data,
                                     CUdeviceptr pointer) {
  const OwnBlock block = own_block(pointer);
  const bool freed = block.ours && !is_live_block(block);
  const CUresult result = call_real(
      Entry::k_cuPointerGetAttributes, count, attributes, data, freed ? kNowhere : pointer);
  if (result != CUDA_SUCCESS || !block.ours || freed) {
    return result;
  }
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] != nullptr) {
      answer_attribute(attributes[i], block, data[i]);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace nofrag::preload
