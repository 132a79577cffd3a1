// RangeHeap, the slow half: finding where a request that no free block holds could go, and moving
// handles in and out of the region's addresses.

#include <algorithm>

#include "heap/range_heap.h"

namespace nofrag {

// Candidates are the starts of the chain's blocks and the chain's end less the request: any other
// place misses at least as much as one of these.
void RangeHeap::consider(const std::vector<Block*>& chain,
                         Bytes size,
                         std::optional<Placement>* best) const {
  const VirtAddr chain_end = chain.back()->end();
  const auto offer = [&](VirtAddr address, Bytes missing) {
    if (!best->has_value() || missing < (*best)->missing ||
        (missing == (*best)->missing && address < (*best)->address)) {
      *best = Placement{chain.front()->region, address, size, missing};
    }
  };
  // Unbacked bytes from the start of element `first` to its successor-by-successor end.
  std::size_t last = 0;
  Bytes whole;  // unbacked bytes in elements [first, last)
  for (std::size_t first = 0; first < chain.size(); ++first) {
    const VirtAddr start = chain[first]->address;
    const VirtAddr end = start + size;
    if (end > chain_end) {
      break;
    }
    while (chain[last]->end() < end) {
      whole += chain[last]->state == BlockState::kUnbacked ? chain[last]->size : Bytes(0);
      ++last;
    }
    Bytes missing = whole;
    if (chain[last]->state == BlockState::kUnbacked) {
      missing += round_up(end - chain[last]->address, granule());
    }
    offer(start, missing);
    if (last > first) {
      whole -= chain[first]->state == BlockState::kUnbacked ? chain[first]->size : Bytes(0);
    } else {
      last = first + 1;  // the request lies inside one element; the next starts behind it
      if (last == chain.size()) {
        break;
      }
    }
  }
  // Against the chain's end. In a region's untouched tail it never misses less than a start does,
  // and lies higher, so the tail stays untouched.
  const VirtAddr start = chain_end - size;
  Bytes missing;
  for (std::size_t i = chain.size(); i-- > 0 && chain[i]->end() > start;) {
    if (chain[i]->state == BlockState::kUnbacked) {
      const VirtAddr from = std::max(chain[i]->address, start);
      missing += round_up(chain[i]->end() - from, granule());
    }
  }
  offer(start, missing);
}

std::optional<Placement> RangeHeap::find_placement(Bytes size,
                                                   const StreamClock& clock,
                                                   Scope scope) {
  std::optional<Placement> best;
  std::vector<Block*> chain;
  for (const auto& region : regions_) {
    Bytes length;
    const auto close_chain = [&] {
      if (length >= size) {
        consider(chain, size, &best);
      }
      chain.clear();
      length = Bytes(0);
    };
    for (Block* block = region->first; block != nullptr; block = block->next) {
      const bool usable =
          block->state == BlockState::kUnbacked ||
          (block->state == BlockState::kFree && scope != Scope::kUnbacked &&
           (scope == Scope::kAny || block->clock == nullptr || block->clock == &clock));
      if (!usable) {
        close_chain();
        continue;
      }
      chain.push_back(block);
      length += block->size;
    }
    close_chain();
  }
  return best;
}

std::vector<Gap> RangeHeap::gaps(const Placement& placement) const {
  std::vector<Gap> found;
  const VirtAddr base = placement.region->range.address;
  for (const Block* block = covering(*placement.region, placement.address);
       block != nullptr && block->address < placement.end();
       block = block->next) {
    if (block->state != BlockState::kUnbacked) {
      continue;
    }
    const VirtAddr from = std::max(block->address, placement.address);
    const VirtAddr to = std::min(block->end(), placement.end());
    const VirtAddr start = base + round_down(from - base, granule());
    const VirtAddr end = base + round_up(to - base, granule());
    found.push_back({{start, end - start}, block->end() - end});
  }
  return found;
}

Block* RangeHeap::take(const Placement& placement, Bytes requested, StreamClock& clock) {
  Block* block = covering(*placement.region, placement.address);
  NOFRAG_CHECK(block != nullptr, "placement outside its region");
  Block* taken = nullptr;
  for (;;) {
    NOFRAG_CHECK(block->state == BlockState::kFree, "placement is not free");
    unshelve(block);
    if (block->address < placement.address) {
      shelve(cut_front(block, placement.address));
    }
    if (block->end() > placement.end()) {
      Block* front = cut_front(block, placement.end());
      shelve(block);
      block = front;
    }
    // What lay under the placement is this stream's from now on, whatever its mark was.
    block->clock = nullptr;
    block->tick = 0;
    taken = taken == nullptr ? block : absorb(taken, block);
    if (taken->end() == placement.end()) {
      break;
    }
    block = taken->next;
  }
  make_live(taken, requested, clock);
  return taken;
}

Handle* RangeHeap::attach(Region& region, VirtAddr address, PhysicalHandle physical) {
  Block* block = covering(region, address);
  NOFRAG_CHECK(block->state == BlockState::kUnbacked && address + physical.size <= block->end(),
               "handle mapped over backed addresses");
  if (block->address < address) {
    cut_front(block, address);
  }
  if (block->size > physical.size) {
    block = cut_front(block, address + physical.size);
  }
  block->state = BlockState::kFree;
  Handle* handle = context_.handles.make();
  NOFRAG_CHECK(handle != nullptr, "no host memory for a handle");
  handle->physical = physical;
  handle->region = &region;
  handle->address = address;
  handle->first_granule = granule_index(region, address);
  handle->granule_count = static_cast<std::size_t>(physical.size / granule());
  for (std::size_t i = 0; i < handle->granule_count; ++i) {
    region.granules[handle->first_granule + i].handle = handle;
  }
  mapped_ += physical.size;
  push_idle(handle);
  shelve(merge_neighbours(block));
  return handle;
}

void RangeHeap::attach_lost(Region& region, VirtAddr address, PhysicalHandle physical) {
  Handle* handle = attach(region, address, physical);
  // Cut the handle's bytes out of whatever free block they merged into.
  Block* block = covering(region, address);
  unshelve(block);
  if (block->address < address) {
    shelve(cut_front(block, address));
  }
  if (block->end() > handle->end()) {
    Block* front = cut_front(block, handle->end());
    shelve(block);
    block = front;
  }
  block->state = BlockState::kLost;
  lost_ += block->size;
  block->clock = nullptr;
  add_use(block);
  lost_handles_.push_back(handle);
}

PhysicalHandle RangeHeap::detach_lost(Handle* handle) {
  Block* block = covering(*handle->region, handle->address);
  NOFRAG_CHECK(block->state == BlockState::kLost && block->address == handle->address &&
                   block->size == handle->physical.size,
               "detach_lost of a handle that is not lost");
  std::erase(lost_handles_, handle);
  lost_ -= block->size;
  // No stream ever touched it: it becomes free and clean, and leaves like any idle handle.
  drop_use(block, nullptr, 0);
  block->state = BlockState::kFree;
  shelve(merge_neighbours(block));
  return detach(handle);
}

PhysicalHandle RangeHeap::detach(Handle* handle) {
  NOFRAG_CHECK(handle->idle(), "detach of a handle in use");
  Region& region = *handle->region;
  pop_idle(handle);
  mapped_ -= handle->physical.size;
  for (std::size_t i = 0; i < handle->granule_count; ++i) {
    region.granules[handle->first_granule + i].handle = nullptr;
  }
  // Every block under an idle handle is free; cut them at its edges and take their marks off.
  Block* block = covering(region, handle->address);
  Block* hole = nullptr;
  while (block != nullptr && block->address < handle->end()) {
    unshelve(block);
    if (block->address < handle->address) {
      shelve(cut_front(block, handle->address));
    }
    if (block->end() > handle->end()) {
      Block* front = cut_front(block, handle->end());
      shelve(block);
      block = front;
    }
    block->state = BlockState::kUnbacked;
    block->clock = nullptr;
    block->tick = 0;
    hole = hole == nullptr ? block : absorb(hole, block);
    block = hole->next;
  }
  merge_neighbours(hole);
  const PhysicalHandle physical = handle->physical;
  context_.handles.destroy(handle);
  return physical;
}

}  // namespace nofrag
