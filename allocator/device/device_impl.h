// DeviceAllocator::Impl: the state of one device allocator, and the moves that its parts share.
//
// Layer: device (private header). Everything here runs under `mutex` unless it says otherwise.
// Files: device_allocator.cc (the public calls), ladder.cc (one allocation from hit to failure),
// backing.cc (physical memory under a placement), reclaim.cc (what is idle, done or released goes
// on), report.cc (statistics and the out-of-memory report).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "device/device_allocator.h"
#include "heap/range_heap.h"
#include "index/address_map.h"
#include "physical/physical_memory.h"
#include "range/address_space.h"
#include "stream/streams.h"

namespace nofrag {

// Blocks are placed and sized in this unit. PyTorch's own rounding; two live blocks then never
// share a cache line (128 B on every device to date).
inline constexpr Bytes kBlockUnit{512};

struct Pool {
  PoolKey key;
  RangeHeap heap;
  std::uint64_t use_count = 0;
  std::uint64_t live_blocks = 0;
  // Private pools only: released, and the device was idle since, so that no graph replay can still
  // touch what is free in it.
  bool settled = false;
  // Plain backend: freed blocks that a captured graph may still hold, kept until the release.
  std::vector<Block*> kept;

  Pool(PoolKey pool_key, HeapContext& context, RangeHeap::Sharing sharing)
      : key(pool_key), heap(context, sharing) {}
  [[nodiscard]] bool is_private() const { return heap.sharing() == RangeHeap::Sharing::kPrivate; }
  // May its idle handles serve others?
  [[nodiscard]] bool lends() const { return !is_private() || (use_count == 0 && settled); }
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

class DeviceAllocator::Impl {
 public:
  Impl(Driver& device_driver, DeviceOrdinal ordinal, DeviceInfo device_info, const Options& opts);
  ~Impl();

  // ladder.cc
  Result<Block*> climb(Pool& pool, Bytes requested, StreamClock& clock);
  // How far place() goes: what costs no wait; device-side and host waits too; and, last, at
  // addresses with nothing mapped, where every idle handle can be used up whole (a placement that
  // covers part of one ties up the rest of it).
  enum class Effort : unsigned char { kEasy, kPressure, kFresh };
  Result<Block*> place(Pool& pool, Bytes size, Bytes requested, StreamClock& clock, Effort effort);
  Result<Block*> last_resort(Pool& pool, Bytes size, Bytes requested, StreamClock& clock);
  Result<Block*> allocate_plain(Bytes size, Bytes requested, StreamClock& clock);
  Result<VirtAddr> take_plain(Bytes size);
  // The pool of an allocation on `stream`; gives the lock up while filters are asked.
  Pool& route(std::unique_lock<RankedMutex>& lock, StreamId stream);
  void count_rung(Rung rung, Bytes size);

  // device_allocator.cc
  void note_allocated(Block* block, Pool& pool);
  bool ask_callbacks(std::unique_lock<RankedMutex>& lock, Bytes size);
  void settle_or_set_aside(PoolKey key);

  // backing.cc
  struct Obtained {
    PhysicalHandle physical;
    Rung rung = Rung::kGrow;
  };
  Status back(Pool& pool, const Placement& placement, bool pressure, Rung* highest);
  Status fill_gap(Pool& pool, const Placement& placement, Gap gap, bool pressure, Rung* highest);
  Result<Obtained> obtain(
      Pool& pool, const Placement& placement, Bytes want, Bytes room, bool pressure);
  Result<PhysicalHandle> create(Bytes size);
  Result<Obtained> reuse_idle(Pool& pool, const Placement& placement, Bytes want, bool pressure);
  Handle* pick_idle(
      Pool& pool, const Placement& placement, bool may_wait, std::uint64_t after, Rung* rung);
  Result<PhysicalHandle> unmap_idle(Handle* handle);
  [[nodiscard]] Bytes growth_size() const;
  [[nodiscard]] bool within_soft_limit(Bytes more, Bytes request) const;

  // reclaim.cc
  void finish_free(Block* block);
  void defer_free(Block* block);
  void settle();
  bool settle_pending(bool wait);
  void settle_released_pools();
  void drop_empty_pools();
  void retry_refused();
  void release_idle(Bytes keep);
  bool handle_done(Handle& handle);
  Status wait_for_handle(Handle& handle);
  Bytes trim_locked(Bytes keep);
  void free_plain(Block* block);
  void flush_deferred_plain();
  void maybe_mark(StreamClock& clock, Bytes freed);
  [[nodiscard]] bool filling_pool() const { return !routes.empty(); }

  // report.cc
  [[nodiscard]] DeviceStats stats_locked() const;
  void note_failure(Bytes requested, StreamId stream, Error error);
  void check_locked() const;
  [[nodiscard]] Bytes effective_limit() const;
  // Trims what the lower limit no longer allows.
  void apply_limits();

  void emit(
      EventKind kind, VirtAddr address, Bytes size, StreamId stream, std::uint32_t detail = 0) {
    if (sink != nullptr) [[unlikely]] {
      sink->on_event({kind, device, address, size, stream, 0, 0, detail});
    }
  }
  void emit(EventKind kind, const Block& block, StreamId stream) {
    if (sink != nullptr) [[unlikely]] {
      const PoolKey pool = block.pool->key;
      sink->on_event({kind, device, block.address, block.size, stream, pool.first, pool.second, 0});
    }
  }

  Driver& driver;
  const DeviceOrdinal device;
  const DeviceInfo info;
  const Options options;
  const bool virtual_memory;
  const Bytes handle_size;  // options.handle_size in whole granules

  mutable RankedMutex mutex{LockRank::kDevice};
  Streams streams;
  PhysicalMemory physical;
  AddressSpace space;
  HeapContext context;
  std::map<PoolKey, Pool> pools;  // nodes never move
  Pool* default_pool = nullptr;
  std::uint64_t pools_set_aside = 0;
  Routes routes;             // innermost last
  AddressMap<Block> blocks;  // live blocks by address
  // Pending uses by clock index, oldest first.
  std::vector<std::vector<StreamUse*>> waiting;
  // Plain backend: frees put off while a pool is being filled (a capture may be under way).
  std::vector<Block*> deferred_plain;

  Bytes byte_limit;  // the two limits as they were last set; the lower holds
  double memory_fraction;

  Bytes requested_bytes;
  Bytes live_bytes;
  Bytes pending_bytes;
  Bytes peak_live;
  Bytes peak_allocated;
  std::uint64_t live_blocks = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t failures = 0;
  std::array<std::uint64_t, kRungCount> rungs{};
  OomReport last_report;
  EventSink* sink = nullptr;
  std::vector<PressureCallback> callbacks;
  // Threads inside a pressure callback: what they allocate there asks no callback again.
  std::vector<std::uint64_t> threads_in_callback;
};

}  // namespace nofrag
