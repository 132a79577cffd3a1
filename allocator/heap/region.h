// Region: one stretch of addresses of a heap, and Placement: a place in it for a request.
//
// Owns: its granule table (host pages). The first region of a heap (home) takes what the heap grows
// by; every composition makes a region of its own, called a view, which goes when nothing is mapped in
// it any more.
// Layer: heap.
// Units: Bytes; a region is whole granules.
// Invariants: `granules` has an entry a granule: the block that covers the granule's first byte, and the
// mapping there (nullptr = unbacked). No handle is mapped twice in one region.
// Threads: none (the device lock). Failure: none.
#pragma once

#include <cstddef>

#include "heap/block.h"
#include "heap/handle.h"
#include "range/address_space.h"

namespace nofrag {

struct Region {
  struct Granule {
    Block* block;
    Mapping* mapping;
  };
  AddressRange range;
  Bytes granularity;
  class RangeHeap* heap = nullptr;
  Granule* granules = nullptr;
  std::size_t granule_count = 0;
  unsigned granule_bits = 0;  // its logarithm; 0 = no power of two
  Block* first = nullptr;
  std::size_t mapping_count = 0;
  std::size_t index = 0;  // in the heap's list of regions
  bool home = false;
  bool listed = false;  // the device layer's: among the views that may be empty
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
  [[nodiscard]] Granule& granule_at(VirtAddr address) const {
    return granules[granule_index(address)];
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
