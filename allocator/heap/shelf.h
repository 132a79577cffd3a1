// Shelf: the free blocks of one stream, or the clean ones.
//
// Owns: the index; blocks belong to their heap. Layer: heap. Units: Bytes.
// Invariants: the list has the index's blocks, oldest tick first; clean blocks are in no list.
// Threads: none (the device lock). Failure: none. Cost: the index's; the list O(1).
#pragma once

#include "heap/block.h"
#include "index/free_index.h"

namespace nofrag {

struct Shelf {
  FreeIndex index;
  Block* oldest = nullptr;
  Block* newest = nullptr;

  // Into the list, at the newest place that its tick allows from behind `after` back. Nearly always the newest
  // tick; a remainder goes back behind its elders. One that would go far back counts as new instead: a later tick
  // is never wrong, only learned of later.
  [[gnu::hot]] void age_in(Block* block, Block* after);
  [[gnu::hot]] void age_out(Block* block);
};

}  // namespace nofrag
