// RangeHeap, where a request that no free block holds could go.

#include <algorithm>

#include "heap/range_heap.h"

namespace nofrag {
namespace {

// Around how many of the longest free runs a search looks, and how many blocks to each side.
constexpr std::size_t kSeeds = 32;
constexpr int kChainWalk = 32;

}  // namespace

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

bool RangeHeap::usable(const Block& block, const StreamClock& clock, Scope scope) const {
  return block.state == BlockState::kUnbacked ||
         (block.state == BlockState::kFree &&
          (scope == Scope::kAny || block.clock == nullptr || block.clock == &clock));
}

// The chain of usable blocks around a free run, as far as a request could reach.
void RangeHeap::consider_around(Block* seed,
                                Bytes size,
                                const StreamClock& clock,
                                Scope scope,
                                std::optional<Placement>* best) {
  Block* first = seed;
  Bytes before;
  for (int steps = 0; steps < kChainWalk && before < size; ++steps) {
    Block* previous = first->previous;
    if (previous == nullptr || !usable(*previous, clock, scope)) {
      break;
    }
    first = previous;
    before += first->size;
  }
  chain_.clear();
  Bytes length;
  Bytes after;
  for (Block* block = first; block != nullptr && usable(*block, clock, scope);
       block = block->next) {
    chain_.push_back(block);
    length += block->size;
    after += block->address > seed->address ? block->size : Bytes(0);
    if (after >= size || chain_.size() >= 2 * std::size_t{kChainWalk}) {
      break;
    }
  }
  if (length >= size) {
    consider(chain_, size, best);
  }
}

std::optional<Placement> RangeHeap::find_placement(Bytes size,
                                                   const StreamClock& clock,
                                                   Scope scope) {
  wake_all();
  std::optional<Placement> best;
  if (FreeNode* node = unbacked_.find(size)) {
    const Bytes missing = round_up(size, granule());
    best = Placement{static_cast<Block*>(node)->region, node->address, size, missing};
  }
  if (scope == Scope::kUnbacked) {
    return best;
  }
  const auto around_longest = [&](const FreeIndex& index) {
    index.for_largest(kSeeds, [&](FreeNode* node) {
      consider_around(static_cast<Block*>(node), size, clock, scope, &best);
    });
  };
  around_longest(clean_.index);
  if (scope == Scope::kAny) {
    for (const auto& shelf : dirty_) {
      if (shelf != nullptr) {
        around_longest(shelf->index);
      }
    }
  } else if (clock.index < dirty_.size() && dirty_[clock.index] != nullptr) {
    around_longest(dirty_[clock.index]->index);  // a stream that freed nothing here has no shelf
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

bool RangeHeap::open(const Placement& placement) {
  const Block* block = covering(*placement.region, placement.address);
  while (block != nullptr && block->address < placement.end()) {
    if (block->state != BlockState::kFree && block->state != BlockState::kUnbacked) {
      return false;
    }
    block = block->next;
  }
  return true;
}

Block* RangeHeap::take(const Placement& placement, Bytes requested, StreamClock& clock) {
  wake(*placement.region);
  for (const Block* block = covering(*placement.region, placement.address);
       block != nullptr && block->address < placement.end();
       block = block->next) {
    NOFRAG_CHECK(block->state == BlockState::kFree, "placement is not free");
  }
  // What lay under the placement is this stream's from now on, whatever its mark was.
  Block* taken = carve(*placement.region, placement.address, placement.end());
  make_live(taken, requested, clock);
  return taken;
}

}  // namespace nofrag
