// KeptBlocks: freed blocks of one stream that one thread keeps for its next requests, and Depot: what the
// threads of one stream pass on to each other.
//
// A kept block stays allocated for the heap; only `kept` says that it is nobody's. Bins by size class, eight a
// doubling; in a bin two stacks of at most batch() blocks (magazines), so that a whole one can go to the
// depot, or come from there, at once.
// Owns: no memory; the blocks are the heap's.
// Layer: heap.
// Units: Bytes. Blocks of at most kLargestBinned go to bins; larger ones to a short list, exact sizes only.
// Invariants: bytes() is the sum of the kept blocks' sizes; a bin's full magazine is empty or holds batch()
// blocks (fewer if it came from the depot); every block is of this stream's clock and not on any other list.
// Threads: one at a time (thread_cache.h); the depot: any, without a lock.
// Failure: put says false when there is no room. Cost: O(1).
// Decision: docs/decisions/0006-thread-caches.md
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "base/units.h"
#include "heap/block.h"

namespace nofrag {

// Puts the chain `more` (by next_kept, nullptr = none) in front of `chain`.
Block* chain_blocks(Block* more, Block* chain);

// Whole magazines of one stream, by class.
class Depot {
 public:
  static constexpr std::uint32_t kClasses = 72;

  // A chain by next_kept, whose head knows the count and bytes (batch_count, batch_bytes). False: full.
  bool put(std::uint32_t size_class, Block* batch, Bytes most);
  // Takes one batch, or nullptr.
  Block* take(std::uint32_t size_class);
  // No more batches, class by class, than it takes until at most `left` bytes are here; as one chain by next_kept.
  Block* take_down_to(Bytes left);
  Block* take_all() { return take_down_to(Bytes(0)); }
  [[nodiscard]] Bytes bytes() const { return Bytes(bytes_.load(std::memory_order_relaxed)); }

 private:
  // Batches by next_batch, in front of what is there.
  void push(std::uint32_t size_class, Block* first, Block* last);
  void push_all(std::uint32_t size_class, Block* first);

  std::array<std::atomic<Block*>, kClasses> heads_{};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint32_t> next_down_{0};
};

class KeptBlocks {
 public:
  static constexpr Bytes kLargestBinned = kMiB;
  static constexpr std::uint32_t kLargeEntries = 16;

  KeptBlocks(StreamId stream_id, StreamClock& stream_clock, Depot& stream_depot)
      : stream(stream_id), clock(&stream_clock), depot(stream_depot) {}
  KeptBlocks(const KeptBlocks&) = delete;
  KeptBlocks& operator=(const KeptBlocks&) = delete;

  // A block of at least `size` (a multiple of 512 B), or nullptr. `exact`: of that size alone; else up to
  // an eighth more. `epoch`: larger blocks than kLargestBinned only if allocated in it.
  Block* take(Bytes size, bool exact, std::uint64_t epoch);
  // pre: block->clock == clock. At most `most` bytes are kept here, and in the depot.
  bool put(Block* block, Bytes most);
  // The same for one larger than kLargestBinned.
  bool put_large(Block* block, Bytes most);
  // Whole bins until at most `left` bytes are in bins, another one first each time; as one chain by next_kept.
  Block* take_down_to(Bytes left);
  // Everything that is here, as one chain by next_kept.
  Block* take_all();
  [[nodiscard]] Bytes bytes() const { return binned_bytes_ + large_bytes_; }

  static constexpr std::uint32_t class_of(Bytes size) {
    const std::uint64_t above = size.count() / 512 - 1;
    if (above < 8) {
      return static_cast<std::uint32_t>(above);
    }
    const auto octave = static_cast<std::uint32_t>(std::bit_width(above)) - 1;
    return 8 * (octave - 2) + static_cast<std::uint32_t>((above >> (octave - 3)) & 7);
  }
  // The largest size of the class of `size`: what is allocated for a cache, so that it serves the whole class.
  static constexpr Bytes class_size(Bytes size) {
    const std::uint64_t above = size.count() / 512 - 1;
    if (above < 8) {
      return size;
    }
    const std::uint64_t step = std::bit_floor(above) / 8;
    return Bytes((above / step + 1) * step * 512);
  }
  // How many blocks of a class make a magazine: 256 KiB of them, 2 at least and 64 at most.
  static std::uint32_t batch(std::uint32_t size_class) { return kBatch[size_class]; }

  StreamId stream;
  StreamClock* clock;
  Depot& depot;

 private:
  struct Magazine {
    Block* top = nullptr;
    std::uint32_t count = 0;
    Bytes bytes;
  };
  struct Bin {
    Magazine loaded;
    Magazine full;
  };

  static constexpr std::array<std::uint8_t, Depot::kClasses> batches() {
    std::array<std::uint8_t, Depot::kClasses> counts{};
    // Upwards, so that the largest size of a class decides.
    for (std::uint64_t size = 512; size <= kLargestBinned.count(); size += 512) {
      const std::uint64_t fit = std::uint64_t{256} * 1024 / size;
      counts[class_of(Bytes(size))] = static_cast<std::uint8_t>(fit < 2 ? 2 : fit > 64 ? 64 : fit);
    }
    return counts;
  }
  static const std::array<std::uint8_t, Depot::kClasses> kBatch;

  static Block* take_from(Magazine& magazine, Bytes least, Bytes most);
  Block* take_binned(std::uint32_t size_class, Bytes least, Bytes most);

  void note_used(std::uint32_t size_class) {
    used_[size_class / 64] |= std::uint64_t{1} << size_class % 64;
  }

  std::array<Bin, Depot::kClasses> bins_{};
  std::uint32_t next_down_ = 0;
  std::array<std::uint64_t, 2> used_{};  // a bit for each bin that is not known to be empty
  std::array<Block*, kLargeEntries> large_{};
  std::uint32_t large_count_ = 0;
  Bytes binned_bytes_;
  Bytes large_bytes_;
};

}  // namespace nofrag
