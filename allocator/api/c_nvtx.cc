// What NVTX calls in the library that NVTX_INJECTION64_PATH names; its name and its type are NVTX's.
#include <cstdint>

#include <nofrag/nofrag.h>

#include "runtime/nvtx_listener.h"

// NOLINTNEXTLINE(readability-identifier-naming): NVTX looks for this name
extern "C" NOFRAG_API int InitializeInjectionNvtx2(const void* (*export_table)(std::uint32_t));

// NOLINTNEXTLINE(readability-identifier-naming): the same
int InitializeInjectionNvtx2(const void* (*export_table)(std::uint32_t)) {
  return nofrag::listen_to_nvtx(export_table);
}
