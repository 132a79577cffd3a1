// StackTable: the number of each call stack that was seen, by a hash of it.
//
// Owns: its slots, which are never moved: looking up takes no lock. Layer: trace.
// Invariants: a hash has one number, from 1 on, for ever. Two stacks of one hash of 64 bits would count as one: with
// all the stacks that have room here, one chance in ten thousand millions.
// Threads: find() by any; add() by one at a time. Failure: 0 when it is full. Cost: 2 MiB; one or two cache lines.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace nofrag {

class StackTable {
 public:
  static constexpr std::uint32_t kMostStacks = 65535;

  StackTable() : slots_(std::make_unique<Slot[]>(kSlots)) {}

  // 0: not there.
  [[nodiscard]] std::uint32_t find(std::uint64_t hash) const {
    for (std::size_t at = first_slot(hash);; at = (at + 1) % kSlots) {
      const std::uint64_t there = slots_[at].hash.load(std::memory_order_acquire);
      if (there == hash) {
        return slots_[at].number.load(std::memory_order_relaxed);
      }
      if (there == 0) {
        return 0;
      }
    }
  }
  // pre: not there; hash != 0. 0: there is no room.
  std::uint32_t add(std::uint64_t hash) {
    if (count_ == kMostStacks) {
      return 0;
    }
    std::size_t at = first_slot(hash);
    while (slots_[at].hash.load(std::memory_order_relaxed) != 0) {
      at = (at + 1) % kSlots;
    }
    slots_[at].number.store(++count_, std::memory_order_relaxed);
    slots_[at].hash.store(hash, std::memory_order_release);
    return count_;
  }

 private:
  static constexpr std::size_t kSlots = std::size_t{1} << 17;  // at most half full
  struct Slot {
    std::atomic<std::uint64_t> hash{0};
    std::atomic<std::uint32_t> number{0};
  };
  static std::size_t first_slot(std::uint64_t hash) {
    return static_cast<std::size_t>(hash >> 40) % kSlots;
  }

  const std::unique_ptr<Slot[]> slots_;
  std::uint32_t count_ = 0;  // of the one that adds
};

}  // namespace nofrag
