// RangeHeap, parked mappings: a view that nothing is allocated through gives tiles up, until somebody may need them.
//
// A view that nobody uses costs all the same: whatever is allocated and freed in its handles, through other
// addresses, comes and goes in it as a shadow. Parked mappings have one block over all that lie side by side, on no
// shelf, and nothing changes there. They are woken, their tiles made anew from what their handles show elsewhere,
// before a placement is taken or pinned in their view, and before a search that finds nothing without them gives up.
// What must hold: a parked mapping is in no home region; nothing is allocated through it; it is neither pinned nor
// stuck; and it is not its handle's oldest, so that every handle is shown somewhere.
// Only take_front() parks, once it has what it wanted: whoever looks for a place finds the views as they were.

#include <algorithm>
#include <utility>

#include "heap/range_heap.h"

namespace nofrag {
namespace {

bool may_park(const Mapping& mapping) {
  return mapping.blocks == 0 && mapping.pins == 0 && !mapping.stuck && mapping.next != nullptr;
}

bool lower(const Region* a, const Region* b) {
  return a->range.address < b->range.address;
}

}  // namespace

void RangeHeap::park_unused() {
  Region& view = *std::exchange(unused_view_, nullptr);
  view.idle_changes = 0;
  const bool worth_it = context_.park_with_several || !context_.streams.several();
  if (worth_it && !view.home && view.blocks == 0 && view.parked == 0) {
    park(view);
  }
}

void RangeHeap::park(Region& view) {
  for (VirtAddr at = view.range.address; at < view.range.end();) {
    Mapping* mapping = mapping_at(view, at);
    if (mapping == nullptr) {
      at = covering(view, at)->end();
      continue;
    }
    if (!may_park(*mapping)) {
      at = mapping->end();
      continue;
    }
    const VirtAddr from = at;
    while (mapping != nullptr && may_park(*mapping)) {
      mapping->parked = true;
      ++view.parked;
      at = mapping->end();
      mapping = at < view.range.end() ? mapping_at(view, at) : nullptr;
    }
    carve(view, from, at)->state = BlockState::kParked;
  }
  if (view.parked != 0) {
    view.parked_longest = kNoLimit;
    parked_.insert(std::upper_bound(parked_.begin(), parked_.end(), &view, lower), &view);
  }
}

void RangeHeap::wake(Region& view) {
  if (view.parked == 0) [[likely]] {
    return;
  }
  for (Block* b = view.first; b != nullptr;) {
    if (b->state != BlockState::kParked) {
      b = b->next;
      continue;
    }
    const VirtAddr end = b->end();
    while (b != nullptr) {
      Mapping& mapping = *mapping_at(view, b->address);
      b = show(b, mapping.handle->shown());
      mapping.parked = false;
    }
    // By address: the block that was behind may have merged with the last of these.
    b = end < view.range.end() ? covering(view, end) : nullptr;
  }
  view.parked = 0;
  view.idle_changes = 0;
  std::erase(parked_, &view);
}

void RangeHeap::wake_all() {
  while (!parked_.empty()) {
    wake(*parked_.back());
  }
}

// The longest free run that the view would have if nothing in it was parked: whatever the marks, or of one mark.
Bytes RangeHeap::parked_run(const Region& view, bool one_mark) const {
  Bytes longest;
  Bytes run;
  const StreamClock* mark = nullptr;
  const bool any = !one_mark || !context_.streams.several();
  const auto add = [&](const Block& tile, Bytes size) {
    if (tile.state != BlockState::kFree) {
      run = Bytes(0);
      return;
    }
    run = any || tile.clock == mark ? run + size : size;
    mark = tile.clock;
    longest = std::max(longest, run);
  };
  for (const Block* block = view.first; block != nullptr; block = block->next) {
    if (block->state != BlockState::kParked) {
      add(*block, block->size);
      continue;
    }
    for_each_mapping(view, block->address, block->end(), [&](const Mapping& mapping) {
      const Mapping& source = mapping.handle->shown();
      for (const Block* b = covering(*source.region, source.address);
           b != nullptr && b->address < source.end();
           b = b->next) {
        add(*b, std::min(b->end(), source.end()) - std::max(b->address, source.address));
      }
    });
  }
  return longest;
}

// Wakes the first view that may have a free run of `size` at a lower address than what was found without it. False if
// there is none.
bool RangeHeap::wake_for(Bytes size, const Block* found) {
  for (Region* view : parked_) {
    if (found != nullptr && found->address < view->range.address) {
      return false;
    }
    if (view->parked_longest >= size) {
      view->parked_longest = parked_run(*view, false);
      if (view->parked_longest >= size) {
        wake(*view);
        return true;
      }
    }
  }
  return false;
}

}  // namespace nofrag
