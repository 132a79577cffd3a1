#include "driver/real/driver_api.h"

#include <dlfcn.h>

namespace nofrag {
namespace {

template <typename Function>
bool resolve(void* library, SymbolLookup lookup, const char* symbol, Function* out) {
  void* address = lookup(library, symbol);
  *out = reinterpret_cast<Function>(address);
  return address != nullptr;
}

}  // namespace

bool DriverApi::load(const char* library, SymbolLookup lookup, DriverApi* out, std::string* error) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    *error = std::string("cannot load the CUDA driver: ") + (reason != nullptr ? reason : library);
    return false;
  }
  const char* missing = nullptr;
#define NOFRAG_CUDA_RESOLVE(member, function, symbol)   \
  if (!resolve(handle, lookup, symbol, &out->member)) { \
    missing = missing == nullptr ? (symbol) : missing;  \
  }
  NOFRAG_CUDA_ENTRIES(NOFRAG_CUDA_RESOLVE)
#undef NOFRAG_CUDA_RESOLVE
#define NOFRAG_CUDA_TRY(member, function, symbol) resolve(handle, lookup, symbol, &out->member);
  NOFRAG_CUDA_OPTIONAL_ENTRIES(NOFRAG_CUDA_TRY)
#undef NOFRAG_CUDA_TRY
  if (missing != nullptr) {
    *error = std::string(library) + " has no symbol " + missing +
             "; nofrag needs a driver for CUDA 10.2 or newer";
    return false;
  }
  return true;
}

}  // namespace nofrag
