#include "heap/range_heap.h"

#include <algorithm>

namespace nofrag {
namespace {

// How far a block is carried back to its place by age before it counts as new.
constexpr int kShelfWalk = 16;

}  // namespace

void LastUses::note(StreamClock* clock, Tick tick) {
  for (std::uint32_t i = 0; i < count_; ++i) {
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
    unmap_host_pages(region.granules, region.granule_count * sizeof(Region::Granule));
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
  region->granules = static_cast<Region::Granule*>(
      map_host_pages(region->granule_count * sizeof(Region::Granule)));
  NOFRAG_CHECK(region->granules != nullptr, "no host memory for a region's granule table");
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
  unshelve(region.first);
  context_.blocks.destroy(region.first);
  context_.regions.erase(region.range.address);
  unmap_host_pages(region.granules, region.granule_count * sizeof(Region::Granule));
  const std::size_t index = region.index;
  std::swap(regions_[index], regions_.back());
  regions_[index]->index = index;
  regions_.pop_back();
}

Block* RangeHeap::make_block(Region& region, VirtAddr address, Bytes size, BlockState state) {
  Block* block = context_.blocks.make();
  NOFRAG_CHECK(block != nullptr, "no host memory for a block");
  block->address = address;
  block->size = size;
  block->state = state;
  block->region = &region;
  return block;
}

// Only granules whose first byte lies in [from, to) change hands.
void RangeHeap::cover(Block* block, VirtAddr from, VirtAddr to) {
  Region& region = *block->region;
  const Bytes last_byte = Bytes(granule().count() - 1);
  const std::size_t first = granule_index(region, from + last_byte);
  const std::size_t end = granule_index(region, to + last_byte);
  for (std::size_t i = first; i < end; ++i) {
    region.granules[i].block = block;
  }
}

Block* RangeHeap::covering(const Region& region, VirtAddr address) {
  const Bytes granularity = region.heap->granule();
  Block* block = region.granules[(address - region.range.address) / granularity].block;
  while (block != nullptr && address >= block->end()) {
    block = block->next;
  }
  return block;
}

RangeHeap::Shelf& RangeHeap::shelf_of(const StreamClock& clock) {
  while (dirty_.size() <= clock.index) {
    dirty_.push_back(nullptr);
  }
  auto& shelf = dirty_[clock.index];
  if (shelf == nullptr) {
    shelf = std::make_unique<Shelf>();
  }
  return *shelf;
}

void RangeHeap::shelve(Block* block) {
  if (block->state == BlockState::kUnbacked) {
    unbacked_.insert(block);
    return;
  }
  if (block->state != BlockState::kFree) {
    return;
  }
  if (block->clock == nullptr) {
    clean_.index.insert(block);
    return;
  }
  Shelf& shelf = shelf_of(*block->clock);
  shelf.index.insert(block);
  // Nearly always the newest tick; a remainder goes back behind its elders. One that would go far back
  // counts as new instead: a later tick is never wrong, only learned of later.
  Block* after = shelf.newest;
  for (int steps = 0; after != nullptr && after->tick > block->tick; ++steps) {
    if (steps == kShelfWalk) {
      block->tick = shelf.newest->tick;
      after = shelf.newest;
      break;
    }
    after = after->previous_dirty;
  }
  block->previous_dirty = after;
  block->next_dirty = after == nullptr ? shelf.oldest : after->next_dirty;
  (after == nullptr ? shelf.oldest : after->next_dirty) = block;
  (block->next_dirty == nullptr ? shelf.newest : block->next_dirty->previous_dirty) = block;
}

void RangeHeap::unshelve(Block* block) {
  if (block->state == BlockState::kUnbacked) {
    unbacked_.remove(block);
    return;
  }
  if (block->state != BlockState::kFree) {
    return;
  }
  if (block->clock == nullptr) {
    clean_.index.remove(block);
    return;
  }
  Shelf& shelf = shelf_of(*block->clock);
  shelf.index.remove(block);
  (block->previous_dirty == nullptr ? shelf.oldest : block->previous_dirty->next_dirty) =
      block->next_dirty;
  (block->next_dirty == nullptr ? shelf.newest : block->next_dirty->previous_dirty) =
      block->previous_dirty;
  block->previous_dirty = nullptr;
  block->next_dirty = nullptr;
}

bool RangeHeap::mergeable(const Block& a, const Block& b) const {
  if (a.state != b.state) {
    return false;
  }
  if (a.state == BlockState::kUnbacked) {
    return true;
  }
  if (a.state != BlockState::kFree) {
    return false;
  }
  // With one stream a mark holds nobody up, so clean and dirty need not be kept apart.
  return a.clock == b.clock || !context_.streams.several();
}

// The longer block's node survives: fewer granule entries change.
Block* RangeHeap::absorb(Block* left, Block* right) {
  Block* survivor = left->size >= right->size ? left : right;
  Block* gone = survivor == left ? right : left;
  cover(survivor, gone->address, gone->end());
  if (gone->clock != nullptr) {
    survivor->tick = survivor->clock == nullptr ? gone->tick : std::max(survivor->tick, gone->tick);
    survivor->clock = gone->clock;
  }
  Block* before = left->previous;
  Block* after = right->next;
  survivor->address = left->address;
  survivor->size = left->size + right->size;
  survivor->previous = before;
  survivor->next = after;
  (before == nullptr ? survivor->region->first : before->next) = survivor;
  if (after != nullptr) {
    after->previous = survivor;
  }
  context_.blocks.destroy(gone);
  return survivor;
}

Block* RangeHeap::merge_neighbours(Block* block) {
  if (block->previous != nullptr && mergeable(*block->previous, *block)) {
    unshelve(block->previous);
    block = absorb(block->previous, block);
  }
  if (block->next != nullptr && mergeable(*block, *block->next)) {
    unshelve(block->next);
    block = absorb(block, block->next);
  }
  return block;
}

Block* RangeHeap::cut_front(Block* block, VirtAddr at) {
  Block* front = make_block(*block->region, block->address, at - block->address, block->state);
  front->clock = block->clock;
  front->tick = block->tick;
  front->previous = block->previous;
  front->next = block;
  (front->previous == nullptr ? block->region->first : front->previous->next) = front;
  block->previous = front;
  block->size = block->end() - at;
  block->address = at;
  cover(front, front->address, at);
  return front;
}

Block* RangeHeap::carve(Region& region, VirtAddr from, VirtAddr to) {
  Block* block = covering(region, from);
  Block* carved = nullptr;
  for (;;) {
    NOFRAG_CHECK(block != nullptr && block->state != BlockState::kLive &&
                     block->state != BlockState::kPending,
                 "carving addresses that are in use");
    unshelve(block);
    if (block->address < from) {
      shelve(cut_front(block, from));
    }
    if (block->end() > to) {
      Block* front = cut_front(block, to);
      shelve(block);
      block = front;
    }
    block->clock = nullptr;
    block->tick = 0;
    carved = carved == nullptr ? block : absorb(carved, block);
    if (carved->end() == to) {
      return carved;
    }
    block = carved->next;
  }
}

Block* RangeHeap::find_free(Bytes size, const StreamClock& clock) const {
  FreeNode* own = clock.index < dirty_.size() && dirty_[clock.index] != nullptr
                      ? dirty_[clock.index]->index.find(size)
                      : nullptr;
  FreeNode* clean = clean_.index.find(size);
  // Among equals the stream's own memory, so that clean memory stays for everybody.
  const bool in_order = size > FreeIndex::kBestFitMax;
  const bool take_clean =
      own == nullptr ||
      (clean != nullptr && (in_order ? clean->address < own->address : clean->size < own->size));
  return static_cast<Block*>(take_clean ? clean : own);
}

Block* RangeHeap::allocate(Bytes size, Bytes requested, StreamClock& clock) {
  Block* block = find_free(size, clock);
  return block == nullptr ? nullptr : take_front(block, size, requested, clock);
}

Block* RangeHeap::take_front(Block* free, Bytes size, Bytes requested, StreamClock& clock) {
  Block* taken = free;
  if (free->size > size) {
    // The rest keeps its node, its mark and so its place in the list by age.
    FreeIndex& index = free->clock == nullptr ? clean_.index : shelf_of(*free->clock).index;
    index.remove(free);
    taken = cut_front(free, free->address + size);
    index.insert(free);
  } else {
    unshelve(free);
  }
  make_live(taken, requested, clock);
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
  shelve(merge_neighbours(block));
}

template <typename Visitor>
void RangeHeap::for_each_part(const Block& block, Visitor&& visit) const {
  const Region& region = *block.region;
  std::size_t index = granule_index(region, block.address);
  for (VirtAddr at = block.address; at < block.end();) {
    Mapping* mapping = region.granules[index].mapping;
    const VirtAddr stop = std::min(mapping->end(), block.end());
    index = mapping->first_granule + mapping->handle->granule_count;
    visit(*mapping, at, stop);
    at = stop;
  }
}

void RangeHeap::add_use(Block* block) {
  used_ += block->size;
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
      if (other != &mapping) {
        const VirtAddr start = other->address + (from - mapping.address);
        carve(*other->region, start, start + (to - from))->state = BlockState::kShadow;
      }
    }
  });
}

void RangeHeap::drop_use(Block* block, StreamClock* clock, Tick tick, bool clean) {
  used_ -= block->size;
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
      const VirtAddr start = other->address + (from - mapping.address);
      Block* shadow = covering(*other->region, start);
      NOFRAG_CHECK(shadow->state == BlockState::kShadow && shadow->address == start &&
                       shadow->size == to - from,
                   "an alias does not show what its handle is used for");
      shadow->state = BlockState::kFree;
      shadow->clock = clean ? nullptr : clock;
      shadow->tick = tick;
      shelve(merge_neighbours(shadow));
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
    shelve(merge_neighbours(block));
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
      block = merge_neighbours(block);
      // With a single stream a dirty neighbour may have passed its mark on: take it off again.
      block->clock = nullptr;
      shelve(block);
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
  return largest;
}

}  // namespace nofrag
