// RangeHeap: the blocks of one pool: a coalescing arena over mapped and unmapped addresses.
//
// Owns: its regions (addresses), the blocks that tile them and the records of the handles and their
// mappings. It moves nodes and numbers only: mapping, creating and waiting are done by the device
// layer, which tells the heap through attach(), alias(), drop() and detach().
// Layer: heap.
// Units: Bytes in multiples of 512 B; gaps and handles in granules.
// Streams: a free block is either clean (any stream may take it) or dirty: the work of one stream up to
// a tick may still touch it, so only that stream may take it. Neighbours merge when they carry the same
// mark; while the device has seen one stream only, everything merges. All mappings of a handle carry the
// marks of its bytes.
// Invariants: blocks tile every region in address order; two mergeable neighbours never stay apart after
// a free; free and unbacked blocks are in exactly one index; what is allocated through one mapping of a
// handle is a shadow in its others but for parked ones, which show nothing; no handle's oldest mapping is
// parked; Handle::used, idle lists and byte totals agree (check()).
// Threads: none (the device lock).
// Failure: allocate and find_placement say "no"; nothing else fails. Host memory for nodes running out
// aborts: there is no way to go on that keeps blocks safe.
// Cost: allocate/free O(1) plus one table write a granule, and for each handle under the block one step
// a mapping of it; to park or wake a view, and to look for a run in a parked one in which something was freed: one step
// a tile; find_placement looks at a bounded number of blocks.
// Decision: docs/decisions/0005-alias-arena.md
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "heap/heap_context.h"
#include "heap/region.h"
#include "heap/shelf.h"

namespace nofrag {

class alignas(128) RangeHeap {
 public:
  // Private heaps (graph and framework pools) never pass memory from stream to stream: a captured graph may
  // replay its work at any time, so no marker can tell when it is done. (Around a capture: ladder.cc.)
  enum class Sharing : unsigned char { kShared, kPrivate };
  // Which free blocks a placement may use: own and clean ones, any (the caller must then make the
  // stream wait for the others), or none: addresses with nothing mapped.
  enum class Scope : unsigned char { kUsable, kAny, kUnbacked };

  RangeHeap(HeapContext& context, Sharing sharing);
  RangeHeap(const RangeHeap&) = delete;
  RangeHeap& operator=(const RangeHeap&) = delete;
  // pre: no handles but lost ones. The owner takes the regions back first (regions()).
  ~RangeHeap();

  Region& add_region(AddressRange range, bool home);
  // pre: nothing is mapped in it.
  void remove_region(Region& region);

  // The free block that a request would be cut from, or nullptr.
  [[nodiscard, gnu::hot]] Block* find_free(Bytes size, const StreamClock& clock);
  [[gnu::hot]] Block* take_front(Block* free, Bytes size, Bytes requested, StreamClock& clock);
  // A live block of `size` for `clock` from what is free, or nullptr.
  Block* allocate(Bytes size, Bytes requested, StreamClock& clock);
  // Live or pending -> free. Work of block->clock up to `tick` may still touch it.
  [[gnu::hot]] void free(Block* block, Tick tick);

  // A placement with few missing bytes (lowest address among equals): the best around each of the
  // longest free runs, or all unbacked.
  [[nodiscard]] std::optional<Placement> find_placement(Bytes size,
                                                        const StreamClock& clock,
                                                        Scope scope);
  [[nodiscard]] std::vector<Gap> gaps(const Placement& placement) const;
  // Is everything under the placement free or unbacked?
  [[nodiscard]] static bool open(const Placement& placement);
  // pre: everything under the placement is free and backed.
  Block* take(const Placement& placement, Bytes requested, StreamClock& clock);
  // Calls visit(clock, tick) for every dirty block of another stream under the placement.
  template <typename Visitor>
  void for_each_foreign(const Placement& placement,
                        const StreamClock& clock,
                        Visitor&& visit) const {
    for (const Block* b = covering(*placement.region, placement.address);
         b != nullptr && b->address < placement.end();
         b = b->next) {
      if (b->state == BlockState::kFree && b->clock != nullptr && b->clock != &clock) {
        visit(*b->clock, b->tick);
      }
    }
  }

  // A new handle was mapped at `address` (unbacked until now): its bytes are free and clean.
  Handle* attach(Region& region, VirtAddr address, PhysicalHandle physical);
  // A handle of this heap was mapped at `address` too. pre: it is not mapped in `region` yet.
  Mapping* alias(Region& region, VirtAddr address, Handle* handle);
  // The same for what the driver would not make usable nor unmap. It takes no part in anything until
  // it is dropped: a new handle by detach_lost, an alias by drop.
  void attach_lost(Region& region, VirtAddr address, PhysicalHandle physical);
  void alias_stuck(Region& region, VirtAddr address, Handle* handle);
  // A mapping was unmapped. pre: no block was allocated through it, it is not pinned and (unless it is
  // stuck) not the handle's last.
  void drop(Mapping* mapping);
  // While pinned, the mappings under [from, to) stay, and their handles are mapped nowhere else anew.
  // Pins of a mapping count: each needs an unpin of the same addresses.
  void pin(Region& region, VirtAddr from, VirtAddr to);
  void unpin(Region& region, VirtAddr from, VirtAddr to);
  // A handle's last mapping was unmapped. pre: it is idle. Its record is gone afterwards.
  PhysicalHandle detach(Handle* handle);
  // The same for a lost one, whose unmapping the driver accepted at last.
  PhysicalHandle detach_lost(Handle* handle);

  // visit(mapping) for every mapping under [from, to); it may not change the region.
  template <typename Visitor>
  static void for_each_mapping(const Region& region, VirtAddr from, VirtAddr to, Visitor&& visit) {
    while (from < to) {
      Mapping* mapping = mapping_at(region, from);
      if (mapping != nullptr) {
        visit(*mapping);
      }
      from = mapping != nullptr ? mapping->end() : from + region.heap->granule();
    }
  }
  // The mapping at `address` or nullptr.
  [[nodiscard]] static Mapping* mapping_at(const Region& region, VirtAddr address);
  // Afterwards nothing is parked, until the next allocate() or take_front().
  void wake_all();
  // How many bytes at the handle's front and back are free (all of them if it is idle).
  struct Ends {
    Bytes front;
    Bytes back;
  };
  [[nodiscard]] Ends free_ends(const Handle& handle) const;
  static constexpr Bytes kLongEnd = 2 * kMiB;
  // All handles with an end that long, and others, in the order of handles(); those noted to have none
  // are left out until something is freed in them.
  const std::vector<Handle*>& perhaps_long_ends();
  void note_short_ends(Handle& handle);
  // visit(clock, tick) for the mark of every free run of the handle that touches [from, to), counted
  // from its front, until it says false; clock is nullptr for clean ones. True if it never did.
  template <typename Visitor>
  static bool all_marks(const Handle& handle, Bytes from, Bytes to, Visitor&& visit) {
    const Mapping& mapping = handle.shown();
    const VirtAddr end = mapping.address + to;
    for (const Block* b = covering(*mapping.region, mapping.address + from);
         b != nullptr && b->address < end;
         b = b->next) {
      if (b->state == BlockState::kFree && !visit(b->clock, b->tick)) {
        return false;
      }
    }
    return true;
  }

  // Dirty blocks of `clock` whose tick is done become clean.
  void clean_done(StreamClock& clock);
  // After the device was idle: all that is free is clean, but what another context's stream used.
  void clean_all();

  [[nodiscard]] Handle* first_idle() const { return idle_first_; }
  [[nodiscard]] const std::vector<Handle*>& handles() const { return handles_; }
  [[nodiscard]] const std::vector<Handle*>& lost() const { return lost_handles_; }
  [[nodiscard]] const std::vector<Mapping*>& stuck() const { return stuck_; }
  [[nodiscard]] Sharing sharing() const { return sharing_; }
  [[nodiscard]] const std::vector<std::unique_ptr<Region>>& regions() const { return regions_; }
  [[nodiscard]] Bytes mapped() const { return mapped_; }
  [[nodiscard]] Bytes used() const { return used_; }
  [[nodiscard]] Bytes mapped_in_use() const { return mapped_ - idle_; }
  [[nodiscard]] Bytes largest_free_run() const;
  // pre: the address is in the region. Never null.
  [[nodiscard, gnu::hot]] static Block* covering(const Region& region, VirtAddr address);
  void check() const;

 private:
  Shelf& shelf_of(const StreamClock& clock);
  FreeIndex& index_of(const Block& block);
  static bool on_shelf(const Block& block) {
    return block.state == BlockState::kFree || block.state == BlockState::kUnbacked;
  }
  Block* make_block(Region& region, VirtAddr address, Bytes size, BlockState state);
  // Puts a free or unbacked block on its shelf, takes it off. Marks and states change only in between.
  [[gnu::hot]] void shelve(Block* block);
  [[gnu::hot]] void unshelve(Block* block);
  [[gnu::hot]] void reshape(Block* block, VirtAddr address, Bytes size);
  [[nodiscard]] bool mergeable(const Block& a, const Block& b) const;
  // Puts a free (or unbacked) block on its shelf, merged with mergeable neighbours; returns the survivor.
  [[gnu::hot]] Block* shelve_merged(Block* block);
  [[gnu::hot]] Block* absorb(Block* left, Block* right);
  void inherit(Block* heir, Block* gone);
  [[gnu::hot]] Block* add_before(Block* block, VirtAddr address, Bytes size);
  [[gnu::hot]] Block* add_behind(Block* block, VirtAddr address, Bytes size);
  // Cuts [block->address, at) off as a new block before `block`, which keeps the rest. Unshelved.
  Block* cut_front(Block* block, VirtAddr at);
  [[gnu::hot]] Block* cut_out(Block* block, VirtAddr from, VirtAddr to);
  // One block over exactly [from, to), unshelved, without a mark, of what lies there and is nobody's.
  [[gnu::hot]] Block* carve(Region& region, VirtAddr from, VirtAddr to);
  [[gnu::hot]] void cover(Block* block, VirtAddr from, VirtAddr to);
  void make_live(Block* block, Bytes requested, StreamClock& clock);
  // visit(mapping, first address, end address) for each mapping under the block.
  template <typename Visitor>
  void for_each_part(const Block& block, Visitor&& visit) const;
  [[gnu::hot]] void add_use(Block* block);
  [[gnu::hot]] void drop_use(Block* block, StreamClock* clock, Tick tick, bool clean);
  Block* show(Block* rest, const Mapping& source);
  bool wake_for(Bytes size, const Block* found);
  void note_shadow(Region& region);
  void park_unused();
  void park(Region& view);
  void wake(Region& view);
  [[nodiscard]] Bytes parked_run(const Region& view, bool one_mark) const;
  static void name_in_table(const Mapping& mapping, Mapping* whom);
  Mapping* link(Region& region, VirtAddr address, Handle* handle);
  void unlink(Mapping* mapping);
  void unback(Mapping* mapping);
  void list_ends(Handle& handle);
  void unlist_ends(Handle& handle);
  void push_idle(Handle* handle);
  void pop_idle(Handle* handle);
  [[nodiscard]] Bytes granule() const { return context_.granularity; }
  [[nodiscard]] bool usable(const Block& block, const StreamClock& clock, Scope scope) const;
  void consider_around(Block* seed,
                       Bytes size,
                       const StreamClock& clock,
                       Scope scope,
                       std::optional<Placement>* best);
  void consider(const std::vector<Block*>& chain, Bytes size, std::optional<Placement>* best) const;
  void check_region(const Region& region) const;
  void check_handles() const;
  void check_shelves() const;
  void check_idle_list() const;

  // What every call asks or changes is in the first two cache lines.
  HeapContext& context_;
  std::vector<std::unique_ptr<Shelf>> dirty_;  // by StreamClock::index
  std::vector<Region*> parked_;                // by address
  Region* unused_view_ = nullptr;              // one that may be worth parking
  Sharing sharing_;
  Handle* idle_first_ = nullptr;
  Handle* idle_last_ = nullptr;
  Bytes mapped_;  // in handles of this heap
  Bytes idle_;    // of these, in idle ones
  Bytes used_;    // live + pending + lost
  Bytes lost_;    // of these, under mappings the driver would not undo
  Shelf clean_;
  FreeIndex unbacked_;
  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<Handle*> handles_;
  std::vector<Handle*> long_ends_;  // those without ends_short
  std::vector<Handle*> lost_handles_;
  std::vector<Mapping*> stuck_;
  std::vector<Block*> chain_;  // find_placement's
};

}  // namespace nofrag
