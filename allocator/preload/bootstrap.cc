// The loader's functions, ours before them, and the driver's library.
#include "preload/bootstrap.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "preload/entries.h"
#include "preload/mode.h"
#include "preload/real_calls.h"

extern "C" {
// Written once with the same value by whoever comes first; read by the assembly below.
[[gnu::visibility("hidden")]] std::atomic<void*> nofrag_real_dlsym;
[[gnu::visibility("hidden")]] std::atomic<void*> nofrag_real_dlopen;

// In rax and rdx: what to answer, and whether we answer at all.
struct NofragLookup {
  void* value;
  std::uintptr_t decided;
};
[[gnu::visibility("hidden"), gnu::used]] NofragLookup nofrag_preload_dlsym(void* handle,
                                                                           const char* name);
[[gnu::visibility("hidden"), gnu::used]] int nofrag_preload_dlopen_flags(int flags);
[[gnu::visibility("hidden"), gnu::used]] void nofrag_preload_find_driver();
}

// Sanitizers look for their own functions through dlsym before any code of ours may run.
#if !defined(NOFRAG_NO_LOADER_HOOKS)
__asm__(
    ".text\n.p2align 4\n.globl dlsym\n.type dlsym, @function\ndlsym:\n.cfi_startproc\n"
    "  endbr64\n"
    "  mov nofrag_real_dlsym(%rip), %rax\n"
    "  test %rax, %rax\n"
    "  jz 1f\n"
    "  test %rsi, %rsi\n"
    "  jz 2f\n"
    "  cmpb $'c', (%rsi)\n"
    "  jne 2f\n"
    "  cmpb $'u', 1(%rsi)\n"
    "  jne 2f\n"
    "1:\n"
    "  push %rdi\n.cfi_adjust_cfa_offset 8\n"
    "  push %rsi\n.cfi_adjust_cfa_offset 8\n"
    "  sub $8, %rsp\n.cfi_adjust_cfa_offset 8\n"
    "  call nofrag_preload_dlsym\n"
    "  add $8, %rsp\n.cfi_adjust_cfa_offset -8\n"
    "  pop %rsi\n.cfi_adjust_cfa_offset -8\n"
    "  pop %rdi\n.cfi_adjust_cfa_offset -8\n"
    "  test %rdx, %rdx\n"
    "  jnz 3f\n"
    "  mov nofrag_real_dlsym(%rip), %rax\n"
    "2:\n"
    "  jmp *%rax\n"
    "3:\n"
    "  ret\n.cfi_endproc\n.size dlsym, . - dlsym\n");

// 8 is RTLD_DEEPBIND.
__asm__(
    ".text\n.p2align 4\n.globl dlopen\n.type dlopen, @function\ndlopen:\n.cfi_startproc\n"
    "  endbr64\n"
    "  mov nofrag_real_dlopen(%rip), %rax\n"
    "  test %rax, %rax\n"
    "  jz 1f\n"
    "  test $8, %esi\n"
    "  jz 2f\n"
    "1:\n"
    "  push %rdi\n.cfi_adjust_cfa_offset 8\n"
    "  mov %esi, %edi\n"
    "  call nofrag_preload_dlopen_flags\n"
    "  mov %eax, %esi\n"
    "  pop %rdi\n.cfi_adjust_cfa_offset -8\n"
    "  mov nofrag_real_dlopen(%rip), %rax\n"
    "2:\n"
    "  jmp *%rax\n.cfi_endproc\n.size dlopen, . - dlopen\n");
#endif

static_assert(RTLD_DEEPBIND == 8);

namespace nofrag::preload {
namespace {

// dlsym cannot find itself: that would be ours. dlvsym is nobody's hook.
void* loader_function(const char* name) {
  for (const char* version : {"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.1"}) {
    if (void* found = dlvsym(RTLD_NEXT, name, version); found != nullptr) {
      return found;
    }
  }
  return nullptr;
}

void* no_such_symbol(void* /*handle*/, const char* /*name*/) {
  return nullptr;
}

void* no_such_library(const char* /*file*/, int /*flags*/) {
  return nullptr;
}

void find_loader() {
  if (nofrag_real_dlopen.load(std::memory_order_acquire) == nullptr) {
    void* const found = loader_function("dlopen");
    nofrag_real_dlopen.store(found != nullptr ? found : reinterpret_cast<void*>(&no_such_library),
                             std::memory_order_release);
  }
  if (nofrag_real_dlsym.load(std::memory_order_acquire) == nullptr) {
    void* const found = loader_function("dlsym");
    nofrag_real_dlsym.store(found != nullptr ? found : reinterpret_cast<void*>(&no_such_symbol),
                            std::memory_order_release);
  }
}

void* driver_library(bool load) {
  find_loader();
  const auto open = reinterpret_cast<void* (*)(const char*, int)>(
      nofrag_real_dlopen.load(std::memory_order_acquire));
  void* library = open("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr && load) {
    library = open("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  }
  return library;
}

// "cuMemAlloc", but neither "cudaMalloc" nor "cublasCreate", "cudnnCreate", "curl_easy_init".
bool looks_like_entry(const char* name) {
  return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

NofragLookup look_up(void* handle, const char* name) {
  constexpr NofragLookup kAsk{nullptr, 0};
  if (name == nullptr || !looks_like_entry(name) || !is_entry_name(name)) {
    return kAsk;
  }
  const bool found_driver = find_driver(false);
  const auto instead = [](void* found) {
    void* const stub = acting() ? stub_for(found) : nullptr;
    return NofragLookup{stub != nullptr ? stub : found, 1};
  };
  if (handle == RTLD_DEFAULT) {
    // What comes after us is what the caller would find if we were not here. If there is nothing: either the
    // driver is not loaded, and a caller who wants to know that must not find our symbol, or it is only in
    // the caller's own scope.
    void* const found = real_dlsym(RTLD_NEXT, name);
    return found != nullptr || !found_driver ? instead(found) : kAsk;
  }
  if (handle == RTLD_NEXT) {
    // Means the caller, whom we cannot be; but if what comes after us is the driver, then it is what comes
    // after the caller, too, and if it is nothing, then a caller in front of us must not find us.
    void* const found = real_dlsym(RTLD_NEXT, name);
    const bool nothing = found == nullptr && !found_driver;
    return nothing || (acting() && stub_for(found) != nullptr) ? instead(found) : kAsk;
  }
  // A handle means the same whoever asks.
  return found_driver && acting() ? instead(real_dlsym(handle, name)) : kAsk;
}

}  // namespace

void* real_dlsym(void* handle, const char* name) {
  find_loader();
  return reinterpret_cast<void* (*)(void*, const char*)>(
      nofrag_real_dlsym.load(std::memory_order_acquire))(handle, name);
}

bool find_driver(bool load) {
  if (entries_filled()) {
    return true;
  }
  void* const library = driver_library(load);
  if (library == nullptr) {
    return false;
  }
  bool act = decide_to_act();
  if (const char* missing = nullptr; act && !fill_real_calls(library, &missing)) {
    say("this driver has no %s; the preload does nothing", missing);
    act = false;
  }
  fill_entries(library, act);
  return true;
}

}  // namespace nofrag::preload

NofragLookup nofrag_preload_dlsym(void* handle, const char* name) {
  nofrag::preload::find_loader();
  return nofrag::preload::look_up(handle, name);
}

int nofrag_preload_dlopen_flags(int flags) {
  nofrag::preload::find_loader();
  // A library that binds to its own dependencies first would find the driver behind our back.
  return nofrag::preload::preloaded() && nofrag::preload::decide_to_act() ? flags & ~RTLD_DEEPBIND
                                                                          : flags;
}

void nofrag_preload_find_driver() {
  if (!nofrag::preload::find_driver(true)) {
    nofrag::preload::fill_entries_without_driver();
  }
}
