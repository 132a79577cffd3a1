// HeapFixture: a RangeHeap over made-up addresses and handles, on a simulated driver's streams.
//
// Owns: everything a heap needs. Layer: tests. Handles are numbers only: a heap moves nodes and
// never calls the driver. Units: helper sizes in MiB where the name says so. Threads: none.
// Failure: none.
#pragma once

#include <memory>

#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"
#include "heap/range_heap.h"

namespace nofrag {

class HeapFixture : public testing::Test {
 protected:
  static constexpr Bytes kGranule = 2 * kMiB;
  static constexpr StreamId kA{0x100};
  static constexpr StreamId kB{0x200};

  HeapFixture() {
    driver_.set_completion(Completion::kByHand);
    make(RangeHeap::Sharing::kShared);
  }
  ~HeapFixture() override {
    heap_->check();
    for (Block* block : live_) {
      heap_->free(block, block->clock->stamp());
    }
    while (!heap_->stuck().empty()) {
      heap_->drop(heap_->stuck().back());
    }
    while (!heap_->lost().empty()) {
      heap_->detach_lost(heap_->lost().back());
    }
    while (Handle* handle = heap_->first_idle()) {
      while (handle->mapping_count > 1) {
        heap_->drop(handle->mappings);
      }
      heap_->detach(handle);
    }
    heap_->check();
  }

  void make(RangeHeap::Sharing sharing) {
    heap_ = std::make_unique<RangeHeap>(context_, sharing);
    heap_->add_region({kBase, 64 * kMiB}, true);
  }
  // Another region, far from all others.
  Region& view(Bytes size) { return heap_->add_region({kBase + kGiB * ++views_, size}, false); }
  Region& region() { return *heap_->regions().front(); }
  static VirtAddr at(Bytes offset) { return kBase + offset; }
  Handle* attach(Bytes offset, Bytes size) {
    return heap_->attach(region(), at(offset), {HandleId{++last_handle_}, size});
  }
  Block* allocate(Bytes size, StreamId stream = kA) {
    Block* block = heap_->allocate(size, size, streams_.clock(stream));
    if (block != nullptr) {
      live_.push_back(block);
    }
    heap_->check();
    return block;
  }
  void free(Block* block) {
    std::erase(live_, block);
    heap_->free(block, block->clock->stamp());
    heap_->check();
  }
  void complete(StreamId stream) {
    StreamClock& clock = streams_.clock(stream);
    ASSERT_TRUE(streams_.mark(clock).ok());
    driver_.complete_stream(stream);
    streams_.poll(clock);
    heap_->clean_done(clock);
    heap_->check();
  }

  static constexpr VirtAddr kBase{std::uint64_t{0x4000000000}};
  SimulatedDriver driver_{SimulatedDeviceSpec{}};
  Streams streams_{driver_, DeviceOrdinal(0)};
  HeapContext context_{streams_, kGranule};
  std::unique_ptr<RangeHeap> heap_;
  std::vector<Block*> live_;
  std::uint64_t last_handle_ = 0;
  std::uint64_t views_ = 0;
};

}  // namespace nofrag
