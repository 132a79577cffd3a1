#include "device/device_allocator.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/thread_id.h"
#include "device/device_impl.h"

namespace nofrag {
namespace {

using Lock = std::unique_lock<RankedMutex>;

// The first half of the names under which pools are set aside; callers cannot use it.
constexpr std::uint64_t kSetAside = UINT64_MAX;

// A filter is a comparison and perhaps a driver query: far less than this.
constexpr std::chrono::milliseconds kFilterPatience{100};

constexpr Bytes kLargestRequest{std::uint64_t{1} << 60};

}  // namespace

DeviceAllocator::Impl::Impl(Driver& device_driver,
                            DeviceOrdinal ordinal,
                            DeviceInfo device_info,
                            const Options& opts)
    : Telling(ordinal),
      virtual_memory(device_info.virtual_memory && opts.backend != Backend::kPlain),
      guard(opts.guard),
      streams(device_driver, device),
      physical(device_driver, device, device_info.granularity),
      space(
          device_driver, device_info.total_memory, virtual_memory ? device_info.granularity : kMiB),
      driver(device_driver),
      info(std::move(device_info)),
      options(opts),
      tuning(tuning_of(opts, virtual_memory ? info.granularity : kMiB)),
      context(streams, virtual_memory ? info.granularity : kMiB),
      byte_limit(opts.limit),
      memory_fraction(opts.memory_fraction) {
  default_pool =
      &pools.try_emplace(PoolKey{}, PoolKey{}, context, RangeHeap::Sharing::kShared).first->second;
  physical.set_limit(effective_limit());
  caching.rules.check_streams = opts.check_streams;
  caching.wanted = opts.thread_caches && virtual_memory && opts.guard.is_zero();
  set_caching();
}

// Only tests and programs that recreate an allocator come here; a process that ends does not.
DeviceAllocator::Impl::~Impl() {
  driver.device_synchronize(device).ignore();
  routes.clear();
  empty_caches();
  for (const auto& cache : caching.caches) {
    cache->note_allocator_gone();
  }
  drop_pins();
  streams.all_done(true);
  std::vector<Block*> live;
  blocks.for_each([&live](Block* block) { live.push_back(block); });
  settle_pending(true);
  for (Block* block : live) {
    if (virtual_memory) {
      block->region->heap->free(block, block->clock->completed);
    } else {
      free_plain(block);
    }
  }
  retry_refused();
  for (auto& [key, pool] : pools) {
    pool.use_count = 0;
    pool.settled = true;
    pool.live_blocks = 0;
    for (Block* block : pool.kept) {
      free_plain(block);
    }
    while (Handle* handle = pool.heap.first_idle()) {
      while (handle->mapping_count > 1) {
        driver.unmap(handle->mappings->address, handle->physical.size).ignore();
        pool.heap.drop(handle->mappings);
      }
      driver.unmap(handle->mappings->address, handle->physical.size).ignore();
      physical.release(pool.heap.detach(handle));
    }
    for (const auto& region : pool.heap.regions()) {
      space.return_region(region->range);
    }
  }
  flush_deferred_plain();
  physical.release_spares();
}

DeviceAllocator::DeviceAllocator(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)), space_(&impl_->space) {}
DeviceAllocator::~DeviceAllocator() = default;

Result<std::unique_ptr<DeviceAllocator>> DeviceAllocator::create(Driver& driver,
                                                                 DeviceOrdinal device,
                                                                 const Options& options) {
  Result<DeviceInfo> info = driver.device_info(device);
  if (!info.ok()) {
    return info.error();
  }
  if (options.backend == Backend::kVmm && !info.value().virtual_memory) {
    return Errc::kNotSupported;
  }
  return std::unique_ptr<DeviceAllocator>(new DeviceAllocator(
      std::make_unique<Impl>(driver, device, std::move(info.value()), options)));
}

void DeviceAllocator::end_window() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  timeline_.close_window(static_cast<std::uint64_t>(us));
}

void DeviceAllocator::feed_allocated(Bytes size) {
  timeline_.allocated(size.count(), impl_->live_bytes.count(), impl_->live_blocks);
  if (timeline_.due()) [[unlikely]] {
    end_window();
  }
}

void DeviceAllocator::feed_freed(Bytes size) {
  timeline_.freed(size.count(), impl_->live_bytes.count(), impl_->live_blocks);
  if (timeline_.due()) [[unlikely]] {
    end_window();
  }
}

Result<VirtAddr> DeviceAllocator::allocate_in_pool(Bytes size, StreamId stream, PoolKey pool) {
  return allocate_routed(size, stream, &pool, Shape::kAny);
}

Result<VirtAddr> DeviceAllocator::allocate_single_in_pool(Bytes size,
                                                          StreamId stream,
                                                          PoolKey pool) {
  return allocate_routed(size, stream, &pool, Shape::kSingle);
}

Result<VirtAddr> DeviceAllocator::allocate_single(Bytes size, StreamId stream) {
  return allocate_routed(size, stream, nullptr, Shape::kSingle);
}

Result<VirtAddr> DeviceAllocator::allocate_routed(Bytes size,
                                                  StreamId stream,
                                                  const PoolKey* key,
                                                  Shape shape) {
  if (size.is_zero()) {
    return Errc::kInvalidArgument;
  }
  Impl& s = *impl_;
  Lock lock(s.mutex);
  s.note_peak();
  // Beyond any device: refuse before rounding can overflow.
  if (size > kLargestRequest) {
    s.note_failure(size, stream, Error{Errc::kOutOfMemory, 0});
    return Errc::kOutOfMemory;
  }
  // A limit was lowered below what was held, and what was live then may be free now.
  if (s.virtual_memory && s.physical.reserved() > s.physical.limit()) [[unlikely]] {
    s.release_idle(s.physical.limit());
    s.drop_emptied_views();
  }
  for (bool asked = false;; asked = true) {
    Pool* pool = nullptr;
    if (key == nullptr) {
      pool = s.routes.empty() ? s.default_pool : &s.route(lock, stream);
    } else {
      const auto found = s.pools.find(*key);
      // A released pool's memory may still be written by graphs; begin_allocate_to_pool settles it.
      const bool released =
          found != s.pools.end() && found->second.is_private() && found->second.use_count == 0;
      if (found == s.pools.end() || released) {
        return Errc::kInvalidArgument;
      }
      pool = &found->second;
    }
    StreamClock& clock = s.streams.clock(stream);
    if (s.streams.any_newly_gone()) [[unlikely]] {
      s.forget_gone_streams();
    }
    const Result<Block*> block =
        shape == Shape::kAny ? s.climb(*pool, size, clock) : s.climb_single(*pool, size, clock);
    if (block.ok()) {
      s.note_allocated(block.value(), *pool);
      feed_allocated(block.value()->size);
      s.open_cache(clock);
      NOFRAG_EXPENSIVE(s.check_locked());
      return block.value()->address;
    }
    if (!asked && s.ask_callbacks(lock, size)) {
      s.count_rung(Rung::kPressureCallbacks, size);
      continue;
    }
    const bool refused = block.code() == Errc::kOutOfMemory || block.code() == Errc::kLimit;
    if (Block* lent = refused ? s.take_lent(*pool, size, clock) : nullptr) {
      feed_allocated(lent->size);
      return lent->address;
    }
    s.note_failure(size, stream, block.error());
    NOFRAG_EXPENSIVE(s.check_locked());
    return block.error();
  }
}

// Callbacks run without the lock: they free blocks, and may allocate. What others free meanwhile is worth another try
// too: another thread's callback may have freed what this thread's then did not find.
bool DeviceAllocator::Impl::ask_callbacks(std::unique_lock<RankedMutex>& lock, Bytes size) {
  const std::uint64_t self = this_thread_id();
  if (callbacks.empty() || std::ranges::count(threads_in_callback, self) != 0) {
    return false;
  }
  const auto all_frees = [this] { return frees + caching.count(&ThreadCounters::frees); };
  const std::uint64_t before = all_frees();
  const std::vector<PressureCallback> asked = callbacks;
  threads_in_callback.push_back(self);
  lock.unlock();
  const auto freed = std::ranges::count_if(
      asked, [&](const PressureCallback& callback) { return callback(device, size); });
  lock.lock();
  std::erase(threads_in_callback, self);
  return freed != 0 || all_frees() != before;
}

void DeviceAllocator::Impl::note_allocated(Block* block, Pool& pool) {
  block->pool = &pool;
  ++pool.live_blocks;
  const std::uint32_t size_class =
      caching.wanted ? KeptBlocks::class_or_none(block->size) : KeptBlocks::kNoClass;
  NOFRAG_CHECK(blocks.insert(block->address, block, size_class),
               "no host memory for the address map");
  requested_bytes += static_cast<std::int64_t>(block->requested.count());
  live_bytes += block->size;
  block->epoch = caching.rules.epoch.load(std::memory_order_relaxed);
  block->keepable = &pool == default_pool;
  note_grown();
  ++live_blocks;
  ++allocations;
  emit(EventKind::kAlloc, *block, block->clock->stream);
}

Status DeviceAllocator::free(VirtAddr address) {
  const Freed freed = free_kept(address);
  if (freed == Freed::kNobodys) {
    return Errc::kUnknownPointer;
  }
  return freed == Freed::kYes ? Status() : free_uncached(address);
}

Status DeviceAllocator::free_uncached(VirtAddr address) {
  Impl& s = *impl_;
  if (!s.caching.closed<Told::kListener>()) {
    const Freed freed = s.keep<Told::kListener>(address);
    if (freed != Freed::kAskTheHeap) {
      return freed == Freed::kYes ? Status() : Status(Errc::kUnknownPointer);
    }
  }
  const Lock lock(s.mutex);
  Block* block = s.blocks.find(address);
  if (block == nullptr || block->kept.load(std::memory_order_relaxed)) {
    return Errc::kUnknownPointer;
  }
  s.note_peak();
  StreamClock& clock = *block->clock;
  const Bytes size = block->size;
  s.free_block(block);
  feed_freed(size);
  s.open_cache(clock);
  NOFRAG_EXPENSIVE(s.check_locked());
  return {};
}

void DeviceAllocator::Impl::free_block(Block* block) {
  emit(EventKind::kFreeRequested, *block, block->clock->stream);
  blocks.erase(block->address);
  requested_bytes -= static_cast<std::int64_t>(block->requested.count());
  live_bytes -= block->size;
  caching.rounded -= Bytes(std::exchange(block->rounded, 0));
  --live_blocks;
  --block->pool->live_blocks;
  ++frees;
  make_room_for(*block);
  if (block->uses != nullptr) {
    defer_free(block);
  } else {
    finish_free(block);
  }
}

Status DeviceAllocator::record_stream(VirtAddr address, StreamId stream) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  Block* block = s.blocks.find(address);
  if (block == nullptr || block->kept.load(std::memory_order_relaxed)) {
    return Errc::kUnknownPointer;
  }
  if (!s.virtual_memory) {
    return {};  // plain frees wait for the whole device anyway
  }
  // Clocks, not names: a per-thread default stream is another one in every thread.
  StreamClock& clock = s.streams.clock(stream);
  if (s.note_use(block, clock)) {
    s.emit(EventKind::kRecordStream, *block, stream);
  }
  return {};
}

Result<BlockInfo> DeviceAllocator::find(VirtAddr address) const {
  const Impl& s = *impl_;
  const Lock lock(s.mutex);
  const Block* block = s.live_block(address);
  if (block == nullptr) {
    return Errc::kUnknownPointer;
  }
  return BlockInfo{
      block->address, block->size, block->requested, block->clock->stream, block->pool->key};
}

Status DeviceAllocator::begin_allocate_to_pool(PoolKey pool, StreamFilter filter) {
  if (pool == PoolKey{} || pool.first == kSetAside) {
    return Errc::kInvalidArgument;
  }
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  // While the pool is filled nothing is asked or recorded: what threads keep could not become its memory, nor what
  // streams have done by now.
  if (!s.filling_pool()) {
    s.empty_caches();
    s.settle();
  }
  s.open_pool(pool);
  s.emit(EventKind::kPoolBegin, pool);
  s.routes.push_back(std::make_shared<Route>(pool, std::move(filter)));
  s.set_caching();
  return {};
}

// The pool with one more use, made if it is new; nullptr for a name that callers cannot use.
Pool* DeviceAllocator::Impl::open_pool(PoolKey key) {
  if (key == PoolKey{} || key.first == kSetAside) {
    return nullptr;
  }
  settle_or_set_aside(key);
  drop_released_pools();
  Pool& pool = pools.try_emplace(key, key, context, RangeHeap::Sharing::kPrivate).first->second;
  ++pool.use_count;
  pool.settled = false;
  return &pool;
}

// A released pool's free memory may still be written by graph replays that run. Before it is filled
// again the device is waited for. Where that cannot be done (another pool is being filled, perhaps by
// a capture) the old one is set aside under a name that no caller uses, to be settled later.
void DeviceAllocator::Impl::settle_or_set_aside(PoolKey key) {
  const auto found = pools.find(key);
  if (found == pools.end() || found->second.use_count > 0) {
    return;
  }
  settle_released_pools();
  if (found->second.settled) {
    return;
  }
  auto node = pools.extract(found);
  node.key() = PoolKey{kSetAside, ++pools_set_aside};
  pools.insert(std::move(node));
}

Status DeviceAllocator::end_allocate_to_pool(PoolKey pool) {
  Impl& s = *impl_;
  std::shared_ptr<Route> ended;
  {
    const Lock lock(s.mutex);
    const auto route = std::find_if(
        s.routes.rbegin(), s.routes.rend(), [&](const auto& r) { return r->pool == pool; });
    if (route == s.routes.rend()) {
      return Errc::kInvalidArgument;
    }
    ended = *route;
    s.routes.erase(std::next(route).base());
    s.emit(EventKind::kPoolEnd, pool);
    s.set_caching();
    if (!s.filling_pool()) {
      s.flush_deferred_plain();
      // What was freed meanwhile: a capture into the same pool can use what is known to be done when it begins.
      s.streams.mark_freed();
    }
  }
  // What the filter refers to may die after this call: threads still inside it are waited for, but
  // not for ever, because one whose filter threw never counts itself out.
  const auto patience = std::chrono::steady_clock::now() + kFilterPatience;
  while (ended->asking.load(std::memory_order_acquire) > 0 &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::yield();
  }
  return {};
}

Status DeviceAllocator::release_pool(PoolKey pool) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  const auto found = s.pools.find(pool);
  if (found == s.pools.end() || found->second.use_count == 0 || !found->second.is_private()) {
    return Errc::kInvalidArgument;
  }
  --found->second.use_count;
  s.emit(EventKind::kPoolRelease, pool);
  return {};
}

Status DeviceAllocator::retire_stream(StreamId stream) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  // What threads keep for it is freed now: no stream may have it before the last marker is done.
  if (StreamClock* known = s.streams.known(stream)) {
    s.forget_stream(*known);
  }
  s.emit(EventKind::kRetireStream, VirtAddr{}, Bytes{}, stream);
  return s.streams.retire(stream);
}

Bytes DeviceAllocator::Impl::effective_limit() const {
  if (memory_fraction >= 1.0) {
    return byte_limit;
  }
  const double share = static_cast<double>(info.total_memory.count()) * memory_fraction;
  return std::min(byte_limit, Bytes(static_cast<std::uint64_t>(share)));
}

void DeviceAllocator::Impl::apply_limits() {
  const Bytes limit = effective_limit();
  physical.set_limit(limit);
  note_reserved();
  set_caching();
  if (physical.reserved() > limit) {
    trim_locked(limit);
  }
}

void DeviceAllocator::set_limit(Bytes limit) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  s.byte_limit = limit;
  s.apply_limits();
}

void DeviceAllocator::set_memory_fraction(double fraction) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  s.memory_fraction = std::clamp(fraction, 0.0, 1.0);
  s.apply_limits();
}

DeviceStats DeviceAllocator::stats() const {
  const Lock lock(impl_->mutex);
  return impl_->stats_locked();
}

void DeviceAllocator::reset_peaks() {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  s.reset_peaks();
}

OomReport DeviceAllocator::last_oom() const {
  const Lock lock(impl_->mutex);
  return impl_->last_report;
}

void DeviceAllocator::add_pressure_callback(PressureCallback callback) {
  const Lock lock(impl_->mutex);
  impl_->callbacks.push_back(std::move(callback));
}

DeviceOrdinal DeviceAllocator::device() const {
  return impl_->device;
}
const DeviceInfo& DeviceAllocator::info() const {
  return impl_->info;
}
bool DeviceAllocator::uses_virtual_memory() const {
  return impl_->virtual_memory;
}

void DeviceAllocator::check() const {
  const Lock lock(impl_->mutex);
  impl_->check_locked();
}

}  // namespace nofrag
