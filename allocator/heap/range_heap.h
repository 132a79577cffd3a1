// RangeHeap: the blocks of one pool: a coalescing arena over mapped and unmapped addresses.
//
// Owns: its regions (addresses), the blocks that tile them and the records of the handles
// mapped in them. It moves nodes and numbers only: mapping, creating and waiting are done by
// the device layer, which tells the heap through attach() and detach().
// Layer: heap.
// Units: Bytes in multiples of 512 B; gaps and handles in granules.
// Streams: a free block is either clean (any stream may take it) or dirty: the work of one
// stream up to a tick may still touch it, so only that stream may take it. Neighbours merge
// when they carry the same mark; while the device has seen one stream only, everything merges.
// Invariants: blocks tile every region in address order; two mergeable neighbours never stay
// apart after a free; free blocks are in exactly one index; Handle::used, idle lists and byte
// totals agree with the blocks (check()).
// Threads: none (the device lock).
// Failure: allocate and find_placement say "no"; nothing else fails. Host memory for nodes
// running out aborts: there is no way to go on that keeps blocks safe.
// Cost: allocate/free O(1) plus one table write a granule; find_placement walks all blocks.
// Decision: docs/decisions/0002-first-engine.md
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/object_pool.h"
#include "heap/block.h"
#include "range/address_space.h"
#include "stream/streams.h"

namespace nofrag {

// What all heaps of one device share.
struct HeapContext {
  HeapContext(Streams& device_streams, Bytes device_granularity)
      : streams(device_streams), granularity(device_granularity) {}
  Streams& streams;
  Bytes granularity;
  ObjectPool<Block> blocks;
  ObjectPool<Handle> handles;
  ObjectPool<StreamUse> stream_uses;
  std::uint64_t idle_sequence = 0;
  Bytes idle_bytes;  // in idle handles, all heaps
};

// One stretch of addresses of a heap. `granules` has an entry a granule: the block that covers the
// granule's first byte, and the handle mapped there (nullptr = unbacked).
struct Region {
  struct Granule {
    Block* block;
    Handle* handle;
  };
  AddressRange range;
  class RangeHeap* heap = nullptr;
  Granule* granules = nullptr;
  std::size_t granule_count = 0;
  Block* first = nullptr;
};

// Where a request could go once `missing` bytes of it are backed.
struct Placement {
  Region* region = nullptr;
  VirtAddr address;
  Bytes size;
  Bytes missing;
  [[nodiscard]] VirtAddr end() const { return address + size; }
};

// An unbacked part of a placement, in whole granules, and how far the unbacked addresses go on.
struct Gap {
  AddressRange range;
  Bytes room_after;
};

class RangeHeap {
 public:
  // Private heaps (graph and framework pools) never pass memory from stream to stream: a captured
  // graph may replay its work at any time, so no marker can tell when it is done.
  enum class Sharing : unsigned char { kShared, kPrivate };
  // Which free blocks a placement may use: own and clean ones, any (the caller must then make the
  // stream wait for the others), or none: addresses with nothing mapped.
  enum class Scope : unsigned char { kUsable, kAny, kUnbacked };

  RangeHeap(HeapContext& context, Sharing sharing);
  RangeHeap(const RangeHeap&) = delete;
  RangeHeap& operator=(const RangeHeap&) = delete;
  // pre: no handles but lost ones. The owner takes the regions back first (regions()).
  ~RangeHeap();

  void add_region(AddressRange range);

  // A live block of `size` for `clock` from what is free, or nullptr.
  Block* allocate(Bytes size, Bytes requested, StreamClock& clock);
  // Live or pending -> free. Work of block->clock up to `tick` may still touch it.
  void free(Block* block, Tick tick);

  // The placement with the fewest missing bytes (lowest address among equals).
  [[nodiscard]] std::optional<Placement> find_placement(Bytes size,
                                                        const StreamClock& clock,
                                                        Scope scope);
  [[nodiscard]] std::vector<Gap> gaps(const Placement& placement) const;
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

  // A handle was mapped at `address` (unbacked until now): its bytes are free and clean.
  Handle* attach(Region& region, VirtAddr address, PhysicalHandle physical);
  // The same for a handle that the driver would not make usable nor unmap. It takes no part in
  // anything until detach_lost.
  void attach_lost(Region& region, VirtAddr address, PhysicalHandle physical);
  // The handle was unmapped. pre: it is idle. Its record is gone afterwards.
  PhysicalHandle detach(Handle* handle);
  // The same for a lost one, whose unmapping the driver accepted at last.
  PhysicalHandle detach_lost(Handle* handle);

  // Dirty blocks of `clock` whose tick is done become clean.
  void clean_done(StreamClock& clock);
  // After the device was idle: everything free is clean, whatever the sharing.
  void clean_all();

  [[nodiscard]] Handle* first_idle() const { return idle_first_; }
  [[nodiscard]] const std::vector<Handle*>& lost() const { return lost_handles_; }
  [[nodiscard]] Sharing sharing() const { return sharing_; }
  [[nodiscard]] const std::vector<std::unique_ptr<Region>>& regions() const { return regions_; }
  [[nodiscard]] Bytes mapped() const { return mapped_; }
  [[nodiscard]] Bytes used() const { return used_; }
  [[nodiscard]] Bytes mapped_in_use() const { return mapped_ - idle_; }
  [[nodiscard]] Bytes largest_free_run() const;
  // The block that covers `address`, or nullptr if the address is not in a region.
  [[nodiscard]] Block* block_at(VirtAddr address) const;

  void check() const;

 private:
  // Free blocks of one stream (or the clean ones): an index and, for streams, the list by age.
  struct Shelf {
    FreeIndex index;
    Block* oldest = nullptr;
    Block* newest = nullptr;
  };

  static Block* covering(const Region& region, VirtAddr address);
  Shelf& shelf_of(const StreamClock& clock);
  Block* make_block(Region& region, VirtAddr address, Bytes size, BlockState state);
  // Puts a free block on its shelf / takes it off. Marks may change only in between.
  void shelve(Block* block);
  void unshelve(Block* block);
  [[nodiscard]] bool mergeable(const Block& a, const Block& b) const;
  // Merges an unshelved free (or unbacked) block with mergeable neighbours; returns the survivor.
  Block* merge_neighbours(Block* block);
  Block* absorb(Block* left, Block* right);
  // Cuts [block->address, at) off as a new block before `block`, which keeps the rest. Unshelved.
  Block* cut_front(Block* block, VirtAddr at);
  void cover(Block* block, VirtAddr from, VirtAddr to);
  void make_live(Block* block, Bytes requested, StreamClock& clock);
  void add_use(Block* block);
  void drop_use(Block* block, StreamClock* clock, Tick tick);
  void push_idle(Handle* handle);
  void pop_idle(Handle* handle);
  [[nodiscard]] Bytes granule() const { return context_.granularity; }
  [[nodiscard]] std::size_t granule_index(const Region& region, VirtAddr address) const {
    return static_cast<std::size_t>((address - region.range.address) / granule());
  }
  void consider(const std::vector<Block*>& chain, Bytes size, std::optional<Placement>* best) const;
  void check_region(const Region& region) const;
  void check_idle_list() const;

  HeapContext& context_;
  Sharing sharing_;
  std::vector<std::unique_ptr<Region>> regions_;
  Shelf clean_;
  std::vector<std::unique_ptr<Shelf>> dirty_;  // by StreamClock::index
  Handle* idle_first_ = nullptr;
  Handle* idle_last_ = nullptr;
  Bytes mapped_;  // in handles of this heap
  Bytes idle_;    // of these, in idle ones
  Bytes used_;    // live + pending + lost
  Bytes lost_;    // of these, under mappings the driver would not undo
  std::vector<Handle*> lost_handles_;
};

}  // namespace nofrag
