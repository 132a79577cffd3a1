// RangeHeap, the tiles of its regions: how blocks are cut, merged and kept on shelves.

#include <algorithm>

#include "heap/range_heap.h"

namespace nofrag {
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
  const Bytes last_byte = Bytes(region.granularity.count() - 1);
  const std::size_t first = region.granule_index(from + last_byte);
  const std::size_t end = region.granule_index(to + last_byte);
  for (std::size_t i = first; i < end; ++i) {
    region.tiles[i] = block;
  }
}

namespace {

// So many steps from a granule's end, or from `near`, the tile is looked for at least.
constexpr int kFewSteps = 2;

bool covers(const Block& block, VirtAddr address) {
  return block.address <= address && address < block.end();
}

// The tile of the address, `steps` at most from `block`, or nullptr.
Block* close_to(Block* block, VirtAddr address, int steps) {
  for (; block != nullptr && steps >= 0; --steps) {
    if (covers(*block, address)) {
      return block;
    }
    block = address < block->address ? block->previous : block->next;
  }
  return nullptr;
}

}  // namespace

// From the nearer end of the granule, or from where a tile was made last: an LLM server's blocks are eight deep in
// their granule, the small ones of a training step forty, a journey to memory each.
Block* RangeHeap::covering(const Region& region, VirtAddr address) {
  NOFRAG_ASSERT(region.range.contains(address), "looking for a block outside the region");
  const std::size_t index = region.granule_index(address);
  const VirtAddr middle =
      region.range.address + region.granularity * index + Bytes(region.granularity.count() / 2);
  const bool from_end = address >= middle && index + 1 < region.granule_count;
  Block* block = region.tiles[index + (from_end ? 1 : 0)];
  for (int steps = 0; !covers(*block, address); ++steps) {
    if (steps == kFewSteps) {
      if (Block* found = close_to(region.near, address, kFewSteps)) {
        return found;
      }
    }
    block = from_end ? block->previous : block->next;
  }
  return block;
}

Shelf& RangeHeap::shelf_of(const StreamClock& clock) {
  if (clock.index < dirty_.size() && dirty_[clock.index] != nullptr) [[likely]] {
    return *dirty_[clock.index];
  }
  while (dirty_.size() <= clock.index) {
    dirty_.push_back(nullptr);
  }
  dirty_[clock.index] = std::make_unique<Shelf>();
  return *dirty_[clock.index];
}

FreeIndex& RangeHeap::index_of(const Block& block) {
  if (block.state == BlockState::kUnbacked) {
    return unbacked_;
  }
  return block.clock == nullptr ? clean_.index : shelf_of(*block.clock).index;
}

void RangeHeap::shelve(Block* block) {
  if (!on_shelf(*block)) {
    return;
  }
  index_of(*block).insert(block);
  if (block->clock != nullptr) {
    Shelf& shelf = shelf_of(*block->clock);
    shelf.age_in(block, shelf.newest);
  }
}

void RangeHeap::unshelve(Block* block) {
  if (!on_shelf(*block)) {
    return;
  }
  index_of(*block).remove(block);
  if (block->clock != nullptr) {
    shelf_of(*block->clock).age_out(block);
  }
}

// A block on its shelf gets other addresses, between the same neighbours on it, and keeps its place by age.
void RangeHeap::reshape(Block* block, VirtAddr address, Bytes size) {
  if (on_shelf(*block)) {
    index_of(*block).change(block, address, size);
  } else {
    block->address = address;
    block->size = size;
  }
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

// A new tile of a state and mark like those of `block`, before or behind it.
Block* RangeHeap::add_before(Block* block, VirtAddr address, Bytes size) {
  Block* tile = make_block(*block->region, address, size, block->state);
  tile->clock = block->clock;
  tile->tick = block->tick;
  tile->previous = block->previous;
  tile->next = block;
  (tile->previous == nullptr ? block->region->first : tile->previous->next) = tile;
  block->previous = tile;
  cover(tile, address, address + size);
  return tile;
}

Block* RangeHeap::add_behind(Block* block, VirtAddr address, Bytes size) {
  Block* tile = make_block(*block->region, address, size, block->state);
  tile->clock = block->clock;
  tile->tick = block->tick;
  tile->previous = block;
  tile->next = block->next;
  if (tile->next != nullptr) {
    tile->next->previous = tile;
  }
  block->next = tile;
  cover(tile, address, address + size);
  return tile;
}

Block* RangeHeap::cut_front(Block* block, VirtAddr at) {
  Block* front = add_before(block, block->address, at - block->address);
  block->size = block->end() - at;
  block->address = at;
  return front;
}

// A neighbour's addresses and mark become `heir`'s. Neither is on a shelf, or `heir` has them already there.
void RangeHeap::inherit(Block* heir, Block* gone) {
  cover(heir, gone->address, gone->end());
  (gone->previous == nullptr ? gone->region->first : gone->previous->next) = gone->next;
  if (gone->next != nullptr) {
    gone->next->previous = gone->previous;
  }
  if (gone->region->near == gone) {
    gone->region->near = heir;
  }
  context_.blocks.destroy(gone);
}

// The longer block's node survives: fewer granule entries change.
Block* RangeHeap::absorb(Block* left, Block* right) {
  Block* survivor = left->size >= right->size ? left : right;
  Block* gone = survivor == left ? right : left;
  if (gone->clock != nullptr) {
    survivor->tick = survivor->clock == nullptr ? gone->tick : std::max(survivor->tick, gone->tick);
    survivor->clock = gone->clock;
  }
  survivor->address = left->address;
  survivor->size = left->size + right->size;
  inherit(survivor, gone);
  return survivor;
}

// The longest of the three keeps its node; if that is a neighbour, its place on its shelf is mended and not
// taken anew.
Block* RangeHeap::shelve_merged(Block* block) {
  Block* const left =
      block->previous != nullptr && mergeable(*block->previous, *block) ? block->previous : nullptr;
  Block* const right =
      block->next != nullptr && mergeable(*block, *block->next) ? block->next : nullptr;
  Block* heir = left != nullptr && left->size >= block->size ? left : block;
  heir = right != nullptr && right->size > heir->size ? right : heir;
  for (Block* neighbour : {left, right}) {
    if (neighbour != nullptr && neighbour != heir) {
      unshelve(neighbour);
    }
  }
  if (heir == block) {
    block = left != nullptr ? absorb(left, block) : block;
    block = right != nullptr ? absorb(block, right) : block;
    shelve(block);
    return block;
  }
  const VirtAddr from = left != nullptr ? left->address : block->address;
  const VirtAddr to = right != nullptr ? right->end() : block->end();
  StreamClock* clock = heir->clock;
  Tick tick = heir->tick;
  for (const Block* gone : {block, heir == left ? right : left}) {
    if (gone != nullptr && gone->clock != nullptr) {
      tick = clock == nullptr ? gone->tick : std::max(tick, gone->tick);
      clock = gone->clock;
    }
  }
  if (clock != heir->clock) {
    unshelve(heir);
    heir->clock = clock;
    heir->tick = tick;
    heir->address = from;
    heir->size = to - from;
    shelve(heir);
  } else {
    reshape(heir, from, to - from);
    if (tick != heir->tick) {
      Shelf& shelf = shelf_of(*clock);
      shelf.age_out(heir);
      heir->tick = tick;
      shelf.age_in(heir, shelf.newest);
    }
  }
  for (Block* gone : {heir == left ? right : left, block}) {
    if (gone != nullptr) {
      inherit(heir, gone);
    }
  }
  return heir;
}

// [from, to) of a block as one of its own, unshelved. Of what is left the longer part keeps the node.
Block* RangeHeap::cut_out(Block* block, VirtAddr from, VirtAddr to) {
  const VirtAddr start = block->address;
  const VirtAddr end = block->end();
  if (from == start && to == end) {
    unshelve(block);
    return block;
  }
  Block* piece = nullptr;
  Block* rest = nullptr;
  if (from - start >= end - to) {
    piece = add_behind(block, from, to - from);
    rest = to < end ? add_behind(piece, to, end - to) : nullptr;
    reshape(block, start, from - start);
  } else {
    piece = add_before(block, from, to - from);
    rest = start < from ? add_before(piece, start, from - start) : nullptr;
    reshape(block, to, end - to);
  }
  if (rest != nullptr && on_shelf(*rest)) {
    index_of(*rest).insert(rest);
    if (rest->clock != nullptr) {
      shelf_of(*rest->clock).age_in(rest, block);
    }
  }
  return piece;
}

Block* RangeHeap::carve(Region& region, VirtAddr from, VirtAddr to) {
  Block* carved = nullptr;
  for (Block* block = covering(region, from);; block = carved->next) {
    NOFRAG_CHECK(block != nullptr && block->state != BlockState::kLive &&
                     block->state != BlockState::kPending,
                 "carving addresses that are in use");
    Block* piece = cut_out(block, std::max(from, block->address), std::min(to, block->end()));
    piece->clock = nullptr;
    piece->tick = 0;
    carved = carved == nullptr ? piece : absorb(carved, piece);
    if (carved->end() == to) {
      region.near = carved;
      return carved;
    }
  }
}

}  // namespace nofrag
