// KeptBlocks: freed blocks of one stream that one thread keeps for its next requests, and Depot: what the
// threads of one stream pass on to each other.
//
// A kept block stays allocated for the heap; only `kept` says that it is nobody's. Bins by size class, eight a
// doubling; in a bin two stacks of batch() blocks (magazines), so that a whole one can go to the depot, or come
// from there, at once. While no other thread knows the stream one stack grows instead.
// Owns: no memory; the blocks are the heap's.
// Layer: heap.
// Units: Bytes. Blocks of at most kLargestBinned go to bins; larger ones to a short list, exact sizes only.
// Invariants: bytes() is the sum of the kept blocks' sizes; a bin that holds a block is marked in used_; every
// block is of this stream's clock and not on any other list.
// Threads: one at a time (thread_cache.h); the depot: any, without a lock.
// Failure: put says false when there is no room. Cost: O(1).
// Decision: docs/decisions/0006-thread-caches.md
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <utility>

#include "base/prefetch.h"
#include "base/units.h"
#include "heap/block.h"

namespace nofrag {

// How large a kept block may be for a request.
enum class Fit : unsigned char {
  kExact,   // of that size
  kEighth,  // up to an eighth more
  kDouble,  // less than twice as much
};

// Puts the chain `more` (by next_kept, nullptr = none) in front of `chain`.
[[gnu::hot]] Block* chain_blocks(Block* more, Block* chain);

// Whole magazines of one stream, by class.
class Depot {
 public:
  static constexpr std::uint32_t kClasses = 72;

  // A chain by next_kept, whose head knows the count and bytes (batch_count, batch_bytes). False: full.
  bool put(std::uint32_t size_class, Block* batch, Bytes most);
  // Takes one batch, or nullptr.
  [[gnu::hot]] Block* take(std::uint32_t size_class);
  // No more batches, class by class, than it takes until at most `left` bytes are here; as one chain by next_kept.
  [[gnu::hot]] Block* take_down_to(Bytes left);
  Block* take_all() { return take_down_to(Bytes(0)); }
  [[nodiscard]] Bytes bytes() const { return Bytes(bytes_.load(std::memory_order_relaxed)); }
  // How many batches of the class were taken so far, modulo 256; a few may be missing.
  [[nodiscard]] std::uint8_t drawn(std::uint32_t size_class) const {
    return drawn_[size_class].load(std::memory_order_relaxed);
  }

  // How many threads know it; changed under the device's lock.
  void add_thread(int change) { threads_.fetch_add(change, std::memory_order_relaxed); }
  [[nodiscard]] bool shared() const { return threads_.load(std::memory_order_relaxed) > 1; }

 private:
  // Batches by next_batch, in front of what is there.
  void push(std::uint32_t size_class, Block* first, Block* last);
  [[gnu::hot]] void push_all(std::uint32_t size_class, Block* first);

  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint32_t> next_down_{0};
  std::atomic<int> threads_{0};
  std::array<std::atomic<Block*>, kClasses> heads_{};
  std::array<std::atomic<std::uint8_t>, kClasses> drawn_{};
};

class KeptBlocks {
 public:
  static constexpr Bytes kLargestBinned = kMiB;
  static constexpr std::uint32_t kLargeEntries = 16;
  static constexpr std::uint32_t kAhead = 4;
  // Of blocks larger than kLargestBinned.
  static constexpr std::uint32_t kNoClass = Depot::kClasses;

  KeptBlocks(StreamId stream_id, StreamClock& stream_clock, Depot& stream_depot)
      : stream(stream_id), clock(&stream_clock), depot(stream_depot) {}
  KeptBlocks(const KeptBlocks&) = delete;
  KeptBlocks& operator=(const KeptBlocks&) = delete;

  // A block of at least `size` (a multiple of 512 B) that fits, or nullptr. `epoch`: larger blocks than
  // kLargestBinned only of that very size, and if allocated in it.
  Block* take(Bytes size, Fit fit, std::uint64_t epoch) {
    if (size > kLargestBinned) [[unlikely]] {
      return take_same(size, epoch);
    }
    Block* block = take_top(size, fit);
    return block != nullptr ? block : take_other(class_of(size), size, fit);
  }
  // The same of the last one kept of its class only, and without a call. pre: size <= kLargestBinned.
  Block* take_top(Bytes size, Fit fit) {
    Magazine& loaded = bins_[class_of(size)].loaded;
    Block* const block = loaded.top;
    // Within a class no block is an eighth larger than a request.
    if (block == nullptr || block->size < size || (block->size != size && fit == Fit::kExact))
        [[unlikely]] {
      return nullptr;
    }
    const Bytes has = block->size;
    loaded.top = block->next_kept;
    block->drawn = loaded.drawn;
    prefetch_to_write(block->some_kept);  // it may have to come from another processor
    --loaded.count;
    loaded.bytes -= has;
    binned_bytes_ -= has;
    return block;
  }
  // pre: block->clock == clock, and it is of this class. At most `most` bytes are kept here, and as many in the
  // depot.
  bool put(Block* block, std::uint32_t size_class, Bytes most) {
    return put_on_top(block, size_class, most) ||
           (make_room(size_class, block->size, most) &&
            push(block, size_class, bins_[size_class].loaded));
  }
  bool put(Block* block, Bytes most) { return put(block, class_of(block->size), most); }
  // The same where there is room already, and without a call.
  bool put_on_top(Block* block, std::uint32_t size_class, Bytes most) {
    NOFRAG_ASSERT(size_class == class_or_none(block->size), "a block of another class");
    Magazine& loaded = bins_[size_class].loaded;
    const bool full = loaded.count >= batch(size_class);
    const bool over = binned_bytes_ + block->size > most;
    // One branch: classes come in no order that a processor could learn.
    if ((static_cast<unsigned>(full) | static_cast<unsigned>(over)) != 0) [[unlikely]] {
      return false;
    }
    return push(block, size_class, loaded);
  }
  // The same for one larger than kLargestBinned.
  [[gnu::hot]] bool put_large(Block* block, Bytes most);
  // Half of what has most, the blocks that were kept first, until at most `left` bytes are in bins; as one
  // chain by next_kept.
  [[gnu::hot]] Block* take_down_to(Bytes left);
  // Everything that is here, as one chain by next_kept; only what is too large for bins.
  [[gnu::hot]] Block* take_all();
  [[gnu::hot]] Block* take_large();
  [[nodiscard]] Bytes bytes() const { return binned_bytes_ + large_bytes_; }

  // Without a branch: sizes come in no order that a processor could learn.
  static constexpr std::uint32_t class_of(Bytes size) {
    const std::uint64_t above = size.count() / 512 - 1;
    const auto octave = static_cast<std::uint32_t>(std::bit_width(above | 7)) - 3;
    const auto shift = static_cast<std::uint32_t>(std::bit_width(above | 15)) - 4;
    return 8 * octave + static_cast<std::uint32_t>((above >> shift) & 7);
  }
  // What the address map says of a block, so that where it goes is known before the block has come from memory.
  static constexpr std::uint32_t class_or_none(Bytes size) {
    return size > kLargestBinned ? kNoClass : class_of(size);
  }
  // The largest size of the class of `size`: what is allocated for a cache, so that it serves the whole class.
  static constexpr Bytes class_size(Bytes size) {
    const std::uint64_t above = size.count() / 512 - 1;
    if (above < 8) {
      return size;
    }
    const std::uint64_t step = std::bit_floor(above) / 8;
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): above is 8 or more
    return Bytes((above / step + 1) * step * 512);
  }
  // How many blocks of a class make a magazine: 256 KiB of them, 2 at least and 64 at most.
  static std::uint32_t batch(std::uint32_t size_class) { return kBatch[size_class]; }

  // Nothing is here, nor anything in the depot.
  [[nodiscard]] bool nothing() const {
    return binned_bytes_.is_zero() && large_count_ == 0 && depot.bytes().is_zero();
  }

  StreamId stream;
  StreamClock* clock;
  Depot& depot;

 private:
  // In the same cache line.
  Bytes binned_bytes_;
  Bytes large_bytes_;
  std::uint32_t large_count_ = 0;

  struct Magazine {
    Block* top = nullptr;
    std::uint32_t count = 0;
    std::uint8_t drawn = 0;  // from the depot, of this class, when this magazine was begun
    Bytes bytes;
  };
  struct alignas(64) Bin {  // a cache line
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

  [[gnu::hot]] Block* take_same(Bytes size, std::uint64_t epoch);
  // What the top of the class does not serve.
  [[gnu::hot]] Block* take_other(std::uint32_t size_class, Bytes size, Fit fit);
  static Block* take_from(Magazine& magazine, Bytes least, Bytes most);
  [[gnu::hot]] Block* take_binned(std::uint32_t size_class, Bytes least, Bytes most);
  Block* take_above(std::uint32_t size_class);
  [[gnu::hot]] bool make_room(std::uint32_t size_class, Bytes size, Bytes most);
  bool hand_over(std::uint32_t size_class, Magazine& leaving, Bytes most);
  static Block* older_half(Magazine& magazine);

  bool push(Block* block, std::uint32_t size_class, Magazine& loaded) {
    const Bytes size = block->size;
    note_used(size_class);
    // Whoever took it has begun another magazine since, so that it has done with what it took next and this
    // thread will probably get now. Any earlier the line would be fetched from under its hands.
    if (static_cast<std::int8_t>(loaded.drawn - block->drawn) > 0) {
      prefetch_to_write(block->some_kept);
    }
    block->next_kept = loaded.top;
    block->some_kept = std::exchange(recent_[loaded.count % kAhead], block);
    loaded.top = block;
    ++loaded.count;
    loaded.bytes += size;
    binned_bytes_ += size;
    return true;
  }
  // A byte, so that to say it takes one store.
  void note_used(std::uint32_t size_class) { used_[size_class] = 1; }

  std::array<Bin, Depot::kClasses> bins_{};
  std::array<std::uint8_t, Depot::kClasses> used_{};  // 0: the bin is known to be empty
  std::array<Block*, kAhead> recent_{};               // kept last, of whatever class
  std::array<Block*, kLargeEntries> large_{};
};

}  // namespace nofrag
