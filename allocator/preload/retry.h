// Retry: a driver call that is passed on, and made once more after our idle memory went back if it was out of
// memory.
//
// Owns: nothing. Layer: preload. Threads: any. Failure: the driver's answer, of the second call if there was
// one. No second call while a stream is captured: giving memory back waits, which a capture does not survive.
// Cost: nothing beside the call while it succeeds.
#pragma once

#include "preload/entries.h"

namespace nofrag::preload {

// Gives our idle memory of every device back to the driver. False if there was none, or it must not now.
bool give_idle_memory_back();

template <typename... Arguments>
struct Retry {
  template <Entry entry>
  static CUresult call(Arguments... arguments) {
    const CUresult result = call_real(entry, arguments...);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !give_idle_memory_back()) [[likely]] {
      return result;
    }
    return call_real(entry, arguments...);
  }
};

}  // namespace nofrag::preload
