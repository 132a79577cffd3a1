#include "preload/passed/passed.h"

#include <atomic>
#include <mutex>

#include "preload/captures.h"
#include "preload/devices.h"
#include "preload/mode.h"
#include "preload/passed/bounded_table.h"
#include "runtime/observe/passed_on.h"

namespace nofrag::preload {
namespace {

struct Block {
  std::uint64_t number = 0;
  std::uint64_t size = 0;
  CUcontext context = nullptr;
  int device = 0;
  bool primary = false;  // the context is the device's primary one
  // Zero, so that an empty table is all zeros, and no part of the file.
  PassedOnKind kind = PassedOnKind::kCreated;
};
struct Created {
  std::uint64_t number = 0;
  std::uint64_t size = 0;
  int device = 0;
  int handles = 0;
  int mappings = 0;
};
struct Mapped {
  std::uint64_t size = 0;
  std::uint64_t handle = 0;
  std::uint64_t number = 0;  // of the memory
};

constexpr unsigned kLogPlaces = 16;
std::mutex passed_mutex;
// Sync: passed_mutex
constinit BoundedTable<Block, kLogPlaces> blocks;
constinit BoundedTable<Created, kLogPlaces> created;
// By its number: memory without a handle whose last handle's value names other memory now. Its mappings hold it.
constinit BoundedTable<Created, kLogPlaces> outlived;
constinit BoundedTable<Mapped, kLogPlaces> mapped;
std::uint64_t last_number;
// A program that has no such memory does not lock.
std::atomic<std::size_t> block_count;
std::atomic<std::size_t> created_count;

// In the child of a fork the lock may be held by a thread that is not there.
bool any_of(const std::atomic<std::size_t>& count) {
  return count.load(std::memory_order_acquire) != 0 && !Process::instance().forked();
}

// Where the driver alone serves.
bool is_native_here() {
  const int device = current_device();
  return device >= 0 && seat(device).service.load(std::memory_order_relaxed) == Service::kNative;
}

// pre: the lock is held.
void update_counts() {
  block_count.store(blocks.size(), std::memory_order_release);
  created_count.store(created.size() + outlived.size(), std::memory_order_release);
}

void uncount(const Block& block) {
  note_passed_on(block.device, block.kind, -static_cast<std::int64_t>(block.size));
}

void uncount(const Created& memory) {
  note_passed_on(memory.device, PassedOnKind::kCreated, -static_cast<std::int64_t>(memory.size));
}

// A block whose address, or an array whose handle, comes again has ended. pre: the lock is held.
void give_up_key(const Block& block) {
  uncount(block);
}

// A handle whose value comes again is released, but its memory may still be mapped: then it lives on under its number.
// pre: the lock is held.
void give_up_key(const Created& memory) {
  if (memory.mappings == 0) {
    uncount(memory);
    return;
  }
  Created mapped_only = memory;
  mapped_only.handles = 0;
  if (!outlived.insert(memory.number, mapped_only)) {
    uncount(memory);
    note_uncounted(memory.device);
  }
}

// Adds an entry. What the key named before has lost it, whether we have noted that yet or not. pre: the lock is held.
template <typename Table, typename Entry>
void add(Table* table, std::uint64_t key, Entry entry, PassedOnKind kind) {
  if (const Entry* const before = table->find(key); before != nullptr) {
    give_up_key(*before);
    table->erase(key);
  }
  entry.number = ++last_number;
  if (key == 0 || entry.size == 0 || !table->insert(key, entry)) {
    note_uncounted(entry.device);
    return;
  }
  note_passed_on(entry.device, kind, static_cast<std::int64_t>(entry.size));
  update_counts();
}

template <typename Table>
std::uint64_t number_in(Table* table, std::uint64_t key, const std::atomic<std::size_t>& count) {
  if (!any_of(count)) {
    return 0;
  }
  const std::lock_guard lock(passed_mutex);
  const auto* const entry = table->find(key);
  return entry != nullptr ? entry->number : 0;
}

template <typename Gone>
void forget_if(Gone gone) {
  if (!any_of(block_count)) {
    return;
  }
  const std::lock_guard lock(passed_mutex);
  blocks.erase_if([&](const Block& block) {
    const bool ended = gone(block);
    if (ended) {
      uncount(block);
    }
    return ended;
  });
  update_counts();
}

// One holder fewer of the memory with this number, if it is in the table under `key`. pre: the lock is held.
template <typename Table>
void let_go_in(Table* table, std::uint64_t key, std::uint64_t number, int Created::*holders) {
  Created* const memory = table->find(key);
  if (memory == nullptr || memory->number != number || memory->*holders == 0) {
    return;
  }
  --(memory->*holders);
  if (memory->handles == 0 && memory->mappings == 0) {
    uncount(*memory);
    table->erase(key);
    update_counts();
  }
}

// The same, wherever it is: numbers are given once. pre: the lock is held.
void let_go(std::uint64_t handle, std::uint64_t number, int Created::*holders) {
  let_go_in(&created, handle, number, holders);
  let_go_in(&outlived, number, number, holders);
}

// pre: the lock is held.
void end_mapping(std::uint64_t address, const Mapped& mapping) {
  let_go(mapping.handle, mapping.number, &Created::mappings);
  mapped.erase(address);
}

}  // namespace

bool counts_passed() {
  return acting() && !InsideNofrag::here() && !Process::instance().exiting();
}

void note_block(std::uint64_t key, std::uint64_t size, PassedOnKind kind) {
  CUcontext context = nullptr;
  CUdevice device = -1;
  if (real().context_current(&context) != CUDA_SUCCESS || context == nullptr ||
      real().context_device(&device) != CUDA_SUCCESS) {
    return;
  }
  const Block block = {0, size, context, device, device_of(context) >= 0, kind};
  const std::lock_guard lock(passed_mutex);
  add(&blocks, key, block, kind);
}

CUresult note_allocated(CUresult result, const CUdeviceptr* pointer, std::uint64_t size) {
  if (result == CUDA_SUCCESS && counts_passed() && !is_native_here()) {
    note_block(*pointer, size, PassedOnKind::kAllocated);
  }
  return result;
}

CUresult note_pool_block(CUresult result,
                         const CUdeviceptr* pointer,
                         std::uint64_t size,
                         CUstream stream) {
  if (result == CUDA_SUCCESS && counts_passed() && !is_native_here() && !is_capturing(stream)) {
    note_block(*pointer, size, PassedOnKind::kPools);
  }
  return result;
}

std::uint64_t block_number(std::uint64_t key) {
  return number_in(&blocks, key, block_count);
}

void drop_block(std::uint64_t key, std::uint64_t number) {
  const std::lock_guard lock(passed_mutex);
  const Block* const block = blocks.find(key);
  if (block != nullptr && block->number == number) {
    uncount(*block);
    blocks.erase(key);
    update_counts();
  }
}

void forget_blocks(CUcontext context) {
  // (Memory of pools outlives the primary context that it was taken in; another may be where that one was.)
  forget_if([&](const Block& block) {
    return block.context == context && !(block.primary && block.kind == PassedOnKind::kPools);
  });
}

void forget_primary_blocks(int device) {
  forget_if([&](const Block& block) {
    return block.primary && block.device == device && block.kind != PassedOnKind::kPools;
  });
}

void note_created(std::uint64_t handle, std::uint64_t size, int device) {
  const std::lock_guard lock(passed_mutex);
  add(&created, handle, Created{0, size, device, 1, 0}, PassedOnKind::kCreated);
}

std::uint64_t created_number(std::uint64_t handle) {
  return number_in(&created, handle, created_count);
}

CUresult note_retained(CUresult result, const unsigned long long* handle) {
  if (result == CUDA_SUCCESS && any_of(created_count)) {
    const std::lock_guard lock(passed_mutex);
    if (Created* const memory = created.find(*handle); memory != nullptr) {
      ++memory->handles;
    }
  }
  return result;
}

void note_released(std::uint64_t handle, std::uint64_t number) {
  const std::lock_guard lock(passed_mutex);
  let_go(handle, number, &Created::handles);
}

void note_mapped(std::uint64_t address, std::uint64_t size, std::uint64_t handle) {
  if (!any_of(created_count)) {
    return;
  }
  const std::lock_guard lock(passed_mutex);
  if (const Mapped* const found = mapped.find(address); found != nullptr) {
    const Mapped stale = *found;  // it ended without our having noted it
    end_mapping(address, stale);
  }
  Created* const memory = created.find(handle);
  if (memory == nullptr || memory->handles == 0) {
    return;  // not known: memory is mapped by a handle that is held, so this value names some other memory now
  }
  if (mapped.insert(address, {size, handle, memory->number})) {
    ++memory->mappings;
  } else {
    note_uncounted(memory->device);
  }
}

// A call may end several mappings, each of them whole.
void note_unmapped(std::uint64_t address, std::uint64_t size) {
  if (!any_of(created_count)) {
    return;
  }
  const std::lock_guard lock(passed_mutex);
  const std::uint64_t end = address + size;
  while (address < end) {
    const Mapped* const found = mapped.find(address);
    if (found == nullptr || found->size == 0) {
      break;
    }
    const Mapped mapping = *found;
    end_mapping(address, mapping);
    address += mapping.size;
  }
  if (address < end && mapped.size() > 0) {
    // Behind a mapping that is not known (imported memory, nofrag's): whichever lie in the range.
    mapped.erase_if([&](std::uint64_t key, const Mapped& mapping) {
      const bool inside = key >= address && key < end;
      if (inside) {
        let_go(mapping.handle, mapping.number, &Created::mappings);
      }
      return inside;
    });
  }
}

}  // namespace nofrag::preload
