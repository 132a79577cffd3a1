// BlockTable: the live blocks of one device as PyTorch sees them, by address.
//
// Owns: the blocks. Open addressing with linear probing, at most half full; entries move back on removal, so
// that there are no tombstones. A slot has its block's address beside it: who probes reads no other block.
// Units: bytes. Invariants: no address twice.
// Threads: none (DeviceState's mutex). Failure: host memory that runs out throws std::bad_alloc.
// Cost: O(1), no host allocation once it has grown.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/util/Exception.h>

#include "torch_plugin/native/abi/types.h"

namespace nofrag::native {

class CustomPool;

struct Block {
  void* address = nullptr;
  std::size_t size = 0;       // as PyTorch counts it: rounded up
  std::size_t requested = 0;  // what PyTorch asked for
  std::size_t served = 0;     // what was asked of nofrag
  cudaStream_t stream = nullptr;
  PoolId pool{0, 0};
  bool small = false;                  // counts as PyTorch's small pool
  bool shared_streams = false;         // another stream was recorded
  std::uint64_t serial = 0;            // tells this block from earlier ones at its address
  Context context;                     // of its allocation, if that is recorded
  std::shared_ptr<CustomPool> custom;  // whose segment it lies in, if its memory is not nofrag's
};

class BlockTable {
 public:
  [[nodiscard]] Block* find(const void* address) {
    if (count_ == 0) {
      return nullptr;
    }
    for (std::size_t i = home(address);; i = next(i)) {
      if (slots_[i].block == nullptr) {
        return nullptr;
      }
      if (slots_[i].address == address) {
        return slots_[i].block.get();
      }
    }
  }

  // pre: the address is not there.
  Block& insert(Block&& block) {
    if (2 * (count_ + 1) > slots_.size()) {
      grow();
    }
    std::unique_ptr<Block> node;
    if (spare_.empty()) {
      node = std::make_unique<Block>(std::move(block));
    } else {
      node = std::move(spare_.back());
      spare_.pop_back();
      *node = std::move(block);
    }
    ++count_;
    const void* const address = node->address;
    return *put(address, std::move(node));
  }

  // pre: the address is there.
  Block take(const void* address) {
    std::size_t hole = home(address);
    while (slots_[hole].address != address) {
      TORCH_INTERNAL_ASSERT_DEBUG_ONLY(slots_[hole].block != nullptr);
      hole = next(hole);
    }
    std::unique_ptr<Block> node = std::move(slots_[hole].block);
    --count_;
    for (std::size_t i = next(hole); slots_[i].block != nullptr; i = next(i)) {
      // Back into the hole, unless its home lies between the two.
      const std::size_t from_home = (i - home(slots_[i].address)) & mask();
      if (from_home >= ((i - hole) & mask())) {
        slots_[hole] = std::move(slots_[i]);
        hole = i;
      }
    }
    slots_[hole].address = nullptr;
    Block block = std::move(*node);
    if (spare_.size() < kMostSpare) {
      spare_.push_back(std::move(node));
    }
    return block;
  }

  [[nodiscard]] std::size_t size() const { return count_; }
  template <typename Visitor>
  void for_each(Visitor&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.block != nullptr) {
        visit(*slot.block);
      }
    }
  }

 private:
  struct Slot {
    const void* address = nullptr;
    std::unique_ptr<Block> block;  // nullptr: empty
  };
  static constexpr std::size_t kFirstSlots = 1024;
  static constexpr std::size_t kMostSpare = 4096;

  [[nodiscard]] std::size_t mask() const { return slots_.size() - 1; }
  [[nodiscard]] std::size_t next(std::size_t i) const { return (i + 1) & mask(); }
  [[nodiscard]] std::size_t home(const void* address) const {
    // Blocks start on 512 bytes; a multiplication spreads the rest.
    const std::uint64_t key = reinterpret_cast<std::uintptr_t>(address) >> 8;
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> 32) & mask();
  }
  Block* put(const void* address, std::unique_ptr<Block> node) {
    std::size_t i = home(address);
    while (slots_[i].block != nullptr) {
      i = next(i);
    }
    slots_[i] = {address, std::move(node)};
    return slots_[i].block.get();
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? kFirstSlots : 2 * slots_.size());
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.block != nullptr) {
        put(slot.address, std::move(slot.block));
      }
    }
  }

  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Block>> spare_;
  std::size_t count_ = 0;
};

}  // namespace nofrag::native
