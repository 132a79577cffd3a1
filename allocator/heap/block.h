// Block and Handle: the two nodes that a heap's address map is made of.
//
// A region's addresses are tiled by Blocks without gaps, and its backed granules by Handles.
// Blocks may span handles and handles may hold many blocks.
// Layer: heap.
// Units: Bytes; Block sizes are multiples of 512 B, Handle sizes of the granularity.
// Invariants: an unbacked block has no handle anywhere under it and starts and ends on
// granules; every other block is wholly backed. Handle::used is the allocated (live, pending or
// lost) bytes under it.
// Threads: none (the device lock). Both come from object pools and belong to their heap.
#pragma once

#include <array>
#include <vector>

#include "index/free_index.h"
#include "physical/physical_memory.h"
#include "stream/stream_clock.h"

namespace nofrag {

struct Region;
struct Block;
struct Pool;  // the device layer's; only carried here

enum class BlockState : unsigned char {
  kUnbacked,  // addresses only
  kFree,      // mapped, nobody's
  kLive,      // the caller's
  kPending,   // freed, but streams named by record_stream may still touch it
  kLost,      // mapped but unusable: the driver failed a mapping half-way and refused the undo
};

// One stream that a live or pending block was used on beside its own.
struct StreamUse {
  StreamClock* clock = nullptr;
  Tick tick = 0;  // set when the block is freed
  Block* block = nullptr;
  StreamUse* next = nullptr;
};

struct Block : FreeNode {
  BlockState state = BlockState::kUnbacked;
  Region* region = nullptr;   // nullptr on the plain backend
  Pool* pool = nullptr;       // live and pending
  Block* previous = nullptr;  // neighbours by address in the region
  Block* next = nullptr;
  // Live and pending: the stream it was allocated on. Free: the stream whose queued work may still
  // touch it up to `tick`; nullptr = clean, any stream may take it.
  StreamClock* clock = nullptr;
  Tick tick = 0;
  Bytes requested;
  StreamUse* uses = nullptr;
  std::uint32_t open_uses = 0;      // of `uses`, how many are not known to be done (pending only)
  Block* previous_dirty = nullptr;  // free blocks with a clock, oldest tick first
  Block* next_dirty = nullptr;

  [[nodiscard]] VirtAddr end() const { return address + size; }
};

// The last work that may touch a handle: the newest tick of every stream that freed bytes in it.
class LastUses {
 public:
  struct Use {
    StreamClock* clock = nullptr;
    Tick tick = 0;
  };

  void note(StreamClock* clock, Tick tick);
  // visit(clock, tick) until it says false; true if it never did.
  template <typename Visitor>
  bool all_of(Visitor&& visit) const {
    for (std::uint32_t i = 0; i < count_; ++i) {
      if (!visit(*inline_[i].clock, inline_[i].tick)) {
        return false;
      }
    }
    for (const Use& use : more_) {
      if (!visit(*use.clock, use.tick)) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::uint32_t kInline = 2;  // nearly every handle serves one stream
  std::array<Use, kInline> inline_{};
  std::uint32_t count_ = 0;
  std::vector<Use> more_;
};

struct Handle {
  PhysicalHandle physical;
  Region* region = nullptr;
  VirtAddr address;
  std::size_t first_granule = 0;  // its entries in the region's table
  std::size_t granule_count = 0;
  Bytes used;
  LastUses last_uses;
  Handle* previous_idle = nullptr;  // idle handles (used == 0), longest idle first
  Handle* next_idle = nullptr;
  std::uint64_t idle_since = 0;  // sequence number, comparable between heaps of a device

  [[nodiscard]] VirtAddr end() const { return address + physical.size; }
  [[nodiscard]] bool idle() const { return used.is_zero(); }
};

}  // namespace nofrag
