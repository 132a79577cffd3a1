// FreeIndex: finds a free run for a request.
//
// Owns: the nodes of its trees; not the runs (FreeNode is a base class of the user's node).
// Layer: index (base only): pure arithmetic on addresses and sizes, no idea of devices or streams.
// Units: sizes are multiples of kUnit (512 B, the placement unit). Bins are float-like: exact below
// 2 * kSubBins units, then kSubBins bins a doubling, so a bin's sizes differ by at most 1/kSubBins.
// Choice: requests up to kBestFitMax take the first bin that holds a run that fits, and of that bin's
// runs that fit the one with the lowest address; larger ones take the lowest address of all that
// fit. Both are exact. Best fit keeps small holes for small blocks; address order keeps the top of a
// heap free (../docs/design.md).
// Invariants: every run is in its bin's tree, and in by_address_ iff it is longer than kBestFitMax;
// a bit of the bitmap is set iff that bin is not empty; bytes() is the sum of all sizes; check()
// walks them.
// Threads: none; the owner's lock. Failure: aborts without host memory for a tree node.
// Cost: O(log runs of one bin) in the worst case, also for find and largest. Nothing in a run but its
// address and size: a live block pays nothing for the index.
// Decision: docs/decisions/0004-free-index.md
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "index/run_tree.h"

namespace nofrag {

class alignas(64) FreeIndex {
 public:
  static constexpr Bytes kUnit{512};
  static constexpr Bytes kBestFitMax = 16 * kMiB;
  static constexpr std::uint32_t kSubBits = 3;
  static constexpr std::uint32_t kSubBins = 1U << kSubBits;
  static constexpr std::uint32_t kBins = 320;  // runs below 2^49 B

  // The bin a run of `size` is kept in; may be beyond kBins.
  static std::uint32_t bin_of(Bytes size);

  FreeIndex() = default;

  // pre: no run of this address is in the index.
  [[gnu::hot]] void insert(FreeNode* node);
  // pre: node is in this index, its address and size unchanged since insert.
  [[gnu::hot]] void remove(FreeNode* node);
  // Gives it another address and size. pre: as remove(); between the addresses lies no other run of the index.
  [[gnu::hot]] void change(FreeNode* node, VirtAddr address, Bytes size);
  // A run of at least `size`, or nullptr if there is none. Does not remove it.
  [[nodiscard, gnu::hot]] FreeNode* find(Bytes size) const;
  // The longest run (of several the lowest address), or nullptr.
  [[nodiscard]] FreeNode* largest() const;
  // Visits at most `at_most` runs, bin by bin from the longest down, order inside a bin free.
  // `visit` must not change the index.
  template <typename Visitor>
  void for_largest(std::size_t at_most, Visitor&& visit) const {
    std::size_t left = at_most;
    for (std::uint32_t bin = last_bin_below(kBins); bin < kBins && left > 0;
         bin = last_bin_below(bin)) {
      bins_[bin].all_of([&](FreeNode* node) {
        visit(node);
        return --left > 0;
      });
    }
  }

  [[nodiscard]] Bytes bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }

  void check() const;

 private:
  static constexpr std::uint32_t kWords = kBins / 64;

  void put_in_bin(std::uint32_t bin, FreeNode* node);
  void take_from_bin(std::uint32_t bin, const FreeNode* node);
  // The first non-empty bin >= from / the last one < to, or kBins.
  [[nodiscard]] std::uint32_t next_bin(std::uint32_t from) const;
  [[nodiscard]] std::uint32_t last_bin_below(std::uint32_t to) const;

  // A cache line that every call looks at.
  std::array<std::uint64_t, kWords> occupied_{};
  Bytes bytes_;
  std::uint64_t count_ = 0;
  alignas(64) RunTree by_address_;  // runs longer than kBestFitMax
  RunTree::Pool pool_;
  std::array<RunTree, kBins> bins_{};
};

}  // namespace nofrag
