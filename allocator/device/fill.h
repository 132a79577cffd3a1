// Fill: one request's search for memory, and what the search is made of: pieces, idle handles, free ends of
// handles in use, compositions.
//
// Layer: device (private header). Plain data; backing.cc, compose.cc and supply.cc fill it in.
// Invariants: the handles named live as long as the request holds the device's mutex and detaches none.
// Threads: under the device's mutex. Failure: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"
#include "device/device_allocator.h"
#include "device/pool.h"
#include "heap/range_heap.h"
#include "physical/physical_memory.h"
#include "stream/stream_clock.h"

namespace nofrag {

// Where memory may run short: by how much a handle may be larger than what it is mapped for.
inline constexpr Bytes kMuchTooLarge = 4 * kMiB;

// One part of what is mapped under a request: a handle nobody has mapped, or one mapped elsewhere too.
struct Piece {
  PhysicalHandle physical;
  Handle* alias = nullptr;
};

// Idle handles at the moment it was asked, longest idle first; nullptr where one was used up.
struct Supply {
  std::vector<Handle*> own;     // of the pool's heap
  std::vector<Handle*> others;  // of heaps that lend
};

// One request's search for memory.
struct Fill {
  Pool& pool;
  StreamClock& clock;
  std::uint64_t id = 0;
  bool wait = false;     // may the host wait?
  bool cross = false;    // may memory of other streams be used behind a device-side wait?
  bool may_mend = true;  // false once a mend was tried
  Rung highest = Rung::kOwnFree;
  std::optional<Supply> supply{};
  std::size_t next_alias = 0;
  std::size_t next_move = 0;
  std::size_t next_waited = 0;
  std::size_t next_other = 0;
  std::size_t next_other_waited = 0;
};

// What is free at one end of a handle in use.
struct End {
  Handle* handle = nullptr;
  Bytes free;
};

// What a view is made of, in the order of its addresses.
struct Composition {
  Handle* head = nullptr;  // its last head_free bytes
  Bytes head_free;
  std::vector<Handle*> wholes;
  Handle* tail = nullptr;
  Bytes missing;  // whole granules between wholes and tail

  [[nodiscard]] std::size_t pieces() const {
    return wholes.size() + (head != nullptr ? 1U : 0U) + (tail != nullptr ? 1U : 0U);
  }
};

}  // namespace nofrag
