// RangeHeap, handles and their mappings: how physical memory comes to addresses and goes from them.

#include <algorithm>
#include <utility>

#include "heap/range_heap.h"

namespace nofrag {

Mapping* RangeHeap::mapping_at(const Region& region, VirtAddr address) {
  return region.mappings()[region.granule_index(address)];
}

// The granules of the mapping's addresses name `whom`.
void RangeHeap::name_in_table(const Mapping& mapping, Mapping* whom) {
  const Region& region = *mapping.region;
  const std::size_t end = region.granule_index(mapping.end());
  for (std::size_t i = region.granule_index(mapping.address); i < end; ++i) {
    region.mappings()[i] = whom;
  }
}

Mapping* RangeHeap::link(Region& region, VirtAddr address, Handle* handle) {
  Mapping* mapping = context_.mappings.make();
  NOFRAG_CHECK(mapping != nullptr, "no host memory for a mapping");
  mapping->handle = handle;
  mapping->region = &region;
  mapping->address = address;
  mapping->size = handle->physical.size;
  name_in_table(*mapping, mapping);
  ++region.mapping_count;
  region.parked_longest = kNoLimit;
  return mapping;
}

Handle* RangeHeap::attach(Region& region, VirtAddr address, PhysicalHandle physical) {
  NOFRAG_CHECK(covering(region, address)->state == BlockState::kUnbacked &&
                   address + physical.size <= covering(region, address)->end(),
               "handle mapped over backed addresses");
  Block* block = carve(region, address, address + physical.size);
  block->state = BlockState::kFree;
  Handle* handle = context_.handles.make();
  NOFRAG_CHECK(handle != nullptr, "no host memory for a handle");
  handle->physical = physical;
  handle->index = handles_.size();
  handles_.push_back(handle);
  list_ends(*handle);
  handle->mappings = link(region, address, handle);
  handle->mapping_count = 1;
  mapped_ += physical.size;
  push_idle(handle);
  shelve_merged(block);
  return handle;
}

// The front of `rest`, which is on no shelf, becomes the same parts as at the handle's other addresses: free with
// the same marks, or in use. Returns what is behind it, or nullptr.
Block* RangeHeap::show(Block* rest, const Mapping& source) {
  const VirtAddr address = rest->address;
  for (const Block* from = covering(*source.region, source.address);
       from != nullptr && from->address < source.end();
       from = from->next) {
    const VirtAddr end = address + (std::min(from->end(), source.end()) - source.address);
    Block* part = end < rest->end() ? cut_front(rest, end) : std::exchange(rest, nullptr);
    part->state = BlockState::kShadow;
    if (from->state == BlockState::kFree) {
      part->state = BlockState::kFree;
      const bool done =
          sharing_ == Sharing::kShared && from->clock != nullptr && from->clock->done(from->tick);
      part->clock = done ? nullptr : from->clock;
      part->tick = from->tick;
      shelve_merged(part);
    }
  }
  return rest;
}

Mapping* RangeHeap::alias(Region& region, VirtAddr address, Handle* handle) {
  const Bytes size = handle->physical.size;
  NOFRAG_CHECK(handle->in(region) == nullptr, "handle mapped twice in one region");
  NOFRAG_CHECK(covering(region, address)->state == BlockState::kUnbacked &&
                   address + size <= covering(region, address)->end(),
               "handle mapped over backed addresses");
  show(carve(region, address, address + size), handle->shown());
  Mapping* mapping = link(region, address, handle);
  mapping->next = handle->mappings;
  handle->mappings = mapping;
  ++handle->mapping_count;
  return mapping;
}

void RangeHeap::attach_lost(Region& region, VirtAddr address, PhysicalHandle physical) {
  Handle* handle = attach(region, address, physical);
  // Cut the handle's bytes out of whatever free block they merged into.
  Block* block = carve(region, address, handle->mappings->end());
  block->state = BlockState::kLost;
  lost_ += block->size;
  add_use(block);
  lost_handles_.push_back(handle);
}

void RangeHeap::alias_stuck(Region& region, VirtAddr address, Handle* handle) {
  Block* block = carve(region, address, address + handle->physical.size);
  block->state = BlockState::kLost;
  Mapping* mapping = link(region, address, handle);
  mapping->stuck = true;
  ++handle->pins;
  stuck_.push_back(mapping);
}

// The addresses of a mapping have nothing mapped any more.
void RangeHeap::unback(Mapping* mapping) {
  Region& region = *mapping->region;
  name_in_table(*mapping, nullptr);
  --region.mapping_count;
  Block* block = carve(region, mapping->address, mapping->end());
  block->state = BlockState::kUnbacked;
  shelve_merged(block);
}

void RangeHeap::unlink(Mapping* mapping) {
  Handle& handle = *mapping->handle;
  Mapping** at = &handle.mappings;
  while (*at != mapping) {
    at = &(*at)->next;
  }
  *at = mapping->next;
  --handle.mapping_count;
  context_.mappings.destroy(mapping);
}

void RangeHeap::drop(Mapping* mapping) {
  NOFRAG_CHECK(mapping->blocks == 0 && mapping->pins == 0, "a mapping in use was dropped");
  Handle& handle = *mapping->handle;
  if (mapping->next == nullptr && !mapping->stuck) {
    // The next oldest one is to be relied on from now on.
    const Mapping* next = handle.mappings;
    while (next->next != mapping && next->next != nullptr) {
      next = next->next;
    }
    wake(*next->region);
  }
  if (mapping->parked && --mapping->region->parked == 0) {
    std::erase(parked_, mapping->region);
  }
  unback(mapping);
  if (mapping->stuck) {
    --handle.pins;
    std::erase(stuck_, mapping);
    context_.mappings.destroy(mapping);
    return;
  }
  NOFRAG_CHECK(handle.mapping_count > 1, "a handle's last mapping was dropped");
  // What was done through these addresses is still done to the handle's bytes.
  Mapping* heir = handle.mappings != mapping ? handle.mappings : mapping->next;
  mapping->last_uses.all_of([heir](StreamClock& clock, Tick tick) {
    heir->last_uses.note(&clock, tick);
    return true;
  });
  unlink(mapping);
}

void RangeHeap::pin(Region& region, VirtAddr from, VirtAddr to) {
  wake(region);
  for_each_mapping(region, from, to, [](Mapping& mapping) {
    ++mapping.pins;
    ++mapping.handle->pins;
  });
}

void RangeHeap::unpin(Region& region, VirtAddr from, VirtAddr to) {
  for_each_mapping(region, from, to, [](Mapping& mapping) {
    NOFRAG_CHECK(mapping.pins > 0, "unpin of a mapping that is not pinned");
    --mapping.pins;
    --mapping.handle->pins;
  });
}

PhysicalHandle RangeHeap::detach(Handle* handle) {
  NOFRAG_CHECK(handle->movable() && handle->mapping_count == 1, "detach of a handle in use");
  pop_idle(handle);
  mapped_ -= handle->physical.size;
  unback(handle->mappings);
  unlink(handle->mappings);
  unlist_ends(*handle);
  handles_[handle->index] = handles_.back();
  handles_[handle->index]->index = handle->index;
  handles_.pop_back();
  const PhysicalHandle physical = handle->physical;
  context_.handles.destroy(handle);
  return physical;
}

PhysicalHandle RangeHeap::detach_lost(Handle* handle) {
  Block* block = covering(*handle->mappings->region, handle->mappings->address);
  NOFRAG_CHECK(block->state == BlockState::kLost && block->address == handle->mappings->address &&
                   block->size == handle->physical.size,
               "detach_lost of a handle that is not lost");
  std::erase(lost_handles_, handle);
  lost_ -= block->size;
  // No stream ever touched it: it becomes free and clean, and leaves like any idle handle.
  drop_use(block, nullptr, 0, true);
  block->state = BlockState::kFree;
  shelve_merged(block);
  return detach(handle);
}

void RangeHeap::list_ends(Handle& handle) {
  handle.ends_short = false;
  handle.ends_index = long_ends_.size();
  long_ends_.push_back(&handle);
}

void RangeHeap::unlist_ends(Handle& handle) {
  if (!handle.ends_short) {
    long_ends_[handle.ends_index] = long_ends_.back();
    long_ends_[handle.ends_index]->ends_index = handle.ends_index;
    long_ends_.pop_back();
  }
}

const std::vector<Handle*>& RangeHeap::perhaps_long_ends() {
  const auto before = [](const Handle* a, const Handle* b) { return a->index < b->index; };
  if (!std::is_sorted(long_ends_.begin(), long_ends_.end(), before)) {
    std::sort(long_ends_.begin(), long_ends_.end(), before);
    for (std::size_t i = 0; i < long_ends_.size(); ++i) {
      long_ends_[i]->ends_index = i;
    }
  }
  return long_ends_;
}

void RangeHeap::note_short_ends(Handle& handle) {
  unlist_ends(handle);
  handle.ends_short = true;
}

RangeHeap::Ends RangeHeap::free_ends(const Handle& handle) const {
  if (handle.idle()) {
    return {handle.physical.size, handle.physical.size};
  }
  const Mapping& mapping = handle.shown();
  const Block* first = covering(*mapping.region, mapping.address);
  const Block* last = covering(*mapping.region, mapping.end() - FreeIndex::kUnit);
  Ends ends;
  // Runs of different marks lie side by side.
  for (const Block* b = first; b->state == BlockState::kFree && b->address < mapping.end();
       b = b->next) {
    ends.front = std::min(b->end(), mapping.end()) - mapping.address;
  }
  for (const Block* b = last; b->state == BlockState::kFree && b->end() > mapping.address;
       b = b->previous) {
    ends.back = mapping.end() - std::max(b->address, mapping.address);
    if (b->previous == nullptr) {
      break;
    }
  }
  return ends;
}

}  // namespace nofrag
