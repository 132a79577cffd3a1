// PyTorch 2.8.
//
// Owns: nothing. Threads, failure: those of Core.
// Invariants: this file and its like hold all that differs between releases (abi.h).
#pragma once

#include <c10/cuda/CUDAAllocatorConfig.h>

#include "torch_plugin/native/abi/borrowed_allocator.h"
#include "torch_plugin/native/abi/core.h"
#include "torch_plugin/native/abi/cuda_config.h"

namespace nofrag::native {

inline TraceEntry make_entry(TraceEvent&& event,
                             c10::approx_time_t time,
                             std::string compile_context,
                             const std::string& /*user_metadata*/) {
  return {event.action,
          event.device,
          event.address,
          event.size,
          event.stream,
          event.pool,
          time,
          std::move(event.context),
          std::move(compile_context)};
}

class VersionedAllocator : public CUDAAllocator {
 public:
  void emptyCache(PoolId pool) override { core().empty_cache(pool); }
  SnapshotInfo snapshot(PoolId pool) override { return core().snapshot(pool, true); }
  void createOrIncrefPool(c10::DeviceIndex device,
                          PoolId pool,
                          CUDAAllocator* allocator) override {
    core().retain_pool(device, pool, borrowed(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, PoolId pool) override {
    core().set_use_on_oom(device, pool, true);
  }
  void recordHistory(bool enabled,
                     ContextRecorder recorder,
                     std::size_t max_entries,
                     RecordContext when,
                     bool clear_history) override {
    core().record_history({enabled, recorder, max_entries, when, clear_history, {}});
  }
  void pushCompileContext(std::string& text) override { core().push_compile_context(text); }
  void popCompileContext() override { core().pop_compile_context(); }
};

}  // namespace nofrag::native
