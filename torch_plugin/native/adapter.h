// Adapter: the allocator as PyTorch calls it: its class, with every virtual function of this release passed on
// to Core.
//
// Owns: nothing. Threads: any. Failure: Core's.
// Invariants: what differs between releases is VersionedAllocator's (abi/).
#pragma once

#include "torch_plugin/native/abi/abi.h"

namespace nofrag::native {

class Adapter final : public VersionedAllocator {
 public:
  c10::DataPtr allocate(std::size_t size) override { return core().allocate_data(size); }
  c10::DeleterFnPtr raw_deleter() const override { return core().deleter(); }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    core().copy(to, from, size);
  }
  void* raw_alloc(std::size_t size) override { return core().allocate(size); }
  void* raw_alloc_with_stream(std::size_t size, cudaStream_t stream) override {
    return core().allocate_on(size, stream);
  }
  void raw_delete(void* block) override { core().free(block); }
  void init(int device_count) override { core().start(device_count); }
  bool initialized() override { return core().started(); }
  double getMemoryFraction(c10::DeviceIndex device) override { return core().fraction(device); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    core().set_fraction(fraction, device);
  }
  void enable(bool value) override { core().set_caching(value); }
  bool isEnabled() const override { return core().caching(); }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override {
    core().largest_block(device, largest);
  }
  void* getBaseAllocation(void* address, std::size_t* size) override {
    return core().base_of(address, size);
  }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    core().record_stream(data, stream);
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override { return core().stats(device); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { core().reset_accumulated(device); }
  void resetPeakStats(c10::DeviceIndex device) override { core().reset_peaks(device); }
  void beginAllocateToPool(c10::DeviceIndex device, PoolId pool, StreamFilter filter) override {
    core().begin_pool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, PoolId pool) override {
    core().end_pool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, PoolId pool) override {
    core().release_pool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, PoolId pool) override {
    return core().pool_uses(device, pool);
  }
  bool checkPoolLiveAllocations(c10::DeviceIndex device,
                                PoolId pool,
                                const std::unordered_set<void*>& expected) override {
    return core().pool_holds(device, pool, expected);
  }
  torch_cuda::ShareableHandle shareIpcHandle(void* address) override {
    return core().share(address);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return core().open_shared(handle);
  }
  bool isHistoryEnabled() override { return core().history_enabled(); }
  void recordAnnotation(const Annotations& metadata) override { core().annotate(metadata); }
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) override {
    core().add_oom_observer(std::move(observer));
  }
  void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) override {
    core().add_tracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex accessed) override {
    core().enable_peer(device, accessed);
  }
  cudaError_t memcpyAsync(void* to,
                          int to_device,
                          const void* from,
                          int from_device,
                          std::size_t size,
                          cudaStream_t stream,
                          bool peer_enabled) override {
    return core().copy_async(to, to_device, from, from_device, size, stream, peer_enabled);
  }
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                                 PoolId pool) override {
    return core().checkpoint(device, pool);
  }
  CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<torch_cuda::AllocatorState> state) override {
    return core().restore(device, state);
  }
  // What PyTorch's own is called: its settings are checked against it, and get_allocator_backend() shows it.
  std::string name() override { return "native"; }
};

// The one object, made at its first use and never destroyed.
Adapter& adapter();

}  // namespace nofrag::native
