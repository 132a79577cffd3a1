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
};

// One stream that a live or pending block was used on beside its own.
struct StreamUse {
  StreamClock* clock = nullptr;
  Tick tick = 0;  // set when the block is freed
  Block* block = nullptr;
  StreamUse* next = nullptr;
};

struct Block : FreeNode {
  // What a thread reads and writes that keeps freed blocks for itself (kept_blocks.h) comes first.
  BlockState state = BlockState::kUnbacked;
  std::atomic<bool> kept{false};  // live for the heap, but freed: a thread or a depot has it
  Block* next_kept = nullptr;
  // Live and pending: the stream it was allocated on. Free: the stream whose queued work may still
  // touch it up to `tick`; nullptr = clean, any stream may take it.
  StreamClock* clock = nullptr;
  Bytes requested;
  StreamUse* uses = nullptr;
  Pool* pool = nullptr;         // live and pending
  std::uint64_t epoch = 0;      // live: when it was allocated, in frees of large blocks
  Block* next_batch = nullptr;  // of the first block of a magazine in a depot, with the next two
  std::uint64_t batch_bytes = 0;
  std::uint32_t batch_count = 0;
  Region* region = nullptr;   // nullptr on the plain backend
  Block* previous = nullptr;  // neighbours by address in the region
  Block* next = nullptr;
  Tick tick = 0;
  std::uint32_t open_uses = 0;      // of `uses`, how many are not known to be done (pending only)
  Block* previous_dirty = nullptr;  // free blocks with a clock, oldest tick first
  Block* next_dirty = nullptr;

  [[nodiscard]] VirtAddr end() const { return address + size; }
};

}  // namespace nofrag
