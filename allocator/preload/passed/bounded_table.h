// BoundedTable: a hash table with a fixed number of places, for what is remembered of the program's own memory.
//
// Owns: its places, in itself: untouched pages of it cost nothing, nothing is allocated, so nothing fails but a full
// table. Layer: preload. Keys are handles and addresses, never 0. Invariant: a key stands behind its home with no empty
// place between (erasing closes the gap). Threads: none of its own; whoever holds it locks. Failure: insert says false
// when three quarters are taken. Cost: a few places looked at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace nofrag::preload {

template <typename Value, unsigned kLogPlaces>
class BoundedTable {
 public:
  static constexpr std::size_t kPlaces = std::size_t{1} << kLogPlaces;
  static constexpr std::size_t kMost = kPlaces / 4 * 3;

  // A key that is there already gets the new value. pre: key != 0.
  bool insert(std::uint64_t key, const Value& value) {
    std::size_t at = place_of(key);
    if (places_[at].key == 0) {
      if (size_ == kMost) {
        return false;
      }
      ++size_;
    }
    places_[at] = {key, value};
    return true;
  }
  // nullptr: not there. Valid until the next insert or erase.
  [[nodiscard]] Value* find(std::uint64_t key) {
    Place& place = places_[place_of(key)];
    return key != 0 && place.key == key ? &place.value : nullptr;
  }
  // pre: it is there.
  void erase(std::uint64_t key) { erase_place(place_of(key)); }
  // The predicate is asked about a value, or about key and value, and true erases.
  template <typename Predicate>
  void erase_if(Predicate predicate) {
    for (std::size_t at = 0; at < kPlaces && size_ > 0; ++at) {
      // Closing the gap may bring another entry here.
      while (places_[at].key != 0 && asked(predicate, places_[at])) {
        erase_place(at);
      }
    }
  }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Place {
    std::uint64_t key = 0;
    Value value{};
  };
  static constexpr std::size_t kMask = kPlaces - 1;

  template <typename Predicate>
  static bool asked(Predicate& predicate, const Place& place) {
    if constexpr (std::is_invocable_v<Predicate&, std::uint64_t, const Value&>) {
      return predicate(place.key, place.value);
    } else {
      return predicate(place.value);
    }
  }
  static std::size_t home_of(std::uint64_t key) {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15U) >> (64 - kLogPlaces));
  }
  // Where it is, or would come.
  std::size_t place_of(std::uint64_t key) const {
    std::size_t at = home_of(key);
    while (places_[at].key != 0 && places_[at].key != key) {
      at = (at + 1) & kMask;
    }
    return at;
  }
  void erase_place(std::size_t gap) {
    for (std::size_t at = (gap + 1) & kMask; places_[at].key != 0; at = (at + 1) & kMask) {
      const std::size_t from_home = (at - home_of(places_[at].key)) & kMask;
      if (from_home >= ((at - gap) & kMask)) {
        places_[gap] = places_[at];
        gap = at;
      }
    }
    places_[gap] = {};
    --size_;
  }

  std::array<Place, kPlaces> places_{};
  std::size_t size_ = 0;
};

}  // namespace nofrag::preload
