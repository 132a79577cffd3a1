// Region: one stretch of addresses of a heap, and Placement: a place in it for a request.
//
// Owns: its granule tables (host pages). The first region of a heap (home) takes what the heap grows
// by; every composition makes a region of its own, called a view, which goes when nothing is mapped in
// it any more.
// Layer: heap.
// Units: Bytes; a region is whole granules.
// Invariants: `tiles` and `mappings` have an entry a granule: the block that covers the granule's first byte, and the
// mapping there (nullptr = unbacked). No handle is mapped twice in one region. `near` is a tile of it, or nullptr.
// Threads: none (the device lock). Failure: none.
#pragma once

#include <cstddef>

#include "heap/block.h"
#include "heap/handle.h"
#include "range/address_space.h"

namespace nofrag {

struct alignas(64) Region {
  // What is asked for each block and each shadow is in the first cache line.
  AddressRange range;
  Bytes granularity;
  Block** tiles = nullptr;  // the table of mappings is behind it
  std::size_t granule_count = 0;
  Block* first = nullptr;
  Block* near = nullptr;      // the tile carved or merged last: the next shadow is often beside it
  unsigned granule_bits = 0;  // the granularity's logarithm; 0 = no power of two
  bool home = false;
  bool listed = false;  // the device layer's: among the views that may be empty
  class RangeHeap* heap = nullptr;
  std::size_t mapping_count = 0;
  std::size_t index = 0;  // in the heap's list of regions
  // Parking (parking.cc): what was allocated through it and is not free yet; how often a shadow came or went in
  // it since there was any such block; how many of its mappings are parked.
  std::size_t blocks = 0;
  std::size_t idle_changes = 0;
  std::size_t parked = 0;           // mappings
  Bytes parked_longest = kNoLimit;  // with parked ones: no free run, were they awake, is longer

  // A division would cost as much as the rest of a lookup.
  [[nodiscard]] std::size_t granule_index(VirtAddr address) const {
    const Bytes offset = address - range.address;
    if (granule_bits != 0) [[likely]] {
      return static_cast<std::size_t>(offset.count() >> granule_bits);
    }
    return static_cast<std::size_t>(offset / granularity);
  }
  // Two tables: a large block is written into each granule's entry of the one, and few of the other's are read.
  [[nodiscard]] Mapping** mappings() const {
    return reinterpret_cast<Mapping**>(tiles + granule_count);
  }
  [[nodiscard]] std::size_t table_bytes() const {
    return granule_count * (sizeof(Block*) + sizeof(Mapping*));
  }
};

// Where a request could go once `missing` bytes of it are backed.
struct Placement {
  Region* region = nullptr;
  VirtAddr address;
  Bytes size;
  Bytes missing;
  [[nodiscard]] VirtAddr end() const { return address + size; }
  [[nodiscard]] bool covers(const Mapping& mapping) const {
    return mapping.region == region && mapping.address < end() && address < mapping.end();
  }
};

// An unbacked part of a placement, in whole granules, and how far the unbacked addresses go on.
struct Gap {
  AddressRange range;
  Bytes room_after;
};

}  // namespace nofrag
