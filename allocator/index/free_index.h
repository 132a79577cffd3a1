// FreeIndex: finds a free run for a request in O(1) bins.
//
// Owns: nothing; it links nodes that its user owns (FreeNode is a base class of the user's node).
// Layer: index (base only): pure arithmetic on addresses and sizes, no idea of devices or streams.
// Units: sizes are multiples of kUnit (512 B, the placement unit). Bins are float-like: exact below
// 8 units, then 8 bins a doubling, so a bin's sizes differ by at most 12.5 %.
// Choice: requests up to kBestFitMax take the smallest run that fits (lowest address among equals,
// within a bounded scan of one bin); larger ones take the lowest address that fits. Best fit keeps
// small holes for small blocks; address order keeps the top of a heap free (../docs/design.md).
// Invariants: a node is in the bin of its size; the bitmap bit of a bin is set iff its list is not
// empty; bytes() is the sum of all sizes; check() walks them.
// Threads: none; the owner's lock. Failure: none. Cost: insert and remove O(1); find O(kScan).
#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace nofrag {

struct FreeNode {
  VirtAddr address;
  Bytes size;
  FreeNode* previous_in_bin = nullptr;
  FreeNode* next_in_bin = nullptr;
};

class FreeIndex {
 public:
  static constexpr Bytes kUnit{512};
  static constexpr Bytes kBestFitMax = 16 * kMiB;
  // How many nodes of one bin a best-fit search looks at: with 12.5 % wide bins the first few dozen
  // hold a near-best fit, and the bound keeps the worst case flat.
  static constexpr int kScan = 48;
  // How many runs an address-ordered search looks at; runs above 16 MiB are few.
  static constexpr int kAddressScan = 512;

  // The bin a run of `size` is kept in.
  static std::uint32_t bin_of(Bytes size);
  static constexpr std::uint32_t kBins = 288;

  void insert(FreeNode* node);
  // pre: node is in this index and its size is unchanged since insert.
  void remove(FreeNode* node);
  // A run of at least `size`, or nullptr. Does not remove it.
  [[nodiscard]] FreeNode* find(Bytes size) const;
  // Visits at most `at_most` runs, roughly the longest first.
  template <typename Visitor>
  void for_largest(std::size_t at_most, Visitor&& visit) const {
    for (std::uint32_t bin = kBins; bin-- > 0 && at_most > 0;) {
      if (bin % 64 == 63 && occupied_[bin / 64] == 0) {
        bin -= 63;
        continue;
      }
      for (FreeNode* node = heads_[bin]; node != nullptr && at_most > 0; node = node->next_in_bin) {
        visit(node);
        --at_most;
      }
    }
  }
  // The longest run, or nullptr; looks at one bin.
  [[nodiscard]] FreeNode* largest() const;

  [[nodiscard]] Bytes bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }

  void check() const;

 private:
  static constexpr std::uint32_t kWords = (kBins + 63) / 64;

  // First non-empty bin >= from, or kBins.
  [[nodiscard]] std::uint32_t next_bin(std::uint32_t from) const;
  [[nodiscard]] FreeNode* best_in_bin(std::uint32_t bin, Bytes size) const;
  [[nodiscard]] FreeNode* lowest_from_bin(std::uint32_t bin, Bytes size) const;

  std::array<FreeNode*, kBins> heads_{};
  std::array<std::uint64_t, kWords> occupied_{};
  Bytes bytes_;
  std::uint64_t count_ = 0;
};

}  // namespace nofrag
