// AddressMap<T>: device address -> T*, for exact look-up of a block by the pointer a caller
// holds.
//
// Owns: its tables (mmap pages); not the objects.
// Layer: index (base only).
// Units: keys are multiples of 512 B and never 0 (0 marks an empty slot).
// Growth: the table doubles when half full. The entries move over a few slots at a time, with the
// insertions that follow, so that no single one pays for all; until then there are two tables. One that
// is empty gives its pages back but keeps its addresses, because a reader may still be in it.
// Invariants: linear probing with backward-shift deletion: no tombstones, every key is reachable
// from its home slot without crossing an empty one, in either table; a key is in one of them; load
// factor <= 1/2.
// Threads: one writer at a time (the owner's lock). find_shared may be called by any thread at any time:
// a version number that is odd while something changes tells it to look again.
// Failure: insert returns false when host pages cannot be had.
// Cost: O(1) expected; never shrinks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "base/object_pool.h"
#include "base/prefetch.h"
#include "base/units.h"
#include "index/address_table.h"

namespace nofrag {

template <typename T>
class AddressMap {
 public:
  AddressMap() = default;
  AddressMap(const AddressMap&) = delete;
  AddressMap& operator=(const AddressMap&) = delete;
  ~AddressMap() {
    unmap(table());
    unmap(old());
    while (emptied_ != nullptr) {
      Table* next = emptied_->next_emptied;
      unmap(emptied_);
      emptied_ = next;
    }
  }

  // pre: key is not in the map. A tag is less than the alignment of T, and goes to the readers of find_shared.
  bool insert(VirtAddr key, T* value, std::uint32_t tag = 0) {
    if ((table() == nullptr || 2 * (size_ + 1) > table()->capacity) && !grow()) {
      return false;
    }
    NOFRAG_ASSERT(find(key) == nullptr, "address inserted twice");
    const Change change(version_);
    if (old() != nullptr) [[unlikely]] {
      move_some();
    }
    NOFRAG_ASSERT(tag <= Table::kTags, "a tag that is too large");
    table()->place(key.value(), Table::tagged(value, tag));
    ++size_;
    return true;
  }

  // For whoever holds the owner's lock.
  [[nodiscard]] T* find(VirtAddr key) const {
    const Slot* slot = slot_of(key.value());
    return slot == nullptr ? nullptr : Table::object(slot->tagged.load(std::memory_order_relaxed));
  }

  // Asks for the place of a key that will be looked up soon.
  void expect(VirtAddr key) const {
    if (const Table* newer = table()) {
      prefetch_to_write(&newer->slots()[newer->home(key.value())]);
    }
  }

  // For everybody: true if *value is what find() said at some moment during the call; false if the map
  // changed too often meanwhile.
  // `read` is called with every object found and its tag, before it is known whether to believe it: what it reads
  // belongs to that moment too, if whoever takes an object out changes it only afterwards.
  template <typename Read>
  bool find_shared(VirtAddr key, T** value, Read&& read) const {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const std::uint64_t before = version_.load(std::memory_order_acquire);
      if (before % 2 == 0) {
        *value = read_slot(slot_of(key.value()), read);
        if (version_.load(std::memory_order_relaxed) == before) {
          return true;
        }
      }
    }
    return false;
  }
  // The object, if one look tells and the newer table has it, which is so for most, without a call. Null: ask
  // find_shared.
  template <typename Read>
  [[nodiscard]] T* look_once(VirtAddr key, Read&& read) const {
    const std::uint64_t before = version_.load(std::memory_order_acquire);
    const Table* newer = table();
    if (newer == nullptr || before % 2 != 0) [[unlikely]] {
      return nullptr;
    }
    T* const found = read_slot(newer->find(key.value()), read);
    return version_.load(std::memory_order_relaxed) == before ? found : nullptr;
  }

  bool find_shared(VirtAddr key, T** value) const {
    return find_shared(key, value, [](const T&, std::uint32_t) {});
  }

  // pre: key is in the map.
  void erase(VirtAddr key) {
    const Change change(version_);
    Table* in = table();
    Slot* slot = in == nullptr ? nullptr : in->find(key.value());
    if (slot == nullptr) {
      in = old();
      slot = in == nullptr ? nullptr : in->find(key.value());
    }
    NOFRAG_CHECK(slot != nullptr, "erase of an address that is not in the map");
    in->clear(slot);
    --size_;
  }

  [[nodiscard]] std::size_t size() const { return size_; }

  template <typename Visitor>
  void for_each(Visitor&& visit) const {
    for (const Table* table : {table_.load(std::memory_order_relaxed), old()}) {
      for (std::size_t i = 0; table != nullptr && i < table->capacity; ++i) {
        if (table->slots()[i].key.load(std::memory_order_relaxed) != 0) {
          visit(Table::object(table->slots()[i].tagged.load(std::memory_order_relaxed)));
        }
      }
    }
  }

 private:
  using Table = AddressTable<T>;
  using Slot = typename Table::Slot;

  // Odd while it lives.
  class Change {
   public:
    explicit Change(std::atomic<std::uint64_t>& version) : version_(version) {
      version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    ~Change() {
      version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }

   private:
    std::atomic<std::uint64_t>& version_;
  };
  static constexpr std::size_t kFirstCapacity = 4096;
  // Slots an insertion moves at least. The old table is empty after capacity / 8 insertions; the next
  // growth is capacity / 2 away.
  static constexpr std::size_t kMove = 8;
  static constexpr int kAttempts = 16;

  [[nodiscard]] Table* table() const { return table_.load(std::memory_order_acquire); }
  [[nodiscard]] Table* old() const { return old_.load(std::memory_order_acquire); }

  template <typename Read>
  static T* read_slot(const Slot* slot, Read&& read) {
    const std::uintptr_t tagged =
        slot == nullptr ? 0 : slot->tagged.load(std::memory_order_acquire);
    if (T* const found = Table::object(tagged); found != nullptr) [[likely]] {
      read(*found, Table::tag(tagged));
      return found;
    }
    return nullptr;
  }
  [[nodiscard]] Slot* slot_of(std::uint64_t key) const {
    const Table* newer = table();
    Slot* slot = newer == nullptr ? nullptr : newer->find(key);
    return slot == nullptr ? old_slot_of(key) : slot;
  }
  [[nodiscard, gnu::noinline]] Slot* old_slot_of(std::uint64_t key) const {
    const Table* older = old();
    return older == nullptr ? nullptr : older->find(key);
  }

  static void unmap(Table* table) {
    if (table != nullptr) {
      unmap_host_pages(table, table->bytes());
    }
  }

  bool grow() {
    NOFRAG_CHECK(old() == nullptr, "the address map grows twice at once");
    Table* const full = table();
    const std::size_t capacity = full == nullptr ? kFirstCapacity : 2 * full->capacity;
    const std::size_t bytes = Table::bytes(capacity);
    void* pages = bytes < kHugePage ? map_host_pages(bytes) : map_huge_host_pages(bytes);
    if (pages == nullptr) {
      return false;
    }
    auto* fresh = new (pages) Table;  // zero pages are empty slots
    fresh->capacity = capacity;
    const Change change(version_);
    old_.store(full, std::memory_order_release);
    table_.store(fresh, std::memory_order_release);
    left_ = full == nullptr ? 0 : full->capacity;
    next_ = 0;
    // Start behind an empty slot: chains move whole, and one may run over the table's end.
    while (left_ > 0 && full->key_at(next_) != 0) {
      ++next_;
    }
    return true;
  }

  // Moves at least kMove slots and goes on to an empty one, so that no chain is ever cut in two: both
  // tables stay searchable without knowing how far the move has come.
  void move_some() {
    Table* const from = old();
    for (std::size_t moved = 0; left_ > 0; ++moved) {
      Slot& slot = from->slots()[next_];
      const std::uint64_t key = from->key_at(next_);
      if (key == 0 && moved >= kMove) {
        return;
      }
      if (key != 0) {
        table()->place(key, slot.tagged.load(std::memory_order_relaxed));
        slot.set(0, 0);
      }
      next_ = (next_ + 1) & from->mask();
      --left_;
    }
    old_.store(nullptr, std::memory_order_release);
    from->next_emptied = emptied_;
    emptied_ = from;
    discard_host_pages(from, from->bytes());
  }

  std::atomic<std::uint64_t> version_{0};
  std::atomic<Table*> table_{nullptr};
  std::atomic<Table*> old_{nullptr};  // while its entries move over
  Table* emptied_ = nullptr;
  std::size_t next_ = 0;  // the old table's slot that moves next
  std::size_t left_ = 0;  // how many of its slots remain
  std::size_t size_ = 0;
};

}  // namespace nofrag
