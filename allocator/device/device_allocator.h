// DeviceAllocator: the allocator of one GPU: pools, streams, limits and the out-of-memory
// ladder.
//
// Owns: every handle and address range it took from the driver; the caller owns the blocks it
// was given, and the Driver, which must outlive this object.
// Layer: device. It knows nothing of processes, environment variables or frameworks.
// Units: Bytes; block addresses are multiples of 512 B; sizes are rounded up to 512 B.
// Streams: a block belongs to the stream it was allocated on. Freed, it is reusable by that
// stream at once and by another only when the work queued before the free is done. Other
// streams that used the block must be named by record_stream before the free.
// Invariants: those of device_stats.h, of every heap and of the stream clocks; check() walks
// them.
// Threads: every member may be called from any thread; one lock a device (LockRank::kDevice).
// Driver calls are made under it: this lock is the device's transaction lock, and a half-made
// mapping must not be seen. Pressure callbacks run without it.
// Failure: strong. A failed allocate has taken nothing and says so in last_oom(); kOutOfMemory
// is the driver's refusal, kLimit ours. free of an address that is not a live block:
// kUnknownPointer.
// Cost: a hit is O(1) and makes no driver call; a miss maps handles (docs/driver.md for
// prices).
// Decision: docs/decisions/0002-first-engine.md
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/event_sink.h"
#include "base/result.h"
#include "base/timeline.h"
#include "base/units.h"
#include "config/options.h"
#include "device/device_stats.h"
#include "device/frameworks/memory_span.h"
#include "device/frameworks/memory_watch.h"
#include "driver/driver.h"
#include "range/address_space.h"

namespace nofrag {

// A pool's name as frameworks give it (PyTorch's MempoolId_t). {0, 0} is the default pool.
struct PoolKey {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  friend constexpr auto operator<=>(PoolKey, PoolKey) = default;
};

struct BlockInfo {
  VirtAddr address;  // first byte of the block
  Bytes size;        // rounded size
  Bytes requested;
  StreamId stream;  // the stream it was allocated on
  PoolKey pool;
};

// Says whether an allocation on this stream belongs to the pool being filled. Called without any lock
// of ours, by the allocating thread; never again once end_allocate_to_pool has returned.
using StreamFilter = std::function<bool(StreamId)>;

// Asked to give memory back before an allocation fails; true if it freed something. Called without
// any lock of ours: it may free blocks and trim.
using PressureCallback = std::function<bool(DeviceOrdinal device, Bytes needed)>;

class DeviceAllocator {
 public:
  // kNotSupported if options.backend demands virtual memory and the device has none.
  static Result<std::unique_ptr<DeviceAllocator>> create(Driver& driver,
                                                         DeviceOrdinal device,
                                                         const Options& options);
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;
  // Waits for the device and gives everything back, live blocks included. Processes that are ending
  // do not call it (runtime leaks on purpose).
  ~DeviceAllocator();

  // size 0 is kInvalidArgument: the doors decide what an empty allocation means.
  [[gnu::hot]] Result<VirtAddr> allocate(Bytes size, StreamId stream);
  // A block that lies in one physical allocation from its first byte to its last, so that it can be
  // exported or registered as one. Fails only if no run that is free within one handle is found and
  // round_up(size) to granules exceeds what driver and limit allow plus the idle, unpinned handles.
  Result<VirtAddr> allocate_single(Bytes size, StreamId stream);
  // Into one pool, whatever is being captured. kInvalidArgument if there is no such pool.
  Result<VirtAddr> allocate_in_pool(Bytes size, StreamId stream, PoolKey pool);
  Result<VirtAddr> allocate_single_in_pool(Bytes size, StreamId stream, PoolKey pool);
  [[gnu::hot]] Status free(VirtAddr address);
  // What of both a cache of the calling thread does at once, without a lock; the whole ones ask it first too.
  // Null: ask allocate().
  [[nodiscard, gnu::hot]] VirtAddr allocate_kept(Bytes size, StreamId stream);
  enum class Freed : unsigned char { kYes, kNobodys, kAskTheHeap };  // kNobodys: it is free already
  [[nodiscard, gnu::hot]] Freed free_kept(VirtAddr address);
  // And the rest of them, for whoever has asked the cache.
  [[gnu::hot]] Result<VirtAddr> allocate_uncached(Bytes size, StreamId stream);
  [[gnu::hot]] Status free_uncached(VirtAddr address);
  Status record_stream(VirtAddr address, StreamId stream);
  // The live block that contains `address`, wherever in the block it points.
  Result<BlockInfo> find(VirtAddr address) const;
  // Does the address lie in our address range (live or not)? Lock-free.
  [[nodiscard]] bool owns(VirtAddr address) const { return space_->contains(address); }

  // Our address range is never given back: when this object is gone nothing is mapped in it, and none of its
  // addresses comes again. How many bytes of addresses these are.
  Bytes keep_addresses();
  // It is one of so many in this process, and takes addresses for no more than its share
  // (AddressSpace::be_one_of). pre: nothing was allocated yet.
  void share_addresses(unsigned count);

  // Until it is unpinned, the memory of the live block that holds `address` stays mapped where it is: it
  // is not given back, moved, cut or mapped anywhere else, even after the block is freed. (What is free
  // there serves later requests, at those addresses.) Pins count. Those of blocks that overlap, because
  // one was freed and its place reused, are one: all their memory stays until the last is undone.
  // Nothing happens on the plain backend, where nothing ever moves.
  Status pin(VirtAddr address);
  // Any address that was pinned, its block live or freed. kUnknownPointer if none is pinned there.
  Status unpin(VirtAddr address);

  // From begin to end, allocations whose stream passes `filter` go to `pool` (made if new; its use
  // count rises by one). Nested: the innermost begin is asked first.
  Status begin_allocate_to_pool(PoolKey pool, StreamFilter filter);
  Status end_allocate_to_pool(PoolKey pool);
  // Lowers the use count. At zero the pool's idle memory becomes reusable; blocks still live in it
  // stay valid until they are freed.
  Status release_pool(PoolKey pool);

  // For frameworks that keep pools, statistics and snapshots of their own (frameworks/*.cc):
  // One more use of the pool, which is made if it is new, without filling it.
  Status retain_pool(PoolKey key);
  // Whether the pool's free memory serves requests of the default pool that would fail otherwise.
  Status lend_when_short(PoolKey key, bool lends);
  // Gives the idle memory of a released pool back to the driver; returns how much.
  Result<Bytes> trim_pool(PoolKey key);
  // Makes exactly these the live blocks of a pool in use: all others of it are freed, those missing are
  // allocated where they were. kNotReady, and nothing was changed, if some place is taken or gone.
  Status restore_pool(PoolKey key, std::span<const PoolBlock> blocks);
  // What is told of memory from now on, after what is there was told. An empty function ends it.
  void set_watch(MemoryWatch::Listener listener);
  // visit(span) under the lock, in no order: every mapped byte once, as what it is, at the address at which
  // it is in use or, if it is free, was mapped first.
  void walk(const std::function<void(const MemorySpan&)>& visit) const;

  // Takes in what streams have finished, without waiting: deferred frees are completed.
  void settle_finished();

  // For other processes: the physical allocations under a live block, in the order of its addresses.
  Result<std::vector<MemoryPart>> parts_of(VirtAddr address) const;
  // A file descriptor, the caller's to close, of one of them.
  Result<int> export_part(VirtAddr address, std::uint64_t handle);
  // Maps what others exported, one after the other, at addresses of its own. The descriptors stay the
  // caller's. Undone by close_import with the address returned.
  Result<VirtAddr> import(std::span<const ImportedPart> parts);
  // Waits for the device. kCapturing, and nothing was done, while a pool is being filled or a stream is
  // captured. After any failure it may be called again, and goes on where it stopped; the memory must not
  // be used any more.
  Status close_import(VirtAddr address);
  // From now on `peer` may use all memory of this device.
  Status grant_access(DeviceOrdinal peer);

  // Call before a stream is destroyed: its last marker is recorded now, so that memory freed on it
  // (or later freed and allocated on it) can be known to be safe without touching the dead stream.
  Status retire_stream(StreamId stream);

  // A request that would take reserved above `limit` first makes room, then fails with kLimit.
  // Lowering it below what is reserved trims what is idle and keeps the rest.
  void set_limit(Bytes limit);
  void set_memory_fraction(double fraction);
  // Gives idle handles back to the driver until at most `keep` bytes stay reserved; returns what
  // was given back. Waits for work that still uses them.
  Bytes trim(Bytes keep = Bytes(0));

  [[nodiscard]] DeviceStats stats() const;
  // The same without what takes a walk over the handles: free_ends, composable and pinned are zero, and
  // stranded counts all that is free in used handles. For those who look every second.
  [[nodiscard]] DeviceStats gauges() const;
  // How live memory went since the start (without what threads' caches serve alone), and what it is made
  // of: the sizes that hold most. For reports.
  [[nodiscard]] Timeline timeline() const;
  [[nodiscard]] std::vector<HeldSize> held_sizes(std::size_t most) const;
  void reset_peaks();
  [[nodiscard]] OomReport last_oom() const;
  // "nofrag: out of memory on device 0: tried to allocate 2.00 GiB ..." for last_oom().
  [[nodiscard]] std::string last_oom_message() const;

  void set_event_sink(EventSink* sink);
  void add_pressure_callback(PressureCallback callback);

  [[nodiscard]] DeviceOrdinal device() const;
  [[nodiscard]] const DeviceInfo& info() const;
  [[nodiscard]] bool uses_virtual_memory() const;

  // Walks every structure and aborts on a broken invariant. Slow; for tests and debug builds.
  void check() const;

 private:
  class Impl;
  enum class Shape : unsigned char { kAny, kSingle };
  [[gnu::hot]] Result<VirtAddr> allocate_routed(Bytes size,
                                                StreamId stream,
                                                const PoolKey* key,
                                                Shape shape);
  explicit DeviceAllocator(std::unique_ptr<Impl> impl);
  // The timeline hears of a block of `size` once it is counted. pre: the mutex is held.
  [[gnu::hot]] void feed_allocated(Bytes size);
  [[gnu::hot]] void feed_freed(Bytes size);
  void end_window();
  std::unique_ptr<Impl> impl_;
  const AddressSpace* space_;  // impl_'s
  // Not beside what every call reads without the lock.
  alignas(128) Timeline timeline_;  // Sync: impl_->mutex
};

}  // namespace nofrag
