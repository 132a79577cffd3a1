// Pins: memory that others know by its address or its physical allocation (exported, or registered with
// NCCL or for RDMA) stays as it is until they let go of it, whatever becomes of the block meanwhile.

#include <algorithm>

#include "device/device_impl.h"

namespace nofrag {
namespace {

using Lock = std::unique_lock<RankedMutex>;

}  // namespace

// The live block that contains `address`, or nullptr.
const Block* DeviceAllocator::Impl::live_block(VirtAddr address) const {
  const Block* block = blocks.find(address);
  if (block == nullptr && virtual_memory) {
    const Block* at = context.block_at(address);
    block = at != nullptr && at->state == BlockState::kLive ? at : nullptr;
  } else if (block == nullptr) {
    blocks.for_each(
        [&](const Block* b) { block = address >= b->address && address < b->end() ? b : block; });
  }
  const bool kept = block != nullptr && block->kept.load(std::memory_order_relaxed);
  return kept ? nullptr : block;
}

// Pinned addresses stay in their region: its mappings there cannot go.
void DeviceAllocator::Impl::hold(VirtAddr from, VirtAddr to) {
  Region& region = *context.block_at(from)->region;
  region.heap->pin(region, from, to);
}

void DeviceAllocator::Impl::let_go(VirtAddr from, VirtAddr to) {
  Region& region = *context.block_at(from)->region;
  region.heap->unpin(region, from, to);
}

void DeviceAllocator::Impl::drop_pins() {
  for (const auto& [from, pin] : pins) {
    let_go(from, pin.end);
  }
  pins.clear();
}

void DeviceAllocator::Impl::check_pins() const {
  VirtAddr end;
  for (const auto& [from, pin] : pins) {
    NOFRAG_CHECK(pin.count > 0 && from >= end && from < pin.end, "pins overlap or hold nothing");
    end = pin.end;
    const Region& region = *context.block_at(from)->region;
    for (VirtAddr at = from; at < pin.end;) {
      const Mapping* mapping = RangeHeap::mapping_at(region, at);
      NOFRAG_CHECK(mapping != nullptr && mapping->pins > 0, "pinned memory is gone");
      at = mapping->end();
    }
  }
}

Status DeviceAllocator::pin(VirtAddr address) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  const Block* block = s.live_block(address);
  if (block == nullptr) {
    return Errc::kUnknownPointer;
  }
  if (!s.virtual_memory) {
    return {};
  }
  // One with all that it overlaps: which of them an address would undo, nobody could tell.
  VirtAddr from = block->address;
  Pin pin{block->end(), 1};
  auto next = s.pins.lower_bound(from);
  if (next != s.pins.begin() && std::prev(next)->second.end > from) {
    --next;
  }
  while (next != s.pins.end() && next->first < pin.end) {
    s.let_go(next->first, next->second.end);
    from = std::min(from, next->first);
    pin.end = std::max(pin.end, next->second.end);
    pin.count += next->second.count;
    next = s.pins.erase(next);
  }
  s.hold(from, pin.end);
  s.pins.emplace(from, pin);
  NOFRAG_EXPENSIVE(s.check_locked());
  return {};
}

Status DeviceAllocator::unpin(VirtAddr address) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  if (!s.virtual_memory) {
    return {};
  }
  const auto after = s.pins.upper_bound(address);
  if (after == s.pins.begin() || std::prev(after)->second.end <= address) {
    return Errc::kUnknownPointer;
  }
  const auto pin = std::prev(after);
  if (--pin->second.count == 0) {
    s.let_go(pin->first, pin->second.end);
    s.pins.erase(pin);
  }
  NOFRAG_EXPENSIVE(s.check_locked());
  return {};
}

}  // namespace nofrag
