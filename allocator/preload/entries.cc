#include "preload/entries.h"

#include <atomic>
#include <cstring>

#include "preload/bootstrap.h"
#include "preload/copies/across.h"
#include "preload/hooks.h"
#include "preload/retry.h"

// The exported symbols. Written in assembly because they must leave every register and the stack as they
// found them, whatever the arguments; the names are the driver's, and another preloaded library may define
// them too: the hidden stub names are ours whoever comes first.
#if defined(__x86_64__)
// The rows' names are never expanded as macros on the way (cuda.h has macros of the driver's names): each
// macro below uses them with # and ## only.
#define NOFRAG_STUB(name)                                                                          \
  __asm__(                                                                                         \
      ".text\n.p2align 4\n"                                                                        \
      ".globl " name "\n.type " name                                                               \
      ", @function\n"                                                                              \
      ".globl nofrag_stub_" name "\n.hidden nofrag_stub_" name                                     \
      "\n"                                                                                         \
      ".type nofrag_stub_" name ", @function\n" name ":\nnofrag_stub_" name                        \
      ":\n.cfi_startproc\n  endbr64\n  jmp *nofrag_slot_" name "(%rip)\n.cfi_endproc\n.size " name \
      ", . - " name                                                                                \
      "\n"                                                                                         \
      "nofrag_lazy_" name ":\n.cfi_startproc\n  endbr64\n  lea nofrag_slot_" name                  \
      "(%rip), %r11\n  jmp nofrag_preload_lazy\n.cfi_endproc\n"                                    \
      ".pushsection .data\n.p2align 3\n.globl nofrag_slot_" name "\n.hidden nofrag_slot_" name     \
      "\n.type nofrag_slot_" name ", @object\n.size nofrag_slot_" name ", 8\nnofrag_slot_" name    \
      ": .quad nofrag_lazy_" name "\n.popsection\n");

// The first call of any symbol comes here with its slot in r11. Keeps all argument registers.
__asm__(
    ".text\n.p2align 4\n.type nofrag_preload_lazy, "
    "@function\nnofrag_preload_lazy:\n.cfi_startproc\n"
    "  push %rbp\n.cfi_adjust_cfa_offset 8\n"
    "  push %rdi\n.cfi_adjust_cfa_offset 8\n"
    "  push %rsi\n.cfi_adjust_cfa_offset 8\n"
    "  push %rdx\n.cfi_adjust_cfa_offset 8\n"
    "  push %rcx\n.cfi_adjust_cfa_offset 8\n"
    "  push %r8\n.cfi_adjust_cfa_offset 8\n"
    "  push %r9\n.cfi_adjust_cfa_offset 8\n"
    "  push %rax\n.cfi_adjust_cfa_offset 8\n"
    "  push %r11\n.cfi_adjust_cfa_offset 8\n"
    "  call nofrag_preload_find_driver\n"
    "  pop %r11\n.cfi_adjust_cfa_offset -8\n"
    "  pop %rax\n.cfi_adjust_cfa_offset -8\n"
    "  pop %r9\n.cfi_adjust_cfa_offset -8\n"
    "  pop %r8\n.cfi_adjust_cfa_offset -8\n"
    "  pop %rcx\n.cfi_adjust_cfa_offset -8\n"
    "  pop %rdx\n.cfi_adjust_cfa_offset -8\n"
    "  pop %rsi\n.cfi_adjust_cfa_offset -8\n"
    "  pop %rdi\n.cfi_adjust_cfa_offset -8\n"
    "  pop %rbp\n.cfi_adjust_cfa_offset -8\n"
    "  jmp *(%r11)\n.cfi_endproc\n.size nofrag_preload_lazy, . - nofrag_preload_lazy\n");

#define NOFRAG_HOOK(symbol) NOFRAG_STUB(#symbol)
#define NOFRAG_RETRY(symbol, ...) NOFRAG_STUB(#symbol)
#define NOFRAG_ACROSS(symbol, ...) NOFRAG_STUB(#symbol)
#include "preload/entries.def"
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS

extern "C" {
#define NOFRAG_HOOK(symbol)                                               \
  [[gnu::visibility("hidden")]] extern const char nofrag_stub_##symbol[]; \
  [[gnu::visibility("hidden")]] extern std::atomic<void*> nofrag_slot_##symbol;
#define NOFRAG_RETRY(symbol, ...)                                         \
  [[gnu::visibility("hidden")]] extern const char nofrag_stub_##symbol[]; \
  [[gnu::visibility("hidden")]] extern std::atomic<void*> nofrag_slot_##symbol;
#define NOFRAG_ACROSS(symbol, ...)                                        \
  [[gnu::visibility("hidden")]] extern const char nofrag_stub_##symbol[]; \
  [[gnu::visibility("hidden")]] extern std::atomic<void*> nofrag_slot_##symbol;
#include "preload/entries.def"
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS
}
#else
#error "the preload's stubs are written for x86-64"
#endif

namespace nofrag::preload {
namespace {

struct Row {
  const char* name;
  const char* stub;
  std::atomic<void*>* slot;
  void* hook;
  bool answers;  // a hook of its own, not a second call
};

// NOLINTBEGIN(bugprone-macro-parentheses): symbols and types
#define NOFRAG_HOOK(symbol)                 \
  {#symbol,                                 \
   nofrag_stub_##symbol,                    \
   &nofrag_slot_##symbol,                   \
   reinterpret_cast<void*>(&hook_##symbol), \
   true},
#define NOFRAG_RETRY(symbol, ...)                                         \
  {#symbol,                                                               \
   nofrag_stub_##symbol,                                                  \
   &nofrag_slot_##symbol,                                                 \
   reinterpret_cast<void*>(&Retry<__VA_ARGS__>::call<Entry::k_##symbol>), \
   false},
#define NOFRAG_ACROSS(symbol, ...)                                                                 \
  {#symbol,                                                                                        \
   nofrag_stub_##symbol,                                                                           \
   &nofrag_slot_##symbol,                                                                          \
   reinterpret_cast<void*>(                                                                        \
       &Across<__VA_ARGS__>::call<Entry::k_##symbol, has_order(#symbol), is_per_thread(#symbol)>), \
   false},
const Row kRows[] = {
#include "preload/entries.def"
};
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS
// NOLINTEND(bugprone-macro-parentheses)

std::atomic<void*> real_addresses[kEntryCount];
std::atomic<void*> driver_handle;
std::atomic<bool> filled;

CUresult answer_not_supported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult answer_not_initialized() {
  return CUDA_ERROR_NOT_INITIALIZED;
}

// The length of a symbol's name without _ptsz, _ptds and _vN.
std::size_t base_length(const char* name) {
  std::size_t length = std::strlen(name);
  for (const char* suffix : {"_ptsz", "_ptds"}) {
    if (length > 5 && std::strcmp(name + length - 5, suffix) == 0) {
      length -= 5;
    }
  }
  if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v') {
    length -= 3;
  }
  return length;
}

}  // namespace

const char* entry_name(std::size_t index) {
  return kRows[index].name;
}

void* entry_stub(std::size_t index) {
  return const_cast<char*>(kRows[index].stub);
}

void* real_entry(std::size_t index) {
  return real_addresses[index].load(std::memory_order_acquire);
}

bool entries_filled() {
  return filled.load(std::memory_order_acquire);
}

void fill_entries(void* library, bool act) {
  driver_handle.store(library, std::memory_order_release);
  for (std::size_t i = 0; i < kEntryCount; ++i) {
    void* const address = real_dlsym(library, kRows[i].name);
    real_addresses[i].store(address, std::memory_order_release);
  }
  for (std::size_t i = 0; i < kEntryCount; ++i) {
    void* target = real_entry(i);
    if (target == nullptr) {
      target = reinterpret_cast<void*>(&answer_not_supported);
    } else if (act) {
      target = kRows[i].hook;
    }
    kRows[i].slot->store(target, std::memory_order_release);
  }
  filled.store(true, std::memory_order_release);
}

void fill_entries_without_driver() {
  for (const Row& row : kRows) {
    row.slot->store(reinterpret_cast<void*>(&answer_not_initialized), std::memory_order_release);
  }
}

void* stub_for(const void* driver_address) {
  if (driver_address == nullptr) {
    return nullptr;
  }
  for (std::size_t i = 0; i < kEntryCount; ++i) {
    if (real_entry(i) == driver_address) {
      return entry_stub(i);
    }
  }
  return nullptr;
}

bool is_entry_name(const char* name) {
  for (const Row& row : kRows) {
    if (std::strcmp(row.name, name) == 0) {
      return true;
    }
  }
  return false;
}

bool is_unknown_version(const char* name, const void* driver_address) {
  const std::size_t length = std::strlen(name);
  for (const Row& row : kRows) {
    if (row.answers && base_length(row.name) == length &&
        std::memcmp(row.name, name, length) == 0) {
      return real_dlsym(driver_handle.load(std::memory_order_acquire), name) != driver_address;
    }
  }
  return false;
}

}  // namespace nofrag::preload
