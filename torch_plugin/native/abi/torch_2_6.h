// PyTorch 2.6 and 2.7.
//
// Owns: nothing. Threads, failure: those of Core.
// Invariants: this file and its like hold all that differs between releases (abi.h).
#pragma once

#include <c10/cuda/CUDAAllocatorConfig.h>

#include "torch_plugin/native/abi/core.h"
#include "torch_plugin/native/abi/cuda_config.h"

namespace nofrag::native {

inline TraceEntry make_entry(TraceEvent&& event,
                             c10::approx_time_t time,
                             const std::string& /*compile_context*/,
                             const std::string& /*user_metadata*/) {
  return {event.action,
          event.device,
          event.address,
          event.size,
          event.stream,
          time,
          std::move(event.context)};
}

class VersionedAllocator : public CUDAAllocator {
 public:
  void emptyCache() override { core().empty_cache({0, 0}); }
  SnapshotInfo snapshot() override { return core().snapshot({0, 0}, true); }
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, PoolId pool) override {
    core().retain_pool(device, pool, nullptr);
  }
  void recordHistory(bool enabled,
                     ContextRecorder recorder,
                     std::size_t max_entries,
                     RecordContext when) override {
    core().record_history({enabled, recorder, max_entries, when, true, {}});
  }
};

}  // namespace nofrag::native
