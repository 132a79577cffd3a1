// The importer's side of legacy IPC between two preloaded processes.
//
// Whoever opens a handle of ours asks the process that it names for the physical allocations under the block and maps
// them. Such a mapping belongs to no context; the driver's own ends with the context that opened it, so ours is ended
// with it, too.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "preload/captures.h"
#include "preload/devices.h"
#include "preload/entries.h"
#include "preload/hooks.h"
#include "preload/ipc/exports.h"
#include "preload/ipc/imports.h"
#include "preload/memory.h"
#include "preload/mode.h"

namespace nofrag::preload {
namespace {

struct Import {
  HandleText text{};
  CUdeviceptr range = 0;
  std::uint64_t range_size = 0;
  std::vector<std::uint64_t> parts;  // mapped sizes, in order
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
  int device = -1;
  std::uint64_t users = 0;  // a bit a device that has access
  unsigned uses = 0;        // 0: closed, and to be unmapped as soon as waiting is allowed
  // Another number after every opening, and after a closing that left no use: work that was begun since it was
  // last seen may still run.
  std::uint64_t turn = 0;
  bool undone = false;  // partly unmapped: nobody may have it again
};
std::uint64_t last_turn = 0;  // Sync: imports_mutex
std::mutex imports_mutex;
std::vector<Import>* imported;  // Sync: imports_mutex; leaked
// Of contexts that ended, to be unmapped yet.
std::vector<Import>* ended_imports;  // Sync: imports_mutex; leaked
std::atomic<std::size_t> imported_count;
std::atomic<std::size_t> to_unmap_count;

// From the end, so that what failed can be gone on with. pre: all work that may use it is done.
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

// pre: imports_mutex.
CUresult let_in(Import* import, int device) {
  const std::uint64_t bit = std::uint64_t{1} << device;
  if ((import->users & bit) != 0) {
    return CUDA_SUCCESS;
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult result = real().set_access(import->range, import->range_size, &access, 1);
  import->users |= result == CUDA_SUCCESS ? bit : 0;
  return result;
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
    result = let_in(import, import->device);
  }
  const std::uint64_t peers = seat(import->device).peers.load();
  for (int peer = 0; result == CUDA_SUCCESS && peer < Process::kMostDevices; ++peer) {
    if ((peers >> peer & 1) != 0) {
      static_cast<void>(let_in(import, peer));  // refused: that GPU stays out
    }
  }
  if (result != CUDA_SUCCESS) {
    static_cast<void>(unmap(*import));  // what cannot be unmapped is left to the driver
  }
  return result;
}

bool is_own_handle(const HandleText& text) {
  return text.name.process == static_cast<std::uint64_t>(::getpid());
}

// One more use of what is open. pre: imports_mutex. False: it is not.
bool open_again(const HandleText& text, int device, CUdeviceptr* pointer) {
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
      return true;
    }
  }
  return false;
}

// pre: the gate is held, since `device` was looked up: its context is there until this is done.
CUresult open_import(const HandleText& text, int device, CUdeviceptr* pointer) {
  if (is_own_handle(text)) {
    return CUDA_ERROR_INVALID_CONTEXT;  // as the driver has it for handles of the same process
  }
  {
    const std::lock_guard lock(imports_mutex);
    if (open_again(text, device, pointer)) {
      return CUDA_SUCCESS;
    }
  }
  // Asked without the lock: a process that has stopped answers late, and pointers are looked up meanwhile.
  ExportedBlock block;
  if (!fetch_export(text.name, text.id, &block)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(imports_mutex);
  if (open_again(text, device, pointer)) {  // another thread was first
    close_parts(block);
    return CUDA_SUCCESS;
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

// What was closed while something was captured. pre: the gate is held, so that no context ends meanwhile.
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
  if (std::memcmp(text.magic, kHandleMagic, sizeof kHandleMagic) != 0 || pointer == nullptr ||
      !acting()) {
    return call_real(entry, pointer, handle, flags);
  }
  const InsideNofrag inside;
  const std::shared_lock lock(gate());
  unmap_closed();
  const int device = current_device();
  if (device < 0) {
    // No context, or one that has ended or is no primary one: the driver has errors for these.
    return call_real(entry, pointer, handle, flags);
  }
  return open_import(text, device, pointer);
}

// pre: the gate is held, so that no context ends while this waits.
CUresult close_import(CUdeviceptr base) {
  unmap_closed();
  const bool capturing = any_capture();
  if (capturing) {
    if (const CUresult legal = may_free_now(); legal != CUDA_SUCCESS) {
      return legal;
    }
  }
  // Unmapping does not wait for kernels; closing does. Until all is done the import stays in the list, so
  // that what fails can be asked for again.
  for (;;) {
    const LastUse last = close_one_use(base);
    if (last.device < 0) {
      return CUDA_SUCCESS;
    }
    // A capture does not survive the wait.
    CUresult result = capturing ? CUDA_SUCCESS : wait_for_device(last.device);
    if (result != CUDA_SUCCESS || close_last_use(base, capturing ? kNotNow : last.turn, &result)) {
      return result;
    }
  }
}

bool begins_import(CUdeviceptr pointer) {
  const ImportedRange range = imported_range(pointer);
  return range.size != 0 && range.base == pointer;
}

// ---- contexts that end

// Out of the list, so that nobody finds them. True: there were some, or are from before.
bool end_imports(int device) {
  const std::lock_guard lock(imports_mutex);
  if (imported == nullptr) {
    return false;
  }
  if (ended_imports == nullptr) {
    ended_imports = new std::vector<Import>;
  }
  for (Import& import : *imported) {
    if (import.device == device) {
      to_unmap_count -= import.uses == 0 ? 1U : 0U;
      ended_imports->push_back(std::move(import));
    }
  }
  std::erase_if(*imported, [&](const Import& import) { return import.device == device; });
  imported_count.store(imported->size(), std::memory_order_release);
  return std::any_of(ended_imports->begin(), ended_imports->end(), [&](const Import& import) {
    return import.device == device;
  });
}

}  // namespace

void forget_imports(int device) {
  // Where the wait fails, the end of the context is waited for.
  if (end_imports(device) && wait_for_device(device) == CUDA_SUCCESS) {
    unmap_ended_imports(device);
  }
}

void unmap_ended_imports(int device) {
  const std::lock_guard lock(imports_mutex);
  if (ended_imports == nullptr) {
    return;
  }
  for (auto import = ended_imports->begin(); import != ended_imports->end();) {
    const bool gone = import->device == device && unmap(*import) == CUDA_SUCCESS;
    import = gone ? ended_imports->erase(import) : std::next(import);
  }
}

ImportedRange imported_range(CUdeviceptr pointer) {
  if (imported_count.load(std::memory_order_acquire) == 0 || Process::instance().forked()) {
    return {};
  }
  const std::lock_guard lock(imports_mutex);
  for (const Import& import : *imported) {
    if (import.uses > 0 && pointer >= import.base && pointer - import.base < import.size) {
      return {import.base, import.size, import.device};
    }
  }
  return {};
}

void share_imports(int device, int user) {
  const std::lock_guard lock(imports_mutex);
  if (imported == nullptr) {
    return;
  }
  for (Import& import : *imported) {
    if (import.device == device && !import.undone) {
      static_cast<void>(let_in(&import, user));
    }
  }
}

bool share_import(CUdeviceptr pointer, int user) {
  const std::lock_guard lock(imports_mutex);
  if (imported == nullptr) {
    return false;
  }
  for (Import& import : *imported) {
    if (import.uses > 0 && pointer >= import.base && pointer - import.base < import.size) {
      return let_in(&import, user) == CUDA_SUCCESS;
    }
  }
  return false;
}

CUresult hook_cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
  return open_handle(Entry::k_cuIpcOpenMemHandle, pointer, handle, flags);
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
  return open_handle(Entry::k_cuIpcOpenMemHandle_v2, pointer, handle, flags);
}

CUresult hook_cuIpcCloseMemHandle(CUdeviceptr pointer) {
  // Asked first without the gate, for the child of a fork, where locks may be held by threads that are not there.
  if (begins_import(pointer)) {
    const InsideNofrag inside;
    const std::shared_lock lock(gate());
    CUcontext context = nullptr;
    const bool somewhere = real().context_current(&context) == CUDA_SUCCESS && context != nullptr;
    if (somewhere && begins_import(pointer)) {
      return close_import(pointer);
    }
  }
  // It has errors for strangers, and for threads without a context.
  return call_real(Entry::k_cuIpcCloseMemHandle, pointer);
}

}  // namespace nofrag::preload
