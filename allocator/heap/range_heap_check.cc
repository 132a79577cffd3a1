// RangeHeap::check(): every invariant of range_heap.h and block.h, walked.

#include "heap/range_heap.h"

namespace nofrag {

void RangeHeap::check_region(const Region& region) const {
  VirtAddr expected = region.range.address;
  const Block* previous = nullptr;
  for (const Block* block = region.first; block != nullptr; block = block->next) {
    NOFRAG_CHECK(block->region == &region && block->previous == previous, "broken block list");
    NOFRAG_CHECK(block->address == expected && !block->size.is_zero(), "blocks do not tile");
    if (previous != nullptr && previous->state == block->state) {
      const bool same_mark = block->state == BlockState::kFree && previous->clock == block->clock;
      NOFRAG_CHECK(block->state != BlockState::kUnbacked && !same_mark,
                   "mergeable neighbours stay apart");
    }
    if (block->state == BlockState::kUnbacked) {
      NOFRAG_CHECK(((block->address - region.range.address) % granule()).is_zero() &&
                       (block->size % granule()).is_zero(),
                   "unbacked block off the granules");
    }
    expected = block->end();
    previous = block;
  }
  NOFRAG_CHECK(expected == region.range.end(), "blocks do not fill the region");

  const Block* block = region.first;
  Bytes used_in_handle;
  for (std::size_t i = 0; i < region.granule_count; ++i) {
    const VirtAddr start = region.range.address + granule() * i;
    const VirtAddr end = start + granule();
    while (block != nullptr && block->end() <= start) {
      block = block->next;
    }
    NOFRAG_CHECK(block != nullptr, "granule beyond the last block");
    NOFRAG_CHECK(region.granules[i].block == block, "granule table names the wrong block");
    const Handle* handle = region.granules[i].handle;
    if (handle != nullptr) {
      NOFRAG_CHECK(handle->region == &region && start >= handle->address && end <= handle->end(),
                   "granule table names the wrong handle");
    }
    if (handle == nullptr || start == handle->address) {
      used_in_handle = Bytes(0);
    }
    for (const Block* b = block; b != nullptr && b->address < end; b = b->next) {
      NOFRAG_CHECK((b->state == BlockState::kUnbacked) == (handle == nullptr),
                   "backing and block state disagree");
      if (b->state != BlockState::kFree && b->state != BlockState::kUnbacked) {
        used_in_handle += std::min(b->end(), end) - std::max(b->address, start);
      }
    }
    if (handle != nullptr && end == handle->end()) {
      NOFRAG_CHECK(used_in_handle == handle->used, "handle's used bytes differ from its blocks");
    }
    // A region is mostly untouched addresses: skip to the end of a large unbacked block.
    if (block->state == BlockState::kUnbacked && block->next == nullptr) {
      break;
    }
  }
}

void RangeHeap::check_idle_list() const {
  Bytes idle;
  const Handle* previous = nullptr;
  for (const Handle* handle = idle_first_; handle != nullptr; handle = handle->next_idle) {
    NOFRAG_CHECK(handle->idle() && handle->previous_idle == previous, "broken idle list");
    NOFRAG_CHECK(previous == nullptr || previous->idle_since < handle->idle_since,
                 "idle list out of order");
    idle += handle->physical.size;
    previous = handle;
  }
  NOFRAG_CHECK(idle == idle_, "idle bytes differ from the idle list");
}

void RangeHeap::check() const {
  Bytes used;
  Bytes mapped;
  Bytes free_bytes;
  for (const auto& region : regions_) {
    check_region(*region);
    for (const Block* block = region->first; block != nullptr; block = block->next) {
      if (block->state == BlockState::kUnbacked) {
        continue;
      }
      mapped += block->size;
      (block->state == BlockState::kFree ? free_bytes : used) += block->size;
    }
  }
  NOFRAG_CHECK(mapped == mapped_, "mapped bytes differ from the blocks");
  NOFRAG_CHECK(used == used_, "used bytes differ from the blocks");
  clean_.index.check();
  Bytes shelved = clean_.index.bytes();
  for (const auto& shelf : dirty_) {
    if (shelf == nullptr) {
      continue;
    }
    shelf->index.check();
    shelved += shelf->index.bytes();
    std::uint64_t listed = 0;
    Tick tick = 0;
    for (const Block* block = shelf->oldest; block != nullptr; block = block->next_dirty) {
      NOFRAG_CHECK(block->tick >= tick, "dirty blocks out of order");
      tick = block->tick;
      ++listed;
    }
    NOFRAG_CHECK(listed == shelf->index.count(), "dirty list and index disagree");
  }
  NOFRAG_CHECK(shelved == free_bytes, "shelved bytes differ from the free blocks");
  check_idle_list();
}

}  // namespace nofrag
