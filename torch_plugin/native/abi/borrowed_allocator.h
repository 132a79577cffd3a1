// A pool's allocator in the releases that pass it as a plain pointer (2.8 to 2.10): its owner, the MemPool, keeps it
// alive as long as the pool.
//
// Owns: nothing. Threads: any. Failure: none.
// Invariants: the pointer is not deleted.
#pragma once

#include "torch_plugin/native/abi/types.h"

namespace nofrag::native {

inline std::shared_ptr<CUDAAllocator> borrowed(CUDAAllocator* allocator) {
  return {allocator, [](CUDAAllocator*) {}};
}

}  // namespace nofrag::native
