#include "heap/shelf.h"

namespace nofrag {
namespace {

// How far a block is carried back to its place by age before it counts as new.
constexpr int kShelfWalk = 16;

}  // namespace

void Shelf::age_in(Block* block, Block* after) {
  for (int steps = 0; after != nullptr && after->tick > block->tick; ++steps) {
    if (steps == kShelfWalk) {
      block->tick = newest->tick;
      after = newest;
      break;
    }
    after = after->previous_dirty;
  }
  block->previous_dirty = after;
  block->next_dirty = after == nullptr ? oldest : after->next_dirty;
  (after == nullptr ? oldest : after->next_dirty) = block;
  (block->next_dirty == nullptr ? newest : block->next_dirty->previous_dirty) = block;
}

void Shelf::age_out(Block* block) {
  (block->previous_dirty == nullptr ? oldest : block->previous_dirty->next_dirty) =
      block->next_dirty;
  (block->next_dirty == nullptr ? newest : block->next_dirty->previous_dirty) =
      block->previous_dirty;
  block->previous_dirty = nullptr;
  block->next_dirty = nullptr;
}

}  // namespace nofrag
