// AddressTable<T>: one table of an AddressMap: slots of (address, T*) with linear probing, behind a head that
// says how many there are, so that one pointer finds both.
//
// Owns: nothing; it lies at the start of the zeroed pages that hold it and its slots.
// Layer: index (base only).
// Units: keys are multiples of 512 B; 0 marks an empty slot. The capacity is a power of two.
// A value carries a tag in the bits that alignment leaves free in its pointer: what must be known of the object
// before its own line has come from memory.
// Invariants: no tombstones; every key is reachable from its home slot without crossing an empty one.
// Threads: one writer at a time; find by anybody, who learns from the map's version whether to believe it.
// Every access is atomic, with acquire and release: a reader that sees anything of a change sees the version
// it began with.
// Failure: none. Cost: O(1) expected at a load factor of at most 1/2.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace nofrag {

template <typename T>
struct alignas(64) AddressTable {
  struct Slot {
    std::atomic<std::uint64_t> key;
    std::atomic<std::uintptr_t> tagged;

    void set(std::uint64_t new_key, std::uintptr_t new_tagged) {
      tagged.store(new_tagged, std::memory_order_release);
      key.store(new_key, std::memory_order_release);
    }
  };
  static constexpr std::uintptr_t kTags = alignof(T) - 1;
  static std::uintptr_t tagged(const T* object, std::uint32_t tag) {
    return reinterpret_cast<std::uintptr_t>(object) | tag;
  }
  static T* object(std::uintptr_t tagged) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): one word that is read at once holds the pointer and its tag
    return reinterpret_cast<T*>(tagged & ~kTags);
  }
  static std::uint32_t tag(std::uintptr_t tagged) {
    return static_cast<std::uint32_t>(tagged & kTags);
  }

  std::size_t capacity = 0;
  AddressTable* next_emptied = nullptr;

  [[nodiscard]] Slot* slots() const {
    return reinterpret_cast<Slot*>(const_cast<AddressTable*>(this) + 1);
  }
  [[nodiscard]] std::size_t mask() const { return capacity - 1; }
  [[nodiscard]] std::size_t home(std::uint64_t key) const {
    // Fibonacci hashing of the 512 B unit number: the low 9 bits are always zero.
    return static_cast<std::size_t>(((key >> 9) * 0x9E3779B97F4A7C15ULL) >> 20) & mask();
  }
  // A reader whom changes overtake walks on until the version sends it back, but never for ever.
  [[nodiscard]] Slot* find(std::uint64_t key) const {
    Slot* const all = slots();
    const std::size_t last = mask();
    std::size_t i = home(key);
    for (std::size_t steps = 0; steps <= last; ++steps, i = (i + 1) & last) {
      const std::uint64_t here = all[i].key.load(std::memory_order_acquire);
      if (here == key) [[likely]] {
        return &all[i];
      }
      if (here == 0) {
        break;
      }
    }
    return nullptr;
  }
  [[nodiscard]] std::uint64_t key_at(std::size_t i) const {
    return slots()[i].key.load(std::memory_order_relaxed);
  }
  void place(std::uint64_t key, std::uintptr_t tagged) {
    std::size_t i = home(key);
    while (key_at(i) != 0) {
      i = (i + 1) & mask();
    }
    slots()[i].set(key, tagged);
  }
  void clear(Slot* slot) {
    auto hole = static_cast<std::size_t>(slot - slots());
    for (std::size_t i = (hole + 1) & mask(); key_at(i) != 0; i = (i + 1) & mask()) {
      // Move an entry back into the hole unless its home lies after the hole.
      const std::size_t distance_from_home = (i - home(key_at(i))) & mask();
      const std::size_t distance_from_hole = (i - hole) & mask();
      if (distance_from_home >= distance_from_hole) {
        slots()[hole].set(key_at(i), slots()[i].tagged.load(std::memory_order_relaxed));
        hole = i;
      }
    }
    slots()[hole].set(0, 0);
  }
  static std::size_t bytes(std::size_t capacity) {
    return sizeof(AddressTable) + capacity * sizeof(Slot);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes(capacity); }
};

}  // namespace nofrag
