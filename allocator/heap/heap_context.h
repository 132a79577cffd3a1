// HeapContext: what all heaps of one device share.
//
// Owns: the pools of all nodes. Layer: heap. Units: Bytes.
// Invariants: every region of every heap is in `regions`.
// Threads: none (the device lock). Failure: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/object_pool.h"
#include "heap/region.h"
#include "stream/streams.h"

namespace nofrag {

struct HeapContext {
  HeapContext(Streams& device_streams, Bytes device_granularity)
      : streams(device_streams), granularity(device_granularity) {}
  Streams& streams;
  Bytes granularity;
  ObjectPool<Block> blocks;
  ObjectPool<Handle> handles;
  ObjectPool<Mapping> mappings;
  ObjectPool<StreamUse> stream_uses;
  std::uint64_t idle_sequence = 0;
  Bytes idle_bytes;  // in idle handles, all heaps
  // After how many changes of its shadows, and how many more for each of its mappings, a view is parked that
  // nothing is allocated through: some times as many as cost what it costs to wake it. Sooner, recorded jobs hold up
  // to half a percent more with thread caches than without (decision 0005).
  std::size_t park_after = 32;
  std::size_t park_after_a_mapping = 4;
  bool park_with_several = false;       // among several streams too (decision 0005)
  std::map<VirtAddr, Region*> regions;  // of all heaps, by first address
  // The block that covers `address`, or nullptr if the address is in no region.
  [[nodiscard]] Block* block_at(VirtAddr address) const;
};

}  // namespace nofrag
