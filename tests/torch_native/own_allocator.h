// OwnAllocator: a user's allocator for a MemPool, of addresses that nobody touches.
//
// Owns: nothing but notes of what it was asked for. Layer: tests. Threads: raw_alloc one at a time (a pool asks under
// its lock), raw_delete any. Units: bytes. Failure: as the test wants it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "native_fixture.h"

namespace nofrag::test {

class OwnAllocator : public native::VersionedAllocator {
 public:
  void* raw_alloc(std::size_t size) override {
    sizes.push_back(size);
    if (empty) {
      return nullptr;
    }
    next_ += std::size_t{1} << 32;
    return reinterpret_cast<void*>(next_);  // NOLINT(performance-no-int-to-ptr)
  }
  void raw_delete(void* /*block*/) override {
    ++freed;
    TORCH_CHECK(!throws, "from the user's allocator");
  }
  std::vector<std::size_t> sizes;
  std::atomic<int> freed{0};
  bool throws = false;
  bool empty = false;

  // Never asked:
  c10::DataPtr allocate(std::size_t) override { return {}; }
  void copy_data(void*, const void*, std::size_t) const override {}
  void* raw_alloc_with_stream(std::size_t, cudaStream_t) override { return nullptr; }
  void init(int) override {}
  bool initialized() override { return true; }
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  void setMemoryFraction(double, c10::DeviceIndex) override {}
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void cacheInfo(c10::DeviceIndex, std::size_t*) override {}
  void* getBaseAllocation(void* address, std::size_t*) override { return address; }
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override {}
  torch_cuda::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  void beginAllocateToPool(c10::DeviceIndex, PoolId, native::StreamFilter) override {}
  void endAllocateToPool(c10::DeviceIndex, PoolId) override {}
  void releasePool(c10::DeviceIndex, PoolId) override {}
  torch_cuda::ShareableHandle shareIpcHandle(void*) override { return {}; }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { return nullptr; }
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver) override {}
  void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker) override {}
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override {}
  cudaError_t memcpyAsync(void*, int, const void*, int, std::size_t, cudaStream_t, bool) override {
    return cudaSuccess;
  }
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(c10::DeviceIndex,
                                                                 PoolId) override {
    return nullptr;
  }
  torch_cuda::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex, std::shared_ptr<torch_cuda::AllocatorState>) override {
    return {};
  }
  std::string name() override { return "own"; }

 private:
  std::size_t next_ = std::size_t{1} << 50;
};

}  // namespace nofrag::test
