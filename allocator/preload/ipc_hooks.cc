// Legacy IPC between two preloaded processes, and other ways in which memory of ours becomes known outside.
//
// The driver refuses IPC handles for mapped memory. Ours name the process and the block; whoever opens one asks
// that process for the physical allocations under the block (as file descriptors) and maps them.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <shared_mutex>

#include <nofrag/nofrag.h>

#include "preload/captures.h"
#include "preload/devices.h"
#include "preload/entries.h"
#include "preload/exports.h"
#include "preload/hooks.h"
#include "preload/memory.h"
#include "preload/mode.h"
#include "preload/passed/passed.h"

namespace nofrag::preload {
namespace {

constexpr int kSyncMemops = 6;  // CUpointer_attribute

// What the 64 bytes of a handle of ours hold.
struct HandleText {
  char magic[8] = {};
  ChannelName name;
  std::uint64_t id = 0;
  std::uint64_t size = 0;
  std::uint64_t spare[3] = {};
};
static_assert(sizeof(HandleText) == sizeof(CUipcMemHandle));
constexpr char kMagic[8] = {'n', 'o', 'f', 'r', 'a', 'g', 'I', '1'};

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

void close_parts(ExportedBlock& block) {
  for (ExportedPart& part : block.parts) {
    ::close(part.descriptor);
  }
  block.parts.clear();
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
    std::memcpy(entry->text.magic, kMagic, sizeof kMagic);
    entry->text.id = described.id;
    entry->text.size = block.size;
  }
  std::memcpy(handle, &entry->text, sizeof *handle);
  return CUDA_SUCCESS;
}

// The memory that holds `pointer` becomes known outside in a way we cannot see the end of before its free.
void pin_for_others(CUdeviceptr pointer) {
  if (!acting()) {
    return;
  }
  const std::shared_lock gate_lock(gate());
  const OwnBlock block = own_block_at_gate(pointer);
  if (is_live_block(block)) {
    const std::lock_guard lock(exports_mutex);
    pinned_export(block.base);
  }
}

// ---- what others show to this process

struct Import {
  HandleText text{};
  CUdeviceptr range = 0;
  std::uint64_t range_size = 0;
  std::vector<std::uint64_t> parts;  // mapped sizes, in order
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
  int device = -1;
  unsigned uses = 0;  // 0: closed, and to be unmapped as soon as waiting is allowed
  // Another number after every opening, and after a closing that left no use: work that was begun since it was
  // last seen may still run.
  std::uint64_t turn = 0;
  bool undone = false;  // partly unmapped: nobody may have it again
};
std::uint64_t last_turn = 0;  // Sync: imports_mutex
std::mutex imports_mutex;
std::vector<Import>* imported;  // Sync: imports_mutex; leaked
std::atomic<std::size_t> imported_count;
std::atomic<std::size_t> to_unmap_count;

// From the end, so that what failed can be gone on with.
CUresult unmap(Import& import) {
  CUdeviceptr end = std::accumulate(import.parts.begin(), import.parts.end(), import.range);
  while (!import.parts.empty()) {
    const std::uint64_t part = import.parts.back();
    if (const CUresult result = real().unmap(end - part, part); result != CUDA_SUCCESS) {
      return result;
    }
    import.undone = true;
    end -= part;
    import.parts.pop_back();
  }
  return real().free_addresses(import.range, import.range_size);
}

CUresult map_parts(const ExportedBlock& block, Import* import) {
  for (const ExportedPart& part : block.parts) {
    import->range_size += part.size;
  }
  CUresult result = real().reserve(&import->range, import->range_size, 0, 0, 0);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUdeviceptr at = import->range;
  for (const ExportedPart& part : block.parts) {
    CUmemGenericAllocationHandle handle = 0;
    result = real().import_handle(&handle,
                                  VirtAddr(static_cast<std::uint64_t>(part.descriptor)).pointer(),
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result == CUDA_SUCCESS) {
      result = real().map(at, part.size, 0, handle, 0);
      real().release_handle(handle);  // the mapping holds it
    }
    if (result != CUDA_SUCCESS) {
      break;
    }
    import->parts.push_back(part.size);
    at += part.size;
  }
  if (result == CUDA_SUCCESS) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = import->device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = real().set_access(import->range, import->range_size, &access, 1);
  }
  if (result != CUDA_SUCCESS) {
    static_cast<void>(unmap(*import));  // what cannot be unmapped is left to the driver
  }
  return result;
}

bool is_own_handle(const HandleText& text) {
  return text.name.process == static_cast<std::uint64_t>(::getpid());
}

CUresult open_import(const HandleText& text, CUdeviceptr* pointer) {
  const int device = current_device();
  if (device < 0 || is_own_handle(text)) {
    return CUDA_ERROR_INVALID_CONTEXT;  // as the driver has it for handles of the same process
  }
  const std::lock_guard lock(imports_mutex);
  if (imported == nullptr) {
    imported = new std::vector<Import>;
  }
  for (Import& known : *imported) {
    if (known.device == device && !known.undone &&
        std::memcmp(&known.text, &text, sizeof text) == 0) {
      to_unmap_count -= known.uses == 0 ? 1U : 0U;
      ++known.uses;
      known.turn = ++last_turn;
      *pointer = known.base;
      return CUDA_SUCCESS;
    }
  }
  ExportedBlock block;
  if (!fetch_export(text.name, text.id, &block)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Import import;
  import.text = text;
  import.device = device;
  const CUresult result = map_parts(block, &import);
  close_parts(block);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  import.base = import.range + block.offset;
  import.size = block.size;
  import.uses = 1;
  import.turn = ++last_turn;
  *pointer = import.base;
  imported->push_back(std::move(import));
  imported_count.store(imported->size(), std::memory_order_release);
  return CUDA_SUCCESS;
}

// pre: all work that may use it is done; imports_mutex. True: it is gone from the list.
bool unmap_at(std::vector<Import>::iterator import, CUresult* result) {
  *result = unmap(*import);
  if (*result != CUDA_SUCCESS) {
    return false;
  }
  imported->erase(import);
  imported_count.store(imported->size(), std::memory_order_release);
  return true;
}

// What was closed while something was captured.
void unmap_closed() {
  if (to_unmap_count.load(std::memory_order_acquire) == 0 || any_capture()) {
    return;
  }
  for (int device = 0; device < Process::kMostDevices; ++device) {
    // Only what was closed before the wait: a kernel may run on what is closed during it.
    std::vector<std::uint64_t> turns;
    {
      const std::lock_guard lock(imports_mutex);
      for (const Import& import : *imported) {
        if (import.uses == 0 && import.device == device) {
          turns.push_back(import.turn);
        }
      }
    }
    if (turns.empty() || wait_for_device(device) != CUDA_SUCCESS) {
      continue;
    }
    const std::lock_guard lock(imports_mutex);
    for (const std::uint64_t turn : turns) {
      const auto found = std::find_if(imported->begin(), imported->end(), [turn](const Import& i) {
        return i.uses == 0 && i.turn == turn;
      });
      CUresult result = CUDA_SUCCESS;
      if (found != imported->end()) {
        to_unmap_count -= unmap_at(found, &result) ? 1U : 0U;
      }
    }
  }
}

std::vector<Import>::iterator find_import(CUdeviceptr base) {
  return std::find_if(imported->begin(), imported->end(), [&](const Import& i) {
    return i.base == base && i.uses > 0;
  });
}

// An import's last use, which stays counted until it is unmapped. device -1: it was not the last.
struct LastUse {
  int device = -1;
  std::uint64_t turn = 0;
};
LastUse close_one_use(CUdeviceptr base) {
  const std::lock_guard lock(imports_mutex);
  const auto found = find_import(base);
  if (found == imported->end()) {
    return {};  // another thread closed it: one use, two closings
  }
  if (found->uses > 1) {
    --found->uses;
    return {};
  }
  return {found->device, found->turn};
}

// `turn`: all work of before it is done; kNotNow: it is unmapped when waiting is allowed again. False: others
// opened it meanwhile, and what they began may run.
constexpr std::uint64_t kNotNow = 0;
bool close_last_use(CUdeviceptr base, std::uint64_t turn, CUresult* result) {
  const std::lock_guard lock(imports_mutex);
  const auto found = find_import(base);
  if (found == imported->end()) {
    *result = CUDA_ERROR_INVALID_VALUE;
  } else if (found->uses > 1 || turn == kNotNow) {
    to_unmap_count += --found->uses == 0 ? 1U : 0U;
    found->turn = ++last_turn;
  } else if (found->turn != turn) {
    return false;
  } else {
    unmap_at(found, result);
  }
  return true;
}

CUresult open_handle(Entry entry,
                     CUdeviceptr* pointer,
                     const CUipcMemHandle& handle,
                     unsigned flags) {
  HandleText text;
  std::memcpy(static_cast<void*>(&text), &handle, sizeof text);
  if (std::memcmp(text.magic, kMagic, sizeof kMagic) != 0 || pointer == nullptr || !acting()) {
    return call_real(entry, pointer, handle, flags);
  }
  const InsideNofrag inside;
  unmap_closed();
  return open_import(text, pointer);
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

ImportedRange imported_range(CUdeviceptr pointer) {
  if (imported_count.load(std::memory_order_acquire) == 0 || Process::instance().forked()) {
    return {};
  }
  const std::lock_guard lock(imports_mutex);
  for (const Import& import : *imported) {
    if (import.uses > 0 && pointer >= import.base && pointer - import.base < import.size) {
      return {import.base, import.size};
    }
  }
  return {};
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

CUresult hook_cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
  return open_handle(Entry::k_cuIpcOpenMemHandle, pointer, handle, flags);
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
  return open_handle(Entry::k_cuIpcOpenMemHandle_v2, pointer, handle, flags);
}

CUresult hook_cuIpcCloseMemHandle(CUdeviceptr pointer) {
  const ImportedRange range = imported_range(pointer);
  if (range.size == 0 || range.base != pointer) {
    return call_real(Entry::k_cuIpcCloseMemHandle, pointer);
  }
  const InsideNofrag inside;
  unmap_closed();
  const bool captures = any_capture();
  if (captures) {
    if (const CUresult legal = may_free_now(); legal != CUDA_SUCCESS) {
      return legal;
    }
  }
  // Unmapping does not wait for kernels; closing does. Until all is done the import stays in the list, so
  // that what fails can be asked for again.
  for (;;) {
    const LastUse last = close_one_use(pointer);
    if (last.device < 0) {
      return CUDA_SUCCESS;
    }
    // A capture does not survive the wait.
    CUresult result = captures ? CUDA_SUCCESS : wait_for_device(last.device);
    if (result != CUDA_SUCCESS ||
        close_last_use(pointer, captures ? kNotNow : last.turn, &result)) {
      return result;
    }
  }
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
