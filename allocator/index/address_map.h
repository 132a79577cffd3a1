// AddressMap<T>: device address -> T*, for exact look-up of a block by the pointer a caller
// holds.
//
// Owns: its tables (mmap pages); not the objects.
// Layer: index (base only).
// Units: keys are multiples of 512 B and never 0 (0 marks an empty slot).
// Growth: the table doubles when half full. The entries move over a few slots at a time, with the
// insertions that follow, so that no single one pays for all; until then there are two tables.
// Invariants: linear probing with backward-shift deletion: no tombstones, every key is reachable
// from its home slot without crossing an empty one, in either table; a key is in one of them; load
// factor <= 1/2.
// Threads: none; the owner's lock.
// Failure: insert returns false when host pages cannot be had.
// Cost: O(1) expected; never shrinks.
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
    release(table_);
    release(old_);
  }

  // pre: key is not in the map.
  bool insert(VirtAddr key, T* value) {
    if (2 * (size_ + 1) > table_.capacity && !grow()) {
      return false;
    }
    NOFRAG_ASSERT(find(key) == nullptr, "address inserted twice");
    if (old_.slots != nullptr) [[unlikely]] {
      move_some();
    }
    table_.place({key.value(), value});
    ++size_;
    return true;
  }

  [[nodiscard]] T* find(VirtAddr key) const {
    if (size_ == 0) {
      return nullptr;
    }
    Slot* slot = table_.find(key.value());
    if (slot == nullptr && old_.slots != nullptr) [[unlikely]] {
      slot = old_.find(key.value());
    }
    return slot == nullptr ? nullptr : slot->value;
  }

  // pre: key is in the map.
  void erase(VirtAddr key) {
    if (Slot* slot = size_ == 0 ? nullptr : table_.find(key.value())) {
      table_.clear(slot);
    } else {
      slot = old_.slots == nullptr ? nullptr : old_.find(key.value());
      NOFRAG_CHECK(slot != nullptr, "erase of an address that is not in the map");
      old_.clear(slot);
    }
    --size_;
  }

  [[nodiscard]] std::size_t size() const { return size_; }

  template <typename Visitor>
  void for_each(Visitor&& visit) const {
    for (const Table* table : {&table_, &old_}) {
      for (std::size_t i = 0; i < table->capacity; ++i) {
        if (table->slots[i].key != 0) {
          visit(table->slots[i].value);
        }
      }
    }
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    T* value = nullptr;
  };
  struct Table {
    Slot* slots = nullptr;
    std::size_t capacity = 0;

    [[nodiscard]] std::size_t mask() const { return capacity - 1; }
    [[nodiscard]] std::size_t home(std::uint64_t key) const {
      // Fibonacci hashing of the 512 B unit number: the low 9 bits are always zero.
      return static_cast<std::size_t>(((key >> 9) * 0x9E3779B97F4A7C15ULL) >> 20) & mask();
    }
    [[nodiscard]] Slot* find(std::uint64_t key) const {
      for (std::size_t i = home(key);; i = (i + 1) & mask()) {
        if (slots[i].key == key) {
          return &slots[i];
        }
        if (slots[i].key == 0) {
          return nullptr;
        }
      }
    }
    void place(Slot entry) {
      std::size_t i = home(entry.key);
      while (slots[i].key != 0) {
        i = (i + 1) & mask();
      }
      slots[i] = entry;
    }
    void clear(Slot* slot) {
      auto hole = static_cast<std::size_t>(slot - slots);
      for (std::size_t i = (hole + 1) & mask(); slots[i].key != 0; i = (i + 1) & mask()) {
        // Move an entry back into the hole unless its home lies after the hole.
        const std::size_t distance_from_home = (i - home(slots[i].key)) & mask();
        const std::size_t distance_from_hole = (i - hole) & mask();
        if (distance_from_home >= distance_from_hole) {
          slots[hole] = slots[i];
          hole = i;
        }
      }
      slots[hole] = Slot{};
    }
  };
  static constexpr std::size_t kFirstCapacity = 4096;
  // Slots an insertion moves at least. The old table is empty after capacity / 8 insertions; the next
  // growth is capacity / 2 away.
  static constexpr std::size_t kMove = 8;

  static void release(Table& table) {
    if (table.slots != nullptr) {
      unmap_host_pages(table.slots, table.capacity * sizeof(Slot));
    }
    table = Table{};
  }

  bool grow() {
    NOFRAG_CHECK(old_.slots == nullptr, "the address map grows twice at once");
    const std::size_t capacity = table_.capacity == 0 ? kFirstCapacity : 2 * table_.capacity;
    void* pages = map_host_pages(capacity * sizeof(Slot));
    if (pages == nullptr) {
      return false;
    }
    old_ = table_;
    table_ = {static_cast<Slot*>(pages), capacity};  // zero pages are empty slots
    left_ = old_.capacity;
    next_ = 0;
    // Start behind an empty slot: chains move whole, and one may run over the table's end.
    while (left_ > 0 && old_.slots[next_].key != 0) {
      ++next_;
    }
    return true;
  }

  // Moves at least kMove slots and goes on to an empty one, so that no chain is ever cut in two: both
  // tables stay searchable without knowing how far the move has come.
  void move_some() {
    for (std::size_t moved = 0; left_ > 0; ++moved) {
      Slot& slot = old_.slots[next_];
      if (slot.key == 0 && moved >= kMove) {
        return;
      }
      if (slot.key != 0) {
        table_.place(slot);
        slot = Slot{};
      }
      next_ = (next_ + 1) & old_.mask();
      --left_;
    }
    release(old_);
  }

  Table table_;
  Table old_;             // while its entries move over
  std::size_t next_ = 0;  // the old table's slot that moves next
  std::size_t left_ = 0;  // how many of its slots remain
  std::size_t size_ = 0;
};

}  // namespace nofrag
