// Entries: the driver entries that the preload stands before (entries.def), and their real addresses.
//
// Owns: for each entry an exported symbol (a stub that jumps through its slot), the slot, and the address in
// the real driver. Layer: preload. A slot holds the way to find out, then either our hook or the real entry:
// where the preload does not act, an exported symbol is one jump to the driver and nothing else.
// Threads: any; finding out twice at once gives the same answers. Failure: a driver without an entry leaves
// its address null; calling it answers CUDA_ERROR_NOT_SUPPORTED. Cost: one indirect jump a call.
#pragma once

#include <cstddef>

#include "driver/real/driver_api.h"

namespace nofrag::preload {

enum class Entry : unsigned char {
#define NOFRAG_HOOK(symbol) k_##symbol,
#define NOFRAG_RETRY(symbol, ...) k_##symbol,
#define NOFRAG_ACROSS(symbol, ...) k_##symbol,
#include "preload/entries.def"
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS
  kCount
};
inline constexpr std::size_t kEntryCount = static_cast<std::size_t>(Entry::kCount);

// "cuMemAlloc_v2"; index 0 to kEntryCount - 1.
[[nodiscard]] const char* entry_name(std::size_t index);
// What programs are given instead of the driver's address.
[[nodiscard]] void* entry_stub(std::size_t index);
// The driver's own; null before find_driver, and where the driver lacks it.
[[nodiscard]] void* real_entry(std::size_t index);
[[nodiscard]] inline void* real_entry(Entry entry) {
  return real_entry(static_cast<std::size_t>(entry));
}

// Fills the addresses from a loaded libcuda.so.1 and points the slots at hooks (`act`) or at the driver.
void fill_entries(void* library, bool act);
// Without a driver: what is called answers CUDA_ERROR_NOT_INITIALIZED.
void fill_entries_without_driver();
[[nodiscard]] bool entries_filled();

// The stub that stands for this address of the driver; null if none does.
[[nodiscard]] void* stub_for(const void* driver_address);
// Is it one of the names in entries.def?
[[nodiscard]] bool is_entry_name(const char* name);
// `name` is one that has a hook, in a version that came after it. (What came before it is exported by the bare
// name, is of 32-bit days, and neither takes nor gives what later ones know.)
[[nodiscard]] bool is_unknown_version(const char* name, const void* driver_address);

// The driver's entry, called as it is declared: the arguments' types are its parameters' types.
template <typename... Arguments>
CUresult call_real(Entry entry, Arguments... arguments) {
  void* const address = real_entry(entry);
  if (address == nullptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return reinterpret_cast<CUresult (*)(Arguments...)>(address)(arguments...);
}

}  // namespace nofrag::preload
