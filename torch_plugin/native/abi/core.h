// Core: what the allocator does, by names that hold for every release of PyTorch; the subclasses of PyTorch's
// class (abi/*.h, adapter.h) pass their calls on to it.
//
// Owns: nothing; the one object is native_allocator.h's and lives as long as the process.
// Threads: any. Failure: c10 exceptions, as PyTorch's own allocator throws them.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch_plugin/native/abi/types.h"

namespace nofrag::native {

// What a segment of one stream holds (getExpandableSegmentSizes, from 2.10 on).
struct SegmentSize {
  cudaStream_t stream;
  bool small;
  std::size_t size;
};

class Core {
 public:
  Core() = default;
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  virtual ~Core() = default;

  virtual c10::DataPtr allocate_data(std::size_t size) = 0;
  [[nodiscard]] virtual c10::DeleterFnPtr deleter() const = 0;
  virtual void copy(void* to, const void* from, std::size_t size) const = 0;
  virtual void* allocate(std::size_t size) = 0;
  virtual void* allocate_on(std::size_t size, cudaStream_t stream) = 0;
  virtual void free(void* block) = 0;
  virtual void start(int device_count) = 0;
  virtual bool started() = 0;
  virtual void set_caching(bool wanted) = 0;
  [[nodiscard]] virtual bool caching() const = 0;
  virtual void record_stream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) = 0;
  virtual void* base_of(void* address, std::size_t* size) = 0;
  virtual void largest_block(int device, std::size_t* size) = 0;

  virtual double fraction(int device) = 0;
  virtual void set_fraction(double fraction, int device) = 0;
  virtual void empty_cache(PoolId pool) = 0;
  virtual DeviceStats stats(int device) = 0;
  virtual void reset_accumulated(int device) = 0;
  virtual void reset_peaks(int device) = 0;
  virtual std::vector<SegmentSize> segment_sizes(int device) = 0;
  virtual std::pair<std::size_t, std::size_t> memory_info(int device) = 0;

  virtual SnapshotInfo snapshot(PoolId pool, bool with_traces) = 0;
  virtual bool history_enabled() = 0;
  virtual void record_history(const HistorySettings& settings) = 0;
  virtual void annotate(const Annotations& metadata) = 0;
  virtual void push_compile_context(const std::string& text) = 0;
  virtual void pop_compile_context() = 0;
  virtual void set_user_metadata(const std::string& text) = 0;
  virtual std::string user_metadata() = 0;
  // Of a live block, from its allocation; and a trace event of its own for one.
  virtual Context context_of(const void* address) = 0;
  virtual void annotate_block(const void* address, const std::string& text) = 0;
  virtual void add_oom_observer(torch_cuda::OutOfMemoryObserver observer) = 0;
  virtual void add_tracker(torch_cuda::AllocatorTraceTracker tracker) = 0;

  virtual void begin_pool(int device, PoolId pool, StreamFilter filter) = 0;
  virtual void end_pool(int device, PoolId pool) = 0;
  virtual void release_pool(int device, PoolId pool) = 0;
  virtual int pool_uses(int device, PoolId pool) = 0;
  // `allocator`: where the pool's segments come from, or null. It must live as long as the pool.
  virtual void retain_pool(int device, PoolId pool, std::shared_ptr<CUDAAllocator> allocator) = 0;
  virtual void set_use_on_oom(int device, PoolId pool, bool use) = 0;
  virtual void set_no_split(int device, PoolId pool) = 0;
  virtual bool pool_holds(int device, PoolId pool, const std::unordered_set<void*>& blocks) = 0;
  virtual std::shared_ptr<torch_cuda::AllocatorState> checkpoint(int device, PoolId pool) = 0;
  virtual CheckpointDelta restore(int device,
                                  const std::shared_ptr<torch_cuda::AllocatorState>& state) = 0;

  virtual torch_cuda::ShareableHandle share(void* address) = 0;
  virtual std::shared_ptr<void> open_shared(const std::string& handle) = 0;
  virtual void enable_peer(int device, int accessed) = 0;
  virtual cudaError_t copy_async(void* to,
                                 int to_device,
                                 const void* from,
                                 int from_device,
                                 std::size_t size,
                                 cudaStream_t stream,
                                 bool peer_enabled) = 0;
};

// The one object, made at its first use.
Core& core();

}  // namespace nofrag::native
