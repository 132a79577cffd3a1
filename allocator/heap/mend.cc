#include "heap/mend.h"

#include <algorithm>
#include <utility>

namespace nofrag {
namespace {

// What taking a mapping away counts against making one.
constexpr double kReplaceCost = 0.9;
// What a byte counts that no idle handle elsewhere can give: it is moved, from all its addresses.
constexpr std::uint64_t kMoveCost = 4;

// One mapping of a view, or a stretch of it with nothing mapped.
struct Tile {
  VirtAddr address;
  Bytes size;
  Mapping* mapping = nullptr;
  bool free = false;         // all its bytes
  Bytes missing{};           // of all tiles before this one: bytes to be mapped, ...
  std::size_t replaced = 0;  // ... mappings that must go first, ...
  std::size_t fixed = 0;     // ... and tiles that serve neither as they are nor replaced

  [[nodiscard]] VirtAddr end() const { return address + size; }
};

// Nothing was allocated through it, and nothing can still be at work there.
bool replaceable(const Mapping& mapping) {
  return mapping.blocks == 0 && mapping.pins == 0 && !mapping.stuck &&
         mapping.handle->mapping_count > 1 &&
         mapping.last_uses.all_of(
             [](const StreamClock& clock, Tick tick) { return clock.done(tick); });
}

// The view's tiles in address order, and a last one of no size with the sums of all; the bytes of its idle
// handles.
Bytes list_tiles(const Region& region, std::vector<Tile>* tiles) {
  tiles->clear();
  Bytes idle;
  Tile next;
  next.address = region.range.address;
  for (std::size_t mapped = 0; next.address < region.range.end();) {
    next.mapping = RangeHeap::mapping_at(region, next.address);
    next.free = false;
    if (next.mapping != nullptr) {
      ++mapped;
      next.size = next.mapping->handle->physical.size;
      next.free = next.mapping->handle->idle() && !next.mapping->stuck;
      idle += next.free ? next.size : Bytes(0);
    } else {
      VirtAddr to = next.address + region.granularity;
      while (mapped < region.mapping_count && RangeHeap::mapping_at(region, to) == nullptr) {
        to = to + region.granularity;
      }
      next.size = (mapped < region.mapping_count ? to : region.range.end()) - next.address;
    }
    tiles->push_back(next);
    if (next.mapping != nullptr && !next.free && !replaceable(*next.mapping)) {
      ++next.fixed;
    } else if (!next.free) {
      next.missing += next.size;
      next.replaced += next.mapping != nullptr ? 1U : 0U;
    }
    next.address = next.end();
  }
  next.mapping = nullptr;
  next.size = Bytes(0);
  tiles->push_back(next);
  return idle;
}

// Does the window leave the used bytes of the handle under its first or last mapping alone?
bool spares(const RangeHeap& heap, const Mapping& mapping, const Placement& window) {
  if (mapping.handle->idle()) {
    return true;
  }
  const RangeHeap::Ends ends = heap.free_ends(*mapping.handle);
  return (mapping.address < window.address && mapping.end() - ends.back <= window.address) ||
         (window.end() <= mapping.end() && window.end() <= mapping.address + ends.front);
}

// The windows of one view after the other; the cheapest is kept.
class MendSearch {
 public:
  MendSearch(const RangeHeap& heap, const MendRequest& request) : heap_(heap), request_(request) {}

  void look_at(Region& view) {
    const Bytes idle_here = list_tiles(view, &tiles_);
    elsewhere_ = request_.idle - std::min(request_.idle, idle_here);
    last_ = 0;
    for (std::size_t first = 0; first + 1 < tiles_.size(); ++first) {
      const Tile& tile = tiles_[first];
      consider(view, tile.address, first);
      // What is free at its back may be where the request begins.
      if (tile.mapping != nullptr && !tile.free && !tile.mapping->stuck) {
        const Bytes back = heap_.free_ends(*tile.mapping->handle).back;
        if (!back.is_zero()) {
          consider(view, tile.end() - back, first + 1);
        }
      }
    }
  }

  std::optional<Mend> take() {
    if (best_.has_value()) {
      const Placement& window = best_->placement;
      RangeHeap::for_each_mapping(
          *window.region, window.address, window.end(), [&](Mapping& mapping) {
            if (!spares(heap_, mapping, window)) {
              best_->in_the_way.push_back(&mapping);
            }
          });
    }
    return std::move(best_);
  }

 private:
  // The window from `start` on, of which `whole` is the first tile that counts. Starts only ever go up.
  void consider(Region& view, VirtAddr start, std::size_t whole) {
    Placement window{&view, start, request_.size, Bytes(0)};
    if (window.end() > view.range.end()) {
      return;
    }
    while (tiles_[last_].end() < window.end()) {
      ++last_;
    }
    const Tile& from = tiles_[whole];
    const Tile& to = tiles_[last_];
    if (last_ < whole || to.fixed != from.fixed) {
      return;
    }
    window.missing = to.missing - from.missing;
    std::size_t replaced = to.replaced - from.replaced;
    if (to.mapping == nullptr) {
      window.missing += round_up(window.end() - to.address, view.granularity);
    } else if (to.mapping->stuck || !spares(heap_, *to.mapping, window)) {
      if (tiles_[last_ + 1].fixed != to.fixed) {
        return;
      }
      window.missing += to.size;
      ++replaced;
    }
    const Bytes moved = window.missing - std::min(window.missing, elsewhere_);
    const Bytes weighed = window.missing + (kMoveCost - 1) * moved;
    const double cost =
        kReplaceCost * static_cast<double>(replaced) +
        static_cast<double>(weighed.count()) / static_cast<double>(request_.piece.count());
    if (cost < (best_.has_value() ? best_->cost : request_.most)) {
      best_ = Mend{window, {}, cost};
    }
  }

  const RangeHeap& heap_;
  const MendRequest& request_;
  std::vector<Tile> tiles_;
  Bytes elsewhere_;  // in idle handles that are not mapped in the view
  std::size_t last_ = 0;
  std::optional<Mend> best_;
};

}  // namespace

std::optional<Mend> find_mend(const RangeHeap& heap, const MendRequest& request) {
  MendSearch search(heap, request);
  for (const auto& region : heap.regions()) {
    if (!region->home && region->mapping_count > 0 && request.size <= region->range.size) {
      search.look_at(*region);
    }
  }
  return search.take();
}

}  // namespace nofrag
