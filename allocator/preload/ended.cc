#include "preload/ended.h"

#include <atomic>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "preload/devices.h"
#include "preload/memory.h"

namespace nofrag::preload {
namespace {

using Addresses = std::unordered_set<CUdeviceptr>;
std::mutex late_mutex;
Addresses* late;  // Sync: late_mutex; leaked
std::atomic<std::size_t> late_count;

// What is kept aside was freed as far as the program knows.
bool is_freed(CUdeviceptr pointer) {
  OwnBlock block;
  block.live = true;
  block.base = pointer;
  return !is_live_block(block);
}

std::vector<CUdeviceptr> async_blocks_of(int device) {
  std::vector<CUdeviceptr> found;
  const DeviceAllocator* const allocator = Process::instance().used_device(device);
  if (allocator == nullptr || !allocator->uses_virtual_memory()) {
    return found;
  }
  allocator->walk([&](const MemorySpan& span) {
    if (span.state == MemorySpan::State::kLive &&
        !is_courier(device, to_stream_handle(span.stream.value()))) {
      found.push_back(span.address.value());
    }
  });
  std::erase_if(found, is_freed);
  return found;
}

}  // namespace

bool note_ended(int device) {
  const std::vector<CUdeviceptr> blocks = async_blocks_of(device);
  if (blocks.empty()) {
    return false;
  }
  const std::lock_guard lock(late_mutex);
  if (late == nullptr) {
    late = new Addresses;
  }
  late->insert(blocks.begin(), blocks.end());
  late_count.store(late->size(), std::memory_order_release);
  return true;
}

bool is_ended(CUdeviceptr pointer) {
  if (late_count.load(std::memory_order_acquire) == 0) {
    return false;
  }
  const std::lock_guard lock(late_mutex);
  return late->count(pointer) != 0;
}

bool free_ended(CUdeviceptr pointer) {
  if (late_count.load(std::memory_order_acquire) == 0) {
    return false;
  }
  const std::lock_guard lock(late_mutex);
  const bool found = late->erase(pointer) != 0;
  if (late->empty()) {
    Addresses().swap(*late);  // its buckets, too
  }
  late_count.store(late->size(), std::memory_order_release);
  return found;
}

}  // namespace nofrag::preload
