// Block: a tile of a region's addresses, and what it is used for.
//
// Owns: nothing; blocks come from an object pool and belong to their heap. A region's addresses are
// tiled by blocks without gaps. Blocks may span handles and handles may hold many blocks.
// Layer: heap.
// Units: Bytes; sizes are multiples of 512 B.
// Invariants: an unbacked block has nothing mapped anywhere under it and starts and ends on granules;
// every other block is wholly backed. A shadow covers exactly the part of one handle that one block,
// allocated through another mapping of the handle, uses.
// Threads: none (the device lock). Failure: none.
#pragma once

#include <atomic>
#include <cstdint>

#include "index/free_index.h"
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
  kShadow,    // mapped, but its bytes are in use through another mapping of the handle
  kLost,      // mapped but unusable: the driver failed a mapping half-way and refused the undo
  kParked,  // mapped, but parked: what its bytes are used for is shown at other addresses (parking.cc)
};

// One stream that a live or pending block was used on beside its own.
struct StreamUse {
  StreamClock* clock = nullptr;
  Tick tick = 0;  // set when the block is freed
  Block* block = nullptr;
  StreamUse* next = nullptr;
};

// NOLINTBEGIN(cppcoreguidelines-pro-type-member-init): of a union one member is initialized.
// Two cache lines. All that a thread reads and writes of a small block that it keeps (kept_blocks.h) is in the
// first, so that a block that goes from thread to thread moves one line.
struct alignas(128) Block : FreeNode {
  BlockState state = BlockState::kUnbacked;
  std::atomic<bool> kept{false};  // live for the heap, but freed: a thread or a depot has it
  // Live: a thread may keep it when it is freed: it is of the default pool, and its own stream's alone.
  bool keepable = false;
  std::uint8_t drawn = 0;       // of the magazine from which it was last taken (kept_blocks.h)
  std::uint32_t open_uses = 0;  // of `uses`, how many are not known to be done (pending only)
  Block* next_kept = nullptr;
  Block* some_kept =
      nullptr;  // one that was kept a little earlier, to be fetched ahead; never relied on
  // Live and pending: the stream it was allocated on. Free: the stream whose queued work may still
  // touch it up to `tick`; nullptr = clean, any stream may take it.
  StreamClock* clock = nullptr;
  Bytes requested;

  StreamUse* uses = nullptr;
  Pool* pool = nullptr;       // live and pending
  Region* region = nullptr;   // nullptr on the plain backend
  Block* previous = nullptr;  // neighbours by address in the region
  Block* next = nullptr;
  union {
    Tick tick = 0;        // free, pending, lost
    std::uint64_t epoch;  // live: when it was allocated, in frees of large blocks
  };
  // Live: how much larger than its request, because its class is.
  std::uint32_t rounded = 0;
  // Of the first block of a magazine that is in a depot, or on its way there, with the next two.
  std::uint32_t batch_count = 0;
  union {
    Block* previous_dirty = nullptr;  // free blocks with a clock, oldest tick first
    Block* next_batch;                // kept
  };
  union {
    Block* next_dirty = nullptr;
    std::uint64_t batch_bytes;  // kept
  };

  [[nodiscard]] VirtAddr end() const { return address + size; }
};
// NOLINTEND(cppcoreguidelines-pro-type-member-init)

static_assert(sizeof(Block) == 128);

}  // namespace nofrag
