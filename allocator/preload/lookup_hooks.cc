// cuGetProcAddress: the driver answers first, and what it answers decides; never the name, which means other
// functions in other versions.
#include <cstring>

#include "preload/entries.h"
#include "preload/hooks.h"
#include "preload/mode.h"

namespace nofrag::preload {
namespace {

void substitute(const char* name, void** function) {
  if (function == nullptr || *function == nullptr || !acting()) {
    return;
  }
  if (void* const stub = stub_for(*function); stub != nullptr) {
    *function = stub;
    return;
  }
  // A version that we do not know. Taking some entries over and not others would send pointers of ours to
  // functions of theirs.
  if (name != nullptr && is_unknown_version(name, *function)) {
    say("this driver has a version of %s that nofrag does not know; calls of it are not seen",
        name);
  }
}

}  // namespace

CUresult hook_cuGetProcAddress(const char* name,
                               void** function,
                               int version,
                               unsigned long long flags) {
  const CUresult result = call_real(Entry::k_cuGetProcAddress, name, function, version, flags);
  if (result == CUDA_SUCCESS) {
    substitute(name, function);
  }
  return result;
}

CUresult hook_cuGetProcAddress_v2(
    const char* name, void** function, int version, unsigned long long flags, int* status) {
  const CUresult result =
      call_real(Entry::k_cuGetProcAddress_v2, name, function, version, flags, status);
  if (result == CUDA_SUCCESS) {
    substitute(name, function);
  }
  return result;
}

}  // namespace nofrag::preload
