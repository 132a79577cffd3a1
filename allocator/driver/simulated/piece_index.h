// PieceIndex: which of many kernels may use some physical bytes, without a look at all of them.
//
// A piece is entered under its handle, and by where it lies, in places as large as itself, so that it is in two of
// them at most. A look-up goes through what its handle has, or through the places of each size that is in use,
// whichever are fewer.
// Owns: numbers only. Layer: driver.
// Invariants: a kernel whose piece overlaps is always found, and no other.
// Threads: none (the driver's lock). Failure: none.
// Cost: add O(1); a look-up O(pieces of the handle) or O(places under the bytes and pieces in them).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "driver/simulated/simulated_memory.h"

namespace nofrag {

class PieceIndex {
 public:
  void add(std::uint32_t kernel, const PhysicalPiece& piece) {
    const unsigned level = level_of(piece);
    levels_ |= std::uint64_t{1} << level;
    for (std::uint64_t place = first(piece, level); place <= last(piece, level); ++place) {
      places_[key(piece.handle, level, place)].push_back({kernel, piece});
    }
    handles_[piece.handle].push_back({kernel, piece});
  }
  void clear() {
    places_.clear();
    handles_.clear();
    levels_ = 0;
  }

  // visit(kernel) for each that overlaps, perhaps more than once. Answers how many pieces it looked at.
  template <typename Visitor>
  std::size_t for_each(const PhysicalPiece& piece, Visitor&& visit) const {
    const auto of_handle = handles_.find(piece.handle);
    if (of_handle == handles_.end()) {
      return 0;
    }
    if (of_handle->second.size() <= places_under(piece)) {
      return visit_overlapping(of_handle->second, piece, visit);
    }
    std::size_t looks = 0;
    for_each_level([&](unsigned level) {
      for (std::uint64_t place = first(piece, level); place <= last(piece, level); ++place) {
        const auto found = places_.find(key(piece.handle, level, place));
        if (found != places_.end()) {
          looks += visit_overlapping(found->second, piece, visit);
        }
      }
    });
    return looks;
  }

 private:
  struct Entry {
    std::uint32_t kernel;
    PhysicalPiece piece;
  };
  static constexpr unsigned kLowestLevel = 14;  // places of 16 KiB

  static unsigned level_of(const PhysicalPiece& piece) {
    return std::max(kLowestLevel, static_cast<unsigned>(std::bit_width(piece.end - piece.begin)));
  }
  static std::uint64_t first(const PhysicalPiece& piece, unsigned level) {
    return piece.begin >> level;
  }
  static std::uint64_t last(const PhysicalPiece& piece, unsigned level) {
    return (std::max(piece.end, piece.begin + 1) - 1) >> level;
  }
  // Two places of one key are found together: that costs a look, no more.
  static std::uint64_t key(std::uint64_t handle, unsigned level, std::uint64_t place) {
    return (handle * 64 + level) * 0x9E3779B97F4A7C15U + place;
  }
  template <typename Visitor>
  void for_each_level(Visitor&& visit) const {
    for (std::uint64_t levels = levels_; levels != 0; levels &= levels - 1) {
      visit(static_cast<unsigned>(std::countr_zero(levels)));
    }
  }

  template <typename Visitor>
  static std::size_t visit_overlapping(const std::vector<Entry>& entries,
                                       const PhysicalPiece& piece,
                                       Visitor& visit) {
    for (const Entry& entry : entries) {
      const PhysicalPiece& other = entry.piece;
      if (other.handle == piece.handle && other.begin < piece.end && piece.begin < other.end) {
        visit(entry.kernel);
      }
    }
    return entries.size();
  }
  [[nodiscard]] std::uint64_t places_under(const PhysicalPiece& piece) const {
    std::uint64_t count = 0;
    for_each_level([&](unsigned level) { count += last(piece, level) - first(piece, level) + 1; });
    return count;
  }

  std::unordered_map<std::uint64_t, std::vector<Entry>> places_;
  std::unordered_map<std::uint64_t, std::vector<Entry>> handles_;
  std::uint64_t levels_ = 0;  // a bit for each that is in use
};

}  // namespace nofrag
