#include "heap/range_heap.h"

#include <algorithm>
#include <bit>

namespace nofrag {
void LastUses::note_other(StreamClock* clock, Tick tick) {
  for (std::uint32_t i = 1; i < count_; ++i) {
    if (inline_[i].clock == clock) {
      inline_[i].tick = std::max(inline_[i].tick, tick);
      return;
    }
  }
  for (Use& use : more_) {
    if (use.clock == clock) {
      use.tick = std::max(use.tick, tick);
      return;
    }
  }
  // What is done needs no waiting for: streams that come and go leave nothing behind.
  const auto done = [](const Use& use) { return use.clock->done(use.tick); };
  if (count_ < kInline) {
    inline_[count_++] = {clock, tick};
    return;
  }
  for (Use& use : inline_) {
    if (done(use)) {
      use = {clock, tick};
      return;
    }
  }
  std::erase_if(more_, done);
  more_.push_back({clock, tick});
}

RangeHeap::RangeHeap(HeapContext& context, Sharing sharing)
    : context_(context), sharing_(sharing) {}

RangeHeap::~RangeHeap() {
  NOFRAG_CHECK(mapped_ == lost_, "heap destroyed with handles mapped");
  while (!regions_.empty()) {
    Region& region = *regions_.back();
    for (Block* block = region.first; block != nullptr;) {
      Block* next = block->next;
      context_.blocks.destroy(block);
      block = next;
    }
    context_.regions.erase(region.range.address);
    unmap_host_pages(static_cast<void*>(region.tiles), region.table_bytes());
    regions_.pop_back();
  }
}

Block* HeapContext::block_at(VirtAddr address) const {
  auto after = regions.upper_bound(address);
  if (after == regions.begin()) {
    return nullptr;
  }
  const Region& region = *std::prev(after)->second;
  return region.range.contains(address) ? RangeHeap::covering(region, address) : nullptr;
}

Region& RangeHeap::add_region(AddressRange range, bool home) {
  auto region = std::make_unique<Region>();
  region->range = range;
  region->granularity = granule();
  region->heap = this;
  region->home = home;
  region->index = regions_.size();
  region->granule_count = static_cast<std::size_t>(range.size / granule());
  region->granule_bits = std::has_single_bit(granule().count())
                             ? static_cast<unsigned>(std::countr_zero(granule().count()))
                             : 0;
  region->tiles = static_cast<Block**>(map_host_pages(region->table_bytes()));
  NOFRAG_CHECK(region->tiles != nullptr, "no host memory for a region's granule tables");
  region->first = make_block(*region, range.address, range.size, BlockState::kUnbacked);
  cover(region->first, range.address, range.end());
  shelve(region->first);
  context_.regions.emplace(range.address, region.get());
  regions_.push_back(std::move(region));
  return *regions_.back();
}

void RangeHeap::remove_region(Region& region) {
  NOFRAG_CHECK(region.mapping_count == 0 && region.first->next == nullptr,
               "region removed with something mapped in it");
  unused_view_ = unused_view_ == &region ? nullptr : unused_view_;
  unshelve(region.first);
  context_.blocks.destroy(region.first);
  context_.regions.erase(region.range.address);
  unmap_host_pages(static_cast<void*>(region.tiles), region.table_bytes());
  const std::size_t index = region.index;
  std::swap(regions_[index], regions_.back());
  regions_[index]->index = index;
  regions_.pop_back();
}

Block* RangeHeap::find_free(Bytes size, const StreamClock& clock) {
  FreeNode* own = clock.index < dirty_.size() && dirty_[clock.index] != nullptr
                      ? dirty_[clock.index]->index.find(size)
                      : nullptr;
  FreeNode* clean = clean_.index.find(size);
  // Among equals the stream's own memory, so that clean memory stays for everybody.
  const bool in_order = size > FreeIndex::kBestFitMax;
  const bool take_clean =
      own == nullptr ||
      (clean != nullptr && (in_order ? clean->address < own->address : clean->size < own->size));
  auto* found = static_cast<Block*>(take_clean ? clean : own);
  return parked_.empty() || (found != nullptr && !in_order) || !wake_for(size, found)
             ? found
             : find_free(size, clock);  // fewer are parked each time
}

Block* RangeHeap::allocate(Bytes size, Bytes requested, StreamClock& clock) {
  Block* block = find_free(size, clock);
  return block == nullptr ? nullptr : take_front(block, size, requested, clock);
}

Block* RangeHeap::take_front(Block* free, Bytes size, Bytes requested, StreamClock& clock) {
  Block* taken = free;
  if (free->size > size) {
    // The rest keeps its node, its mark and so its place in the list by age.
    const VirtAddr at = free->address;
    taken = add_before(free, at, size);
    reshape(free, at + size, free->size - size);
  } else {
    unshelve(free);
  }
  make_live(taken, requested, clock);
  if (unused_view_ != nullptr) [[unlikely]] {
    park_unused();
  }
  return taken;
}

void RangeHeap::make_live(Block* block, Bytes requested, StreamClock& clock) {
  block->state = BlockState::kLive;
  block->clock = &clock;
  block->tick = 0;
  block->requested = requested;
  add_use(block);
}

void RangeHeap::free(Block* block, Tick tick) {
  NOFRAG_ASSERT(block->state == BlockState::kLive || block->state == BlockState::kPending,
                "free of a block that is not allocated");
  const bool clean = sharing_ == Sharing::kShared && block->clock->done(tick);
  drop_use(block, block->clock, tick, clean);
  block->state = BlockState::kFree;
  block->requested = Bytes(0);
  block->tick = tick;
  if (clean) {
    block->clock = nullptr;
  }
  shelve_merged(block);
}

template <typename Visitor>
void RangeHeap::for_each_part(const Block& block, Visitor&& visit) const {
  const Region& region = *block.region;
  std::size_t index = region.granule_index(block.address);
  for (VirtAddr at = block.address; at < block.end();) {
    Mapping* mapping = region.mappings()[index];
    const VirtAddr stop = std::min(mapping->end(), block.end());
    index = region.granule_index(mapping->end());
    visit(*mapping, at, stop);
    at = stop;
  }
}

// A shadow came or went in the region. If nothing is allocated through it, it may be parked soon.
void RangeHeap::note_shadow(Region& region) {
  if (region.blocks == 0 && region.parked == 0 &&
      ++region.idle_changes >=
          context_.park_after + context_.park_after_a_mapping * region.mapping_count) {
    unused_view_ = &region;
  }
}

void RangeHeap::add_use(Block* block) {
  used_ += block->size;
  ++block->region->blocks;
  for_each_part(*block, [this](Mapping& mapping, VirtAddr from, VirtAddr to) {
    Handle& handle = *mapping.handle;
    if (handle.idle()) {
      pop_idle(&handle);
    }
    handle.used += to - from;
    ++mapping.blocks;
    if (handle.mapping_count == 1) {
      return;
    }
    for (Mapping* other = handle.mappings; other != nullptr; other = other->next) {
      if (other != &mapping && !other->parked) {
        const VirtAddr start = other->address + (from - mapping.address);
        carve(*other->region, start, start + (to - from))->state = BlockState::kShadow;
        note_shadow(*other->region);
      }
    }
  });
}

void RangeHeap::drop_use(Block* block, StreamClock* clock, Tick tick, bool clean) {
  used_ -= block->size;
  if (--block->region->blocks == 0) {
    block->region->idle_changes = 0;
  }
  block->region->parked_longest = kNoLimit;
  for_each_part(*block, [&](Mapping& mapping, VirtAddr from, VirtAddr to) {
    Handle& handle = *mapping.handle;
    handle.used -= to - from;
    --mapping.blocks;
    if (handle.ends_short) {
      list_ends(handle);
    }
    if (clock != nullptr) {
      mapping.last_uses.note(clock, tick);
    }
    if (handle.idle()) {
      push_idle(&handle);
    }
    if (handle.mapping_count == 1) {
      return;
    }
    for (Mapping* other = handle.mappings; other != nullptr; other = other->next) {
      if (other == &mapping) {
        continue;
      }
      other->region->parked_longest = kNoLimit;
      if (other->parked) {
        continue;
      }
      const VirtAddr start = other->address + (from - mapping.address);
      Block* shadow = covering(*other->region, start);
      NOFRAG_CHECK(shadow->state == BlockState::kShadow && shadow->address == start &&
                       shadow->size == to - from,
                   "an alias does not show what its handle is used for");
      shadow->state = BlockState::kFree;
      shadow->clock = clean ? nullptr : clock;
      shadow->tick = tick;
      other->region->near = shelve_merged(shadow);
      note_shadow(*other->region);
    }
  });
}

void RangeHeap::push_idle(Handle* handle) {
  handle->idle_since = ++context_.idle_sequence;
  handle->previous_idle = idle_last_;
  handle->next_idle = nullptr;
  (idle_last_ == nullptr ? idle_first_ : idle_last_->next_idle) = handle;
  idle_last_ = handle;
  idle_ += handle->physical.size;
  context_.idle_bytes += handle->physical.size;
}

void RangeHeap::pop_idle(Handle* handle) {
  (handle->previous_idle == nullptr ? idle_first_ : handle->previous_idle->next_idle) =
      handle->next_idle;
  (handle->next_idle == nullptr ? idle_last_ : handle->next_idle->previous_idle) =
      handle->previous_idle;
  handle->previous_idle = nullptr;
  handle->next_idle = nullptr;
  idle_ -= handle->physical.size;
  context_.idle_bytes -= handle->physical.size;
}

void RangeHeap::clean_done(StreamClock& clock) {
  if (sharing_ == Sharing::kPrivate || clock.index >= dirty_.size() ||
      dirty_[clock.index] == nullptr) {
    return;
  }
  Shelf& shelf = *dirty_[clock.index];
  while (shelf.oldest != nullptr && clock.done(shelf.oldest->tick)) {
    Block* block = shelf.oldest;
    unshelve(block);
    block->clock = nullptr;
    shelve_merged(block);
  }
  // Streams come and go; their shelves need not stay.
  if (shelf.oldest == nullptr && (clock.retired || clock.gone)) {
    dirty_[clock.index].reset();
  }
}

void RangeHeap::clean_all() {
  for (const auto& shelf : dirty_) {
    // A stream of another context was not waited for. A shelf holds one stream's blocks.
    while (shelf != nullptr && shelf->oldest != nullptr && !shelf->oldest->clock->foreign) {
      Block* block = shelf->oldest;
      unshelve(block);
      block->clock = nullptr;
      block = shelve_merged(block);
      if (block->clock != nullptr) {
        // With a single stream a dirty neighbour passed its mark on: it comes off again.
        unshelve(block);
        block->clock = nullptr;
        shelve(block);
      }
    }
  }
}

Bytes RangeHeap::largest_free_run() const {
  Bytes largest;
  const auto consider_shelf = [&largest](const FreeIndex& index) {
    if (const FreeNode* node = index.largest()) {
      largest = std::max(largest, node->size);
    }
  };
  consider_shelf(clean_.index);
  for (const auto& shelf : dirty_) {
    if (shelf != nullptr) {
      consider_shelf(shelf->index);
    }
  }
  for (const Region* view : parked_) {
    largest = std::max(largest, parked_run(*view, true));
  }
  return largest;
}

}  // namespace nofrag
