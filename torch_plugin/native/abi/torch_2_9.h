// PyTorch 2.9 and 2.10.
//
// Owns: nothing. Threads, failure: those of Core.
// Invariants: this file and its like hold all that differs between releases (abi.h).
#pragma once

#include "torch_plugin/native/abi/accelerator_config.h"
#include "torch_plugin/native/abi/borrowed_allocator.h"
#include "torch_plugin/native/abi/core.h"

namespace nofrag::native {

inline TraceEntry make_entry(TraceEvent&& event,
                             c10::approx_time_t time,
                             std::string compile_context,
                             [[maybe_unused]] std::string user_metadata) {
  return {event.action,
          event.device,
          event.address,
          event.size,
          event.stream,
          event.pool,
          time,
          std::move(event.context),
          std::move(compile_context)
#if NOFRAG_TORCH_MINOR >= 10
              ,
          std::move(user_metadata)
#endif
  };
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
#if NOFRAG_TORCH_MINOR >= 10
  void setNoSplit(c10::DeviceIndex device, PoolId pool) override {
    core().set_no_split(device, pool);
  }
  void setUserMetadata(const std::string& text) override { core().set_user_metadata(text); }
  std::string getUserMetadata() override { return core().user_metadata(); }
  std::vector<torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override {
    std::vector<torch_cuda::StreamSegmentSize> sizes;
    for (const SegmentSize& segment : core().segment_sizes(device)) {
      sizes.emplace_back(segment.stream, segment.small, segment.size);
    }
    return sizes;
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return core().memory_info(device);
  }
#endif
};

}  // namespace nofrag::native
