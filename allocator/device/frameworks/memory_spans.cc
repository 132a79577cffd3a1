// What is where: told of one by one as it changes (set_watch), or walked over at one moment (walk).

#include "device/device_impl.h"

namespace nofrag {
namespace {

using Lock = std::unique_lock<RankedMutex>;
using Visit = std::function<void(const MemorySpan&)>;

// The parts of a free block that lie in mappings at which their handles were mapped first: through the others
// the same bytes are free too, and are not told again.
void visit_free(const Block& block, MemorySpan span, const Visit& visit) {
  VirtAddr at = block.address;
  while (at < block.end()) {
    const Mapping* mapping = RangeHeap::mapping_at(*block.region, at);
    NOFRAG_CHECK(mapping != nullptr, "a free block has no memory");
    const VirtAddr end = std::min(mapping->end(), block.end());
    if (mapping->address == mapping->handle->first_address()) {
      span.address = at;
      span.size = end - at;
      visit(span);
    }
    at = end;
  }
}

void visit_block(const Block& block, PoolKey pool, const Visit& visit) {
  MemorySpan span{.address = block.address,
                  .size = block.size,
                  .requested = Bytes(0),
                  .stream = StreamId(0),
                  .pool_first = pool.first,
                  .pool_second = pool.second};
  switch (block.state) {
    case BlockState::kUnbacked:
    case BlockState::kShadow:
    case BlockState::kParked:  // no handle was mapped there first
      return;
    case BlockState::kFree:
      visit_free(block, span, visit);
      return;
    case BlockState::kLive:
      span.state = block.kept.load(std::memory_order_relaxed) ? MemorySpan::State::kKept
                                                              : MemorySpan::State::kLive;
      span.requested = block.requested;
      break;
    case BlockState::kPending:
      span.state = MemorySpan::State::kPending;
      break;
    case BlockState::kLost: {
      const Mapping* mapping = RangeHeap::mapping_at(*block.region, block.address);
      if (mapping != nullptr && mapping->stuck) {
        return;  // one more address of memory that is told of where it is usable
      }
      span.state = MemorySpan::State::kUnusable;
      break;
    }
  }
  span.stream = block.clock != nullptr ? block.clock->stream : StreamId(0);
  visit(span);
}

}  // namespace

// Threads stay outside their caches meanwhile: what a walk tells is what was there at one moment.
void DeviceAllocator::walk(const Visit& visit) const {
  const Impl& s = *impl_;
  const Lock lock(s.mutex);
  const Caching::Caches closed = s.caching.close_doors([](const ThreadCache&) { return true; });
  for (const auto& [key, pool] : s.pools) {
    for (const auto& region : pool.heap.regions()) {
      for (const Block* block = region->first; block != nullptr; block = block->next) {
        visit_block(*block, key, visit);
      }
    }
  }
  if (!s.virtual_memory) {
    s.blocks.for_each([&](const Block* block) { visit_block(*block, block->pool->key, visit); });
  }
  Caching::open_doors(closed);
}

// While a pool is being filled (a capture) streams are asked nothing.
void DeviceAllocator::settle_finished() {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  if (!s.filling_pool()) {
    s.settle();
  }
}

void DeviceAllocator::set_watch(MemoryWatch::Listener listener) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  const bool told = static_cast<bool>(listener);
  s.watch.set(std::move(listener));
  if (!told) {
    return;
  }
  using Kind = MemoryEvent::Kind;
  for (const auto& [key, pool] : s.pools) {
    for (const Handle* handle : pool.heap.handles()) {
      const PhysicalHandle physical = handle->physical;
      s.tell(Kind::kCreated, s.physical, VirtAddr{}, physical.size, physical.id);
      std::vector<const Mapping*> oldest_first;
      for (const Mapping* mapping = handle->mappings; mapping != nullptr; mapping = mapping->next) {
        oldest_first.insert(oldest_first.begin(), mapping);
      }
      for (const Mapping* mapping : oldest_first) {
        const bool only = mapping == oldest_first.front();
        s.tell(Kind::kMapped, s.physical, mapping->address, physical.size, physical.id, only);
      }
    }
  }
  if (!s.virtual_memory) {
    s.blocks.for_each([&s](const Block* block) { s.tell_plain(*block, true); });
  }
}

// A plain block is a physical allocation of its own.
void DeviceAllocator::Impl::tell_plain(const Block& block, bool made) const {
  using Kind = MemoryEvent::Kind;
  const HandleId handle{block.address.value()};
  if (made) {
    tell(Kind::kCreated, physical, VirtAddr{}, block.size, handle);
    tell(Kind::kMapped, physical, block.address, block.size, handle, true);
  } else {
    tell(Kind::kUnmapped, physical, block.address, block.size, handle, true);
    tell(Kind::kReleased, physical, VirtAddr{}, block.size, handle);
  }
}

}  // namespace nofrag
