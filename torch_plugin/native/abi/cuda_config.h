// The settings of PYTORCH_CUDA_ALLOC_CONF, for the releases that keep them in CUDAAllocatorConfig (up to 2.8).
//
// Owns: nothing. Threads: any, as PyTorch's own. Failure: none.
// Invariants: the same functions as in accelerator_config.h.
#pragma once

#include "torch_plugin/native/abi/types.h"

namespace nofrag::native {

inline torch_cuda::AllocatorConfigInfo config_info() {
  using Config = torch_cuda::CUDAAllocatorConfig;
  torch_cuda::AllocatorConfigInfo info{};
  info.garbage_collection_threshold = Config::garbage_collection_threshold();
  info.max_split_size = Config::max_split_size();
  info.pinned_num_register_threads = Config::pinned_num_register_threads();
  info.expandable_segments = Config::expandable_segments();
  info.release_lock_on_malloc = Config::release_lock_on_cudamalloc();
  info.pinned_use_host_register = Config::pinned_use_cuda_host_register();
  info.last_allocator_settings = Config::last_allocator_settings();
  info.roundup_power2_divisions = Config::roundup_power2_divisions();
  return info;
}

inline std::size_t rounding_divisions(std::size_t size) {
  return torch_cuda::CUDAAllocatorConfig::roundup_power2_divisions(size);
}

inline std::int64_t max_split_size() {
  return static_cast<std::int64_t>(torch_cuda::CUDAAllocatorConfig::max_split_size());
}

inline double initial_fraction() {
  return 1.0;
}

}  // namespace nofrag::native
