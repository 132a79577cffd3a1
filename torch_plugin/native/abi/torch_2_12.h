// PyTorch 2.12 to 2.14: 2.11's functions and the later ones.
//
// Owns: nothing. Threads, failure: those of Core.
// Invariants: this file and its like hold all that differs between releases (abi.h).
#pragma once

#define VersionedAllocator AllocatorOfTorch211  // NOLINT(cppcoreguidelines-macro-usage): the same class, further down
#include "torch_plugin/native/abi/torch_2_11.h"
#undef VersionedAllocator

namespace nofrag::native {

class VersionedAllocator : public AllocatorOfTorch211 {
 public:
  Context getContextForPointer(const void* address) override { return core().context_of(address); }
  // nofrag refuses nothing before it has tried: there is nothing to observe.
  void attachOomRejectionObserver(torch_cuda::OomRejectionObserver /*observer*/) override {}
#if NOFRAG_TORCH_MINOR >= 14
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void* address, const std::string& text) override {
    core().annotate_block(address, text);
  }
#endif
};

}  // namespace nofrag::native
