// The exporter's side of legacy IPC between two preloaded processes, and other ways in which memory of ours becomes
// known outside.
//
// The driver refuses IPC handles for mapped memory. Ours name the process and the block; whoever opens one asks
// that process for the physical allocations under the block (as file descriptors) and maps them.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include <nofrag/nofrag.h>

#include "preload/devices.h"
#include "preload/entries.h"
#include "preload/hooks.h"
#include "preload/ipc/exports.h"
#include "preload/memory.h"
#include "preload/mode.h"
#include "preload/passed/passed.h"

namespace nofrag::preload {
namespace {

constexpr int kSyncMemops = 6;  // CUpointer_attribute

// ---- what this process shows to others

struct Export {
  CUdeviceptr base = 0;
  std::uint64_t id = 0;  // 0: pinned only
  HandleText text{};
};
std::mutex exports_mutex;
std::vector<Export>* exported;  // Sync: exports_mutex; leaked
std::atomic<std::size_t> exported_count;
std::uint64_t last_id = 0;  // Sync: exports_mutex

Export* find_export(CUdeviceptr base) {
  if (exported == nullptr) {
    exported = new std::vector<Export>;
  }
  const auto found = std::find_if(
      exported->begin(), exported->end(), [&](const Export& e) { return e.base == base; });
  return found != exported->end() ? &*found : nullptr;
}

// pre: exports_mutex. Pins the block if it is not.
Export* pinned_export(CUdeviceptr base) {
  Export* known = find_export(base);
  if (known == nullptr) {
    if (nofrag_pin(to_address(base)) != NOFRAG_OK) {
      return nullptr;
    }
    exported->push_back({base, 0, {}});
    exported_count.store(exported->size(), std::memory_order_release);
    known = &exported->back();
  }
  return known;
}

// The physical allocations from the one that holds the block's first byte to that of its last.
CUresult export_parts(const OwnBlock& block, ExportedBlock* out) {
  CUdeviceptr at = block.base;
  while (at < block.base + block.size) {
    CUdeviceptr start = 0;
    std::size_t size = 0;
    CUresult result = real().address_range(&start, &size, at);
    CUmemGenericAllocationHandle handle = 0;
    if (result == CUDA_SUCCESS) {
      result = real().retain_handle(&handle, to_address(at));
    }
    int descriptor = -1;
    if (result == CUDA_SUCCESS) {
      result =
          real().export_handle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      real().release_handle(handle);
    }
    if (result != CUDA_SUCCESS) {
      close_parts(*out);
      return result;
    }
    ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    if (out->parts.empty()) {
      out->offset = block.base - start;
    }
    out->parts.push_back({descriptor, size});
    at = start + size;
  }
  return CUDA_SUCCESS;
}

CUresult export_block(const OwnBlock& block, CUipcMemHandle* handle) {
  const std::lock_guard lock(exports_mutex);
  Export* const entry = pinned_export(block.base);
  if (entry == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (entry->id == 0) {
    ExportedBlock described;
    described.id = last_id + 1;
    described.size = block.size;
    described.device_in_exporter = block.device;
    if (!serve_exports(&entry->text.name)) {
      say("IPC handles need a socket and a thread, and this process can have none");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (const CUresult result = export_parts(block, &described); result != CUDA_SUCCESS) {
      say("memory of nofrag cannot be shared here (the driver says %d); NOFRAG_CONF=preload:native "
          "serves "
          "programs that share by IPC",
          static_cast<int>(result));
      return result;
    }
    last_id = described.id;
    offer_export(described);
    entry->id = described.id;
    std::memcpy(entry->text.magic, kHandleMagic, sizeof kHandleMagic);
    entry->text.id = described.id;
    entry->text.size = block.size;
  }
  std::memcpy(handle, &entry->text, sizeof *handle);
  return CUDA_SUCCESS;
}

// The memory that holds `pointer` becomes known outside in a way we cannot see the end of before its free.
void pin_for_others(CUdeviceptr pointer) {
  if (!has_acted()) {
    return;
  }
  const std::shared_lock gate_lock(gate());
  const OwnBlock block = own_block_at_gate(pointer);
  if (is_live_block(block)) {
    const std::lock_guard lock(exports_mutex);
    pinned_export(block.base);
  }
}

}  // namespace

void note_free(CUdeviceptr base) {
  if (exported_count.load(std::memory_order_acquire) == 0) {
    return;
  }
  const std::lock_guard lock(exports_mutex);
  if (const Export* const known = find_export(base); known != nullptr) {
    if (known->id != 0) {
      withdraw_export(known->id);
    }
    nofrag_unpin(to_address(base));
    std::erase_if(*exported, [&](const Export& e) { return e.base == base; });
    exported_count.store(exported->size(), std::memory_order_release);
  }
}

void forget_exports(int device) {
  if (exported_count.load(std::memory_order_acquire) == 0) {
    return;
  }
  const std::lock_guard lock(exports_mutex);
  std::erase_if(*exported, [&](const Export& known) {
    const DeviceAllocator* const owner = owner_of(known.base);
    const bool ends = owner == nullptr || owner->device().value() == device;
    if (ends && known.id != 0) {
      withdraw_export(known.id);
    }
    return ends;
  });
  exported_count.store(exported->size(), std::memory_order_release);
}

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  if (handle == nullptr || !acting()) {
    return call_real(Entry::k_cuIpcGetMemHandle, handle, pointer);
  }
  const std::shared_lock lock(gate());
  const OwnBlock block = own_block_at_gate(pointer);
  if (!block.ours) {
    return call_real(Entry::k_cuIpcGetMemHandle, handle, pointer);
  }
  // Stream-ordered memory has no such handles with the driver either.
  if (!is_live_block(block) || block.async) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const InsideNofrag inside;
  return export_block(block, handle);
}

CUresult hook_cuMemRetainAllocationHandle(unsigned long long* handle, void* address) {
  pin_for_others(to_pointer(address));
  return note_retained(call_real(Entry::k_cuMemRetainAllocationHandle, handle, address), handle);
}

CUresult hook_cuMemGetHandleForAddressRange(
    void* handle, CUdeviceptr pointer, size_t size, int type, unsigned long long flags) {
  pin_for_others(pointer);
  return call_real(Entry::k_cuMemGetHandleForAddressRange, handle, pointer, size, type, flags);
}

CUresult hook_cuPointerSetAttribute(const void* value, int attribute, CUdeviceptr pointer) {
  if (attribute == kSyncMemops) {
    pin_for_others(pointer);  // whoever sets it registers the memory with a network card
  }
  return call_real(Entry::k_cuPointerSetAttribute, value, attribute, pointer);
}

}  // namespace nofrag::preload
