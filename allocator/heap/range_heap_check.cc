// RangeHeap::check(): every invariant of range_heap.h, block.h and handle.h, walked.

#include <algorithm>

#include "heap/range_heap.h"

namespace nofrag {
namespace {

bool allocated(BlockState state) {
  return state == BlockState::kLive || state == BlockState::kPending || state == BlockState::kLost;
}

// Bytes of a handle, counted from its front, that one block uses.
struct Part {
  Bytes from;
  Bytes to;
  friend bool operator==(const Part&, const Part&) = default;
  friend bool operator<(const Part& a, const Part& b) { return a.from < b.from; }
};

// What is not free at a mapping's addresses; `own` = only what was allocated there.
std::vector<Part> parts_of(const Mapping& mapping, bool own) {
  std::vector<Part> parts;
  for (const Block* b = RangeHeap::covering(*mapping.region, mapping.address);
       b != nullptr && b->address < mapping.end();
       b = b->next) {
    NOFRAG_CHECK(b->state != BlockState::kUnbacked, "a mapping over unbacked addresses");
    if (own ? allocated(b->state) : b->state != BlockState::kFree) {
      parts.push_back({std::max(b->address, mapping.address) - mapping.address,
                       std::min(b->end(), mapping.end()) - mapping.address});
    }
  }
  return parts;
}

void check_lookup(const Region& region) {
  bool near_is_a_tile = region.near == nullptr;
  for (const Block* block = region.first; block != nullptr; block = block->next) {
    NOFRAG_CHECK(RangeHeap::covering(region, block->address) == block &&
                     RangeHeap::covering(region, block->end() - FreeIndex::kUnit) == block,
                 "a block is not found by an address of its own");
    near_is_a_tile = near_is_a_tile || block == region.near;
  }
  NOFRAG_CHECK(near_is_a_tile, "a region names a tile that is gone");
}

}  // namespace

void RangeHeap::check_region(const Region& region) const {
  VirtAddr expected = region.range.address;
  const Block* previous = nullptr;
  std::size_t blocks = 0;
  for (const Block* block = region.first; block != nullptr; block = block->next) {
    NOFRAG_CHECK(block->region == &region && block->previous == previous, "broken block list");
    NOFRAG_CHECK(block->address == expected && !block->size.is_zero(), "blocks do not tile");
    const bool stuck =
        block->state == BlockState::kLost && mapping_at(region, block->address)->stuck;
    blocks += allocated(block->state) && !stuck ? 1U : 0U;
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
  NOFRAG_CHECK(blocks == region.blocks, "blocks of a region miscounted");

  const Block* block = region.first;
  std::size_t mappings = 0;
  std::size_t parked = 0;
  for (std::size_t i = 0; i < region.granule_count; ++i) {
    const VirtAddr start = region.range.address + granule() * i;
    while (block != nullptr && block->end() <= start) {
      block = block->next;
    }
    NOFRAG_CHECK(block != nullptr, "granule beyond the last block");
    NOFRAG_CHECK(region.tiles[i] == block, "granule table names the wrong block");
    const Mapping* mapping = region.mappings()[i];
    NOFRAG_CHECK((block->state == BlockState::kUnbacked) == (mapping == nullptr),
                 "backing and block state disagree");
    if (mapping != nullptr) {
      NOFRAG_CHECK(mapping->region == &region && start >= mapping->address &&
                       start + granule() <= mapping->end() &&
                       mapping->size == mapping->handle->physical.size &&
                       region.mappings()[region.granule_index(mapping->address)] == mapping,
                   "granule table names the wrong mapping");
      NOFRAG_CHECK(mapping->parked == (block->state == BlockState::kParked),
                   "a mapping shows its tiles, or is parked");
      mappings += start == mapping->address ? 1U : 0U;
      parked += start == mapping->address && mapping->parked ? 1U : 0U;
    }
    // A region is mostly untouched addresses: skip to the end of a large unbacked block.
    if (block->state == BlockState::kUnbacked && block->next == nullptr) {
      break;
    }
  }
  NOFRAG_CHECK(mappings == region.mapping_count && parked == region.parked,
               "mappings in a region miscounted");
  NOFRAG_CHECK(parked == 0 || parked_run(region, false) <= region.parked_longest,
               "a parked view has a longer run than it says");
}

void RangeHeap::check_handles() const {
  Bytes mapped;
  Bytes used;
  std::size_t listed = 0;
  for (const Handle* handle : handles_) {
    NOFRAG_CHECK(handles_[handle->index] == handle, "handle list and its index disagree");
    std::vector<Part> taken;
    std::uint32_t count = 0;
    std::uint32_t pins = 0;
    for (const Mapping* m = handle->mappings; m != nullptr; m = m->next) {
      NOFRAG_CHECK(m->handle == handle && handle->in(*m->region) == m,
                   "a handle is mapped twice in one region");
      if (m->parked) {
        NOFRAG_CHECK(
            !m->region->home && !m->stuck && m->blocks == 0 && m->pins == 0 && m->next != nullptr,
            "a mapping is parked that is used, pinned or its handle's oldest");
        ++count;
        continue;
      }
      const std::vector<Part> own = parts_of(*m, true);
      NOFRAG_CHECK(own.size() == m->blocks, "blocks of a mapping miscounted");
      taken.insert(taken.end(), own.begin(), own.end());
      ++count;
      pins += m->pins;
    }
    for (const Mapping* m : stuck_) {
      pins += m->handle == handle ? 1 : 0;
    }
    NOFRAG_CHECK(count == handle->mapping_count && count > 0 && pins == handle->pins,
                 "mappings or pins of a handle miscounted");
    std::sort(taken.begin(), taken.end());
    Bytes end;
    Bytes sum;
    for (const Part& part : taken) {
      NOFRAG_CHECK(part.from >= end, "two blocks share bytes of a handle");
      end = part.to;
      sum += part.to - part.from;
    }
    NOFRAG_CHECK(sum == handle->used, "handle's used bytes differ from its blocks");
    for (const Mapping* m = handle->mappings; m != nullptr; m = m->next) {
      NOFRAG_CHECK(m->parked || parts_of(*m, false) == taken,
                   "a mapping does not show what its handle is used for");
    }
    if (handle->ends_short) {
      const Ends ends = free_ends(*handle);
      NOFRAG_CHECK(ends.front < kLongEnd && ends.back < kLongEnd, "a long end passes for short");
    } else {
      NOFRAG_CHECK(long_ends_[handle->ends_index] == handle, "a handle's ends are not listed");
      ++listed;
    }
    mapped += handle->physical.size;
    used += sum;
  }
  NOFRAG_CHECK(listed == long_ends_.size(), "ends of handles that are gone are listed");
  NOFRAG_CHECK(mapped == mapped_, "mapped bytes differ from the handles");
  NOFRAG_CHECK(used == used_, "used bytes differ from the blocks");
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

void RangeHeap::check_shelves() const {
  Bytes free_bytes;
  Bytes unbacked;
  for (const auto& region : regions_) {
    for (const Block* block = region->first; block != nullptr; block = block->next) {
      free_bytes += block->state == BlockState::kFree ? block->size : Bytes(0);
      unbacked += block->state == BlockState::kUnbacked ? block->size : Bytes(0);
    }
  }
  clean_.index.check();
  unbacked_.check();
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
  NOFRAG_CHECK(unbacked == unbacked_.bytes(), "shelved addresses differ from the unbacked blocks");
}

void RangeHeap::check() const {
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    NOFRAG_CHECK(regions_[i]->index == i, "region list and its index disagree");
    check_region(*regions_[i]);
    check_lookup(*regions_[i]);
    const auto listed = std::count(parked_.begin(), parked_.end(), regions_[i].get());
    NOFRAG_CHECK(listed == (regions_[i]->parked != 0 ? 1 : 0),
                 "views with parked mappings are listed");
  }
  check_handles();
  check_idle_list();
  check_shelves();
}

}  // namespace nofrag
