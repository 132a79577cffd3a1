// Pools as frameworks use them: counted without being filled, lending when memory is short, put back to a
// state they had before.

#include <map>
#include <optional>

#include "device/device_impl.h"

namespace nofrag {
namespace {

using Lock = std::unique_lock<RankedMutex>;

}  // namespace

Status DeviceAllocator::retain_pool(PoolKey key) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  Pool* pool = s.open_pool(key);
  if (pool != nullptr) {
    s.emit(EventKind::kPoolBegin, key);
    s.emit(EventKind::kPoolEnd, key);
  }
  return pool != nullptr ? Status() : Status(Errc::kInvalidArgument);
}

Status DeviceAllocator::lend_when_short(PoolKey key, bool lends) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  const auto found = s.pools.find(key);
  if (found == s.pools.end() || !found->second.is_private() || found->second.use_count == 0) {
    return Errc::kInvalidArgument;
  }
  found->second.lends_when_short = lends;
  return {};
}

// The last thing before a request of the default pool fails: a block of a pool that lends, which is then that
// pool's. Its memory passes from stream to stream as little as within the pool.
Block* DeviceAllocator::Impl::take_lent(const Pool& asked, Bytes requested, StreamClock& clock) {
  if (!virtual_memory || &asked != default_pool) {
    return nullptr;
  }
  const Bytes size = round_up(requested, kBlockUnit);
  for (auto& [key, pool] : pools) {
    if (!pool.lends_when_short || pool.use_count == 0) {
      continue;
    }
    if (Block* block = pool.heap.allocate(size, requested, clock)) {
      count_rung(Rung::kOtherPools, size);
      note_allocated(block, pool);
      NOFRAG_EXPENSIVE(check_locked());
      return block;
    }
  }
  return nullptr;
}

Result<Bytes> DeviceAllocator::trim_pool(PoolKey key) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  const auto found = s.pools.find(key);
  if (found == s.pools.end() || !found->second.is_private()) {
    return Errc::kInvalidArgument;
  }
  const Bytes before = s.physical.reserved();
  s.settle_released_pools();
  if (s.virtual_memory) {
    s.release_idle(found->second, Bytes(0));
    s.drop_emptied_views();
  }
  s.drop_empty_pools();
  NOFRAG_EXPENSIVE(s.check_locked());
  return before - s.physical.reserved();
}

Status DeviceAllocator::restore_pool(PoolKey key, std::span<const PoolBlock> blocks) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  const auto found = s.pools.find(key);
  if (found == s.pools.end() || !found->second.is_private() || found->second.use_count == 0) {
    return Errc::kInvalidArgument;
  }
  if (!s.virtual_memory) {
    return Errc::kNotSupported;  // without it a block that was freed cannot come back where it was
  }
  Pool& pool = found->second;
  std::map<VirtAddr, const PoolBlock*> missing;
  for (const PoolBlock& block : blocks) {
    missing.emplace(block.address, &block);
  }
  std::vector<Block*> surplus;
  s.blocks.for_each([&](Block* block) {
    if (block->pool != &pool) {
      return;
    }
    const auto wanted = missing.find(block->address);
    if (wanted != missing.end() && block->requested == wanted->second->requested) {
      missing.erase(wanted);
    } else {
      surplus.push_back(block);
    }
  });
  for (Block* block : surplus) {
    s.free_block(block);
  }
  Status status;
  for (const auto& [address, wanted] : missing) {
    if (!s.take_again(pool, *wanted)) {
      status = Errc::kNotReady;
    }
  }
  NOFRAG_EXPENSIVE(s.check_locked());
  return status;
}

// A block where it was once. False if that place is taken, or has no memory any more.
bool DeviceAllocator::Impl::take_again(Pool& pool, const PoolBlock& wanted) {
  const Block* there = context.block_at(wanted.address);
  if (there == nullptr || there->region->heap != &pool.heap) {
    return false;
  }
  const Placement place{
      there->region, wanted.address, round_up(wanted.requested, kBlockUnit), Bytes(0)};
  if (place.end() > place.region->range.end() || !RangeHeap::open(place) ||
      !pool.heap.gaps(place).empty()) {
    return false;
  }
  Block* block = pool.heap.take(place, wanted.requested, streams.clock(wanted.stream));
  note_allocated(block, pool);
  return true;
}

}  // namespace nofrag
