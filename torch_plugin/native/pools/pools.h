// Pools: which pool an allocation belongs to, and who uses the pools: graphs, trees of graphs, MemPools.
//
// Owns: the use counts as PyTorch sees them, the filters of pools that are being filled, the allocators of
// custom pools. The memory is nofrag's pools', which are begun, used and released alongside.
// Invariants: a pool that is used is used as often in nofrag.
// Threads: any, one mutex; filters are asked without it, by the allocating thread, and may throw.
// Failure: c10::Error where PyTorch's own allocator asserts.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "torch_plugin/native/abi/types.h"
#include "torch_plugin/native/pools/custom_pool.h"

namespace nofrag::native {

// Where an allocation goes.
struct Destination {
  PoolId pool{0, 0};
  bool no_split = false;
  std::shared_ptr<CustomPool> custom;
  [[nodiscard]] bool is_default() const { return pool == PoolId{0, 0}; }
};

class Pools {
 public:
  // The innermost pool of the device being filled whose filter accepts the stream, else the default one.
  [[nodiscard]] Destination route(int device, cudaStream_t stream) const {
    return filling_.load(std::memory_order_acquire) == 0 ? Destination{} : ask(device, stream);
  }

  void begin(DeviceState& device, PoolId pool, StreamFilter filter);
  void end(DeviceState& device, PoolId pool);
  void release(DeviceState& device, PoolId pool);
  void retain(DeviceState& device, PoolId pool, std::shared_ptr<CUDAAllocator> allocator);
  [[nodiscard]] int uses(int device, PoolId pool) const;
  [[nodiscard]] bool exists(int device, PoolId pool) const;
  [[nodiscard]] bool no_split(int device, PoolId pool) const;
  void set_use_on_oom(DeviceState& device, PoolId pool, bool use);
  void set_no_split(int device, PoolId pool);
  // Gives back what released pools hold: of one, or (of {0, 0}) of all. What custom pools cannot give back while a
  // pool of the device is filled goes when the last one ends.
  void empty(int device, PoolId pool);
  // Custom pools that serve the default pool when memory is short.
  [[nodiscard]] std::vector<Destination> lenders(int device) const;
  // Those of the device with segments of their own.
  [[nodiscard]] std::vector<std::pair<PoolId, std::shared_ptr<CustomPool>>> custom(
      int device) const;

 private:
  // Custom pools serve while a pool is filled, when they may ask nobody; so they ask before and after.
  void settle_custom(int device) const;
  void empty_later(int device);

  struct State {
    int uses = 0;
    bool no_split = false;
    bool lends = false;
    bool empty_later = false;  // once no pool of the device is filled
    std::shared_ptr<CustomPool> custom;
  };
  struct Filling {
    int device;
    PoolId pool;
    std::shared_ptr<const StreamFilter> filter;
  };
  using Key = std::pair<int, PoolId>;

  [[nodiscard]] Destination ask(int device, cudaStream_t stream) const;
  void end_locked(DeviceState& device, PoolId pool);
  State& used(int device, PoolId pool);

  mutable std::mutex mutex_;
  std::atomic<int> filling_{0};
  std::map<Key, State> states_;    // Sync: mutex_
  std::vector<Filling> fillings_;  // Sync: mutex_, innermost last
};

}  // namespace nofrag::native
