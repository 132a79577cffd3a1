// The settings of PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF, for the releases that keep them for all
// accelerators in one place (2.9 and later).
//
// Owns: nothing. Threads: any, as PyTorch's own. Failure: none.
#pragma once

#include "torch_plugin/native/abi/types.h"

namespace nofrag::native {

using AcceleratorConfig = c10::CachingAllocator::AcceleratorAllocatorConfig;

inline torch_cuda::AllocatorConfigInfo config_info() {
  using Cuda = torch_cuda::CUDAAllocatorConfig;
  torch_cuda::AllocatorConfigInfo info{};
  info.garbage_collection_threshold = AcceleratorConfig::garbage_collection_threshold();
  info.max_split_size = AcceleratorConfig::max_split_size();
  info.pinned_num_register_threads = Cuda::pinned_num_register_threads();
  info.expandable_segments = AcceleratorConfig::use_expandable_segments();
  info.release_lock_on_malloc = Cuda::release_lock_on_cudamalloc();
  info.pinned_use_host_register = Cuda::pinned_use_cuda_host_register();
  info.graph_capture_record_stream_reuse = Cuda::graph_capture_record_stream_reuse();
  info.last_allocator_settings = AcceleratorConfig::last_allocator_settings();
  info.roundup_power2_divisions = AcceleratorConfig::roundup_power2_divisions();
  return info;
}

// Into how many steps a request of this size is rounded between powers of two; 0 or 1: none.
inline std::size_t rounding_divisions(std::size_t size) {
  return AcceleratorConfig::roundup_power2_divisions(size);
}

inline std::int64_t max_split_size() {
  return static_cast<std::int64_t>(AcceleratorConfig::max_split_size());
}

// The part of a device's memory that the settings allow.
inline double initial_fraction() {
#if NOFRAG_TORCH_MINOR >= 10
  return torch_cuda::CUDAAllocatorConfig::per_process_memory_fraction();
#else
  return 1.0;
#endif
}

}  // namespace nofrag::native
