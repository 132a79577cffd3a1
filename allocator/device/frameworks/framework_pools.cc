// Pools as frameworks use them: counted without being filled, lending when memory is short, put back to a
// state they had before.

#include <algorithm>
#include <map>

#include "device/device_impl.h"

namespace nofrag {
namespace {

using Lock = std::unique_lock<RankedMutex>;

// Where a block was once, in the region that has these addresses now. Its region is null if nobody has them.
Placement place_of(const HeapContext& context, const PoolBlock& wanted) {
  const Block* there = context.block_at(wanted.address);
  const Bytes size = round_up(wanted.requested, kBlockUnit);
  return {there != nullptr ? there->region : nullptr, wanted.address, size, Bytes(0)};
}

// The block that uses the bytes of a shadow through another mapping of their handle.
const Block* user_of(const Block& shadow) {
  const Mapping& here = *RangeHeap::mapping_at(*shadow.region, shadow.address);
  const Bytes offset = shadow.address - here.address;
  for (const Mapping* other = here.handle->mappings; other != nullptr; other = other->next) {
    const Block* block = RangeHeap::covering(*other->region, other->address + offset);
    if (block->state != BlockState::kShadow) {
      return block;
    }
  }
  return nullptr;
}

// What restore_pool is to do, worked out before anything is done: which live blocks of the pool go, which
// places are to be taken again, and whether every one of them can be.
class Restoration {
 public:
  explicit Restoration(Pool& pool) : pool_(pool) {}

  void want(const PoolBlock& block) { wanted_.emplace(block.address, &block); }
  // Every live block of the device, once all are wanted that will be.
  void consider(Block* block) {
    if (block->pool != &pool_) {
      return;
    }
    const auto same = wanted_.find(block->address);
    if (same != wanted_.end() && same->second->requested == block->requested) {
      wanted_.erase(same);
    } else {
      surplus_.push_back(block);
    }
  }
  // pre: every live block was considered.
  [[nodiscard]] bool possible(const HeapContext& context) {
    std::sort(surplus_.begin(), surplus_.end(), before);
    std::vector<Claim> claims;
    for (const auto& [address, block] : wanted_) {
      const Placement place = place_of(context, *block);
      if (place.region == nullptr || place.region->heap != &pool_.heap || place.size.is_zero() ||
          place.size > place.region->range.end() - place.address || !will_open(place) ||
          !pool_.heap.gaps(place).empty()) {
        return false;
      }
      RangeHeap::for_each_mapping(
          *place.region, place.address, place.end(), [&](const Mapping& mapping) {
            claims.push_back({mapping.handle,
                              std::max(place.address, mapping.address) - mapping.address,
                              std::min(place.end(), mapping.end()) - mapping.address});
          });
    }
    return disjoint(&claims);
  }
  [[nodiscard]] const std::vector<Block*>& surplus() const { return surplus_; }
  [[nodiscard]] const std::map<VirtAddr, const PoolBlock*>& missing() const { return wanted_; }

 private:
  // Bytes of a handle, which may be mapped at several addresses.
  struct Claim {
    const Handle* handle;
    Bytes from;
    Bytes to;
  };

  // Live blocks have addresses of their own. (Blocks are freed in this order: the same one in every run.)
  static bool before(const Block* a, const Block* b) { return a->address < b->address; }
  // Two wanted blocks on one byte were never live at one moment.
  static bool disjoint(std::vector<Claim>* claims) {
    std::sort(claims->begin(), claims->end(), [](const Claim& a, const Claim& b) {
      return std::pair(a.handle, a.from) < std::pair(b.handle, b.from);
    });
    const auto overlap =
        std::adjacent_find(claims->begin(), claims->end(), [](const Claim& a, const Claim& b) {
          return a.handle == b.handle && b.from < a.to;
        });
    return overlap == claims->end();
  }
  // Free once the surplus is freed? A block that other streams used waits for them first.
  [[nodiscard]] bool will_open(const Placement& place) const {
    for (const Block* block = RangeHeap::covering(*place.region, place.address);
         block != nullptr && block->address < place.end();
         block = block->next) {
      const Block* user = block->state == BlockState::kShadow ? user_of(*block) : block;
      const bool goes = user != nullptr && user->state == BlockState::kLive &&
                        user->uses == nullptr &&
                        std::binary_search(surplus_.begin(), surplus_.end(), user, before);
      if (block->state != BlockState::kFree && !goes) {
        return false;
      }
    }
    return true;
  }

  Pool& pool_;
  std::map<VirtAddr, const PoolBlock*> wanted_;
  std::vector<Block*> surplus_;
};

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
  // What has become free meanwhile is free. While a pool is filled streams are asked nothing.
  if (!s.filling_pool()) {
    s.settle_pending(false);
  }
  Pool& pool = found->second;
  pool.heap.wake_all();
  Restoration plan(pool);
  for (const PoolBlock& block : blocks) {
    plan.want(block);
  }
  s.blocks.for_each([&plan](Block* block) { plan.consider(block); });
  if (!plan.possible(s.context)) {
    return Errc::kNotReady;
  }
  for (Block* block : plan.surplus()) {
    const Bytes size = block->size;
    s.free_block(block);
    feed_freed(size);
  }
  for (const auto& [address, wanted] : plan.missing()) {
    feed_allocated(s.take_again(pool, *wanted)->size);
  }
  NOFRAG_EXPENSIVE(s.check_locked());
  return {};
}

// A block where it was once. pre: that place is free and has memory.
Block* DeviceAllocator::Impl::take_again(Pool& pool, const PoolBlock& wanted) {
  const Placement place = place_of(context, wanted);
  StreamClock& clock = streams.clock(wanted.stream);
  std::vector<StreamClock*> others;
  if (wanted.stream.is_per_thread()) {
    // It may have been another thread's: all threads call theirs by this name.
    pool.heap.for_each_foreign(
        place, clock, [&others](StreamClock& other, Tick) { others.push_back(&other); });
  }
  Block* block = pool.heap.take(place, wanted.requested, clock);
  note_allocated(block, pool);
  for (StreamClock* other : others) {
    note_use(block, *other);
  }
  return block;
}

}  // namespace nofrag
