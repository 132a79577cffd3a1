// Handle and Mapping: physical memory, and the addresses at which it can be reached.
//
// A handle may be mapped at several addresses at once (aliases). Truth lives with the physical bytes:
// a byte that is allocated through one mapping is a shadow in all others, a byte that is freed is
// free in all of them.
// Owns: nothing; both come from object pools and belong to their heap.
// Layer: heap.
// Units: Bytes; handle sizes are multiples of the granularity.
// Invariants: Handle::used is the allocated (live, pending or lost) bytes in it, whatever the mapping;
// Mapping::blocks counts the blocks allocated through it; a handle is mapped at most once in a region,
// so that no block can cover a byte twice; every handle has at least one mapping, and its oldest is not parked.
// Threads: none (the device lock). Failure: none.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "physical/physical_memory.h"
#include "stream/stream_clock.h"

namespace nofrag {

struct Region;
struct Handle;

// The last work that may touch some addresses: the newest tick of every stream that freed bytes there and
// is not known to be done with them.
class LastUses {
 public:
  struct Use {
    StreamClock* clock = nullptr;
    Tick tick = 0;
  };

  void note(StreamClock* clock, Tick tick) {
    if (inline_[0].clock == clock) [[likely]] {
      inline_[0].tick = std::max(inline_[0].tick, tick);
      return;
    }
    note_other(clock, tick);
  }
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
  [[nodiscard]] std::size_t count() const { return count_ + more_.size(); }

 private:
  void note_other(StreamClock* clock, Tick tick);

  static constexpr std::uint32_t kInline = 2;  // nearly every mapping serves one stream
  std::array<Use, kInline> inline_{};
  std::uint32_t count_ = 0;
  std::vector<Use> more_;
};

// Every allocation and free looks at each mapping and handle under its block, which in a program that needs the
// processor's caches itself are journeys to memory: nearly all that they need is in the first cache line of either.
struct alignas(64) Mapping {
  Handle* handle = nullptr;
  Region* region = nullptr;
  VirtAddr address;
  Bytes size;               // the handle's
  Mapping* next = nullptr;  // of the same handle, newest first
  std::uint32_t blocks = 0;
  std::uint32_t pins : 30 = 0;  // while pinned it stays mapped to this handle
  // The driver neither made it usable nor took it back: its addresses are lost, its handle is pinned.
  bool stuck : 1 = false;
  bool parked : 1 = false;  // its tiles do not show what the handle is used for (parking.cc)
  LastUses last_uses;       // work of blocks freed through it: unmapping must wait for that

  [[nodiscard]] VirtAddr end() const { return address + size; }
};
static_assert(offsetof(Mapping, last_uses) == 48, "the first stream's use is in the first line");

struct alignas(64) Handle {
  PhysicalHandle physical;
  Mapping* mappings = nullptr;
  std::uint32_t mapping_count = 0;
  // Of all its mappings; a pinned handle is neither moved nor given back.
  std::uint32_t pins : 31 = 0;
  bool ends_short : 1 = false;  // nothing was freed here since both free ends were short
  Bytes used;
  Handle* previous_idle = nullptr;  // idle handles (used == 0), longest idle first
  Handle* next_idle = nullptr;
  std::uint64_t idle_since = 0;  // sequence number, comparable between heaps of a device
  std::size_t index = 0;         // in the heap's list of handles
  std::size_t ends_index = 0;    // without ends_short: in the heap's list of those
  std::uint64_t chosen = 0;      // the search that has it in its hands

  [[nodiscard]] bool idle() const { return used.is_zero(); }
  [[nodiscard]] bool movable() const { return idle() && pins == 0; }
  // Where it was mapped first of all the places it has now.
  [[nodiscard]] VirtAddr first_address() const {
    const Mapping* oldest = mappings;
    while (oldest->next != nullptr) {
      oldest = oldest->next;
    }
    return oldest->address;
  }
  // The newest mapping whose tiles show what its bytes are used for.
  [[nodiscard]] const Mapping& shown() const {
    const Mapping* mapping = mappings;
    while (mapping->parked) {
      mapping = mapping->next;
    }
    return *mapping;
  }
  // Where it is mapped in `region`, or nullptr.
  [[nodiscard]] Mapping* in(const Region& region) const {
    Mapping* mapping = mappings;
    while (mapping != nullptr && mapping->region != &region) {
      mapping = mapping->next;
    }
    return mapping;
  }
};

static_assert(offsetof(Handle, index) == 64, "what nearly every call needs is in the first line");

}  // namespace nofrag
