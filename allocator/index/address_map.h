// AddressMap<T>: device address -> T*, for exact look-up of a block by the pointer a caller
// holds.
//
// Owns: its table (mmap pages); not the objects.
// Layer: index (base only).
// Units: keys are multiples of 512 B and never 0 (0 marks an empty slot).
// Invariants: linear probing with backward-shift deletion: no tombstones, every key is
// reachable from its home slot without crossing an empty one; load factor <= 1/2.
// Threads: none; the owner's lock.
// Failure: insert returns false when host pages cannot be had.
// Cost: O(1) expected; the table doubles, never shrinks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/object_pool.h"
#include "base/units.h"

namespace nofrag {

template <typename T>
class AddressMap {
 public:
  AddressMap() = default;
  AddressMap(const AddressMap&) = delete;
  AddressMap& operator=(const AddressMap&) = delete;
  ~AddressMap() {
    if (slots_ != nullptr) {
      unmap_host_pages(slots_, capacity_ * sizeof(Slot));
    }
  }

  // pre: key is not in the map.
  bool insert(VirtAddr key, T* value) {
    if (2 * (size_ + 1) > capacity_ && !grow()) {
      return false;
    }
    place(key.value(), value);
    ++size_;
    return true;
  }

  [[nodiscard]] T* find(VirtAddr key) const {
    if (size_ == 0) {
      return nullptr;
    }
    for (std::size_t i = home(key.value());; i = (i + 1) & mask()) {
      if (slots_[i].key == key.value()) {
        return slots_[i].value;
      }
      if (slots_[i].key == 0) {
        return nullptr;
      }
    }
  }

  // pre: key is in the map.
  void erase(VirtAddr key) {
    std::size_t hole = home(key.value());
    while (slots_[hole].key != key.value()) {
      NOFRAG_CHECK(slots_[hole].key != 0, "erase of an address that is not in the map");
      hole = (hole + 1) & mask();
    }
    for (std::size_t i = (hole + 1) & mask(); slots_[i].key != 0; i = (i + 1) & mask()) {
      // Move an entry back into the hole unless its home lies after the hole.
      const std::size_t distance_from_home = (i - home(slots_[i].key)) & mask();
      const std::size_t distance_from_hole = (i - hole) & mask();
      if (distance_from_home >= distance_from_hole) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = Slot{};
    --size_;
  }

  [[nodiscard]] std::size_t size() const { return size_; }

  template <typename Visitor>
  void for_each(Visitor&& visit) const {
    for (std::size_t i = 0; i < capacity_; ++i) {
      if (slots_[i].key != 0) {
        visit(slots_[i].value);
      }
    }
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    T* value = nullptr;
  };
  static constexpr std::size_t kFirstCapacity = 4096;

  [[nodiscard]] std::size_t mask() const { return capacity_ - 1; }
  [[nodiscard]] std::size_t home(std::uint64_t key) const {
    // Fibonacci hashing of the 512 B unit number: the low 9 bits are always zero.
    return static_cast<std::size_t>(((key >> 9) * 0x9E3779B97F4A7C15ULL) >> 20) & mask();
  }
  void place(std::uint64_t key, T* value) {
    std::size_t i = home(key);
    while (slots_[i].key != 0) {
      NOFRAG_ASSERT(slots_[i].key != key, "address inserted twice");
      i = (i + 1) & mask();
    }
    slots_[i] = Slot{key, value};
  }
  bool grow() {
    Slot* old = slots_;
    const std::size_t old_capacity = capacity_;
    const std::size_t capacity = old_capacity == 0 ? kFirstCapacity : 2 * old_capacity;
    void* pages = map_host_pages(capacity * sizeof(Slot));
    if (pages == nullptr) {
      return false;
    }
    slots_ = static_cast<Slot*>(pages);  // zero pages are empty slots
    capacity_ = capacity;
    for (std::size_t i = 0; i < old_capacity; ++i) {
      if (old[i].key != 0) {
        place(old[i].key, old[i].value);
      }
    }
    if (old != nullptr) {
      unmap_host_pages(old, old_capacity * sizeof(Slot));
    }
    return true;
  }

  Slot* slots_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

}  // namespace nofrag
