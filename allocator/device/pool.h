// Pool: one heap with its users: the default pool, or the pool of a graph capture or a framework. Route:
// which streams a pool being filled serves.
//
// Layer: device (private header).
// Invariants: a pool without live blocks, kept blocks and users may be dropped (reclaim.cc).
// Threads: under the device's mutex, but for Route::filter and Route::asking.
// Failure: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/units.h"
#include "device/device_allocator.h"
#include "heap/range_heap.h"

namespace nofrag {

struct Pool {
  PoolKey key;
  std::uint64_t use_count = 0;
  std::uint64_t live_blocks = 0;
  // Its free memory serves requests of the default pool that would fail.
  bool lends_when_short = false;
  // Private pools only: released, and the device was idle since, so that no graph replay can still
  // touch what is free in it.
  bool settled = false;
  // Plain backend: freed blocks that a captured graph may still hold, kept until the release.
  std::vector<Block*> kept;
  RangeHeap heap;

  Pool(PoolKey pool_key, HeapContext& context, RangeHeap::Sharing sharing)
      : key(pool_key), heap(context, sharing) {}
  [[nodiscard]] bool is_private() const { return heap.sharing() == RangeHeap::Sharing::kPrivate; }
  // May its idle handles serve others?
  [[nodiscard]] bool lends() const { return !is_private() || (use_count == 0 && settled); }
};

// Addresses that stay mapped as they are, and how often that was asked for.
struct Pin {
  VirtAddr end;
  std::uint64_t count = 0;
};

// One begin of a pool. Filters are asked without the device lock: a framework's may throw (PyTorch's
// does on a CUDA error), and its exception passes through frames that cannot unlock, because they are
// built without exceptions and against another C++ runtime than the one that throws.
struct Route {
  PoolKey pool;
  StreamFilter filter;
  std::atomic<int> asking{0};  // threads inside the filter; one that threw never comes back

  Route(PoolKey key, StreamFilter accepts) : pool(key), filter(std::move(accepts)) {}
};
using Routes = std::vector<std::shared_ptr<Route>>;

}  // namespace nofrag
