#include "heap/kept_blocks.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace nofrag {
namespace {

// How many of a magazine are looked at for one that fits.
constexpr int kLook = 8;
// How much larger than the request a block may be, as a part of the request.
constexpr std::uint64_t kExcessShare = 8;
constexpr std::uint32_t kClassesADoubling = 8;
// Marks that are looked at in one word.
constexpr std::uint32_t kTogether = sizeof(std::uint64_t);
static_assert(Depot::kClasses % kTogether == 0);

}  // namespace

Block* chain_blocks(Block* more, Block* chain) {
  if (more == nullptr) {
    return chain;
  }
  Block* last = more;
  while (last->next_kept != nullptr) {
    last = last->next_kept;
  }
  last->next_kept = chain;
  return more;
}

constexpr std::array<std::uint8_t, Depot::kClasses> KeptBlocks::kBatch = KeptBlocks::batches();

void Depot::push(std::uint32_t size_class, Block* first, Block* last) {
  std::atomic<Block*>& head = heads_[size_class];
  Block* before = head.load(std::memory_order_relaxed);
  do {
    last->next_batch = before;
  } while (!head.compare_exchange_weak(
      before, first, std::memory_order_release, std::memory_order_relaxed));
}

void Depot::push_all(std::uint32_t size_class, Block* first) {
  Block* nobody = nullptr;
  if (first == nullptr ||
      heads_[size_class].compare_exchange_strong(
          nobody, first, std::memory_order_release, std::memory_order_relaxed)) {
    return;  // nearly always: the others' lines stay where they are
  }
  Block* last = first;
  while (last != nullptr && last->next_batch != nullptr) {
    last = last->next_batch;
  }
  if (last != nullptr) {
    push(size_class, first, last);
  }
}

bool Depot::put(std::uint32_t size_class, Block* batch, Bytes most) {
  const std::uint64_t size = batch->batch_bytes;
  if (bytes_.fetch_add(size, std::memory_order_relaxed) + size > most.count()) {
    bytes_.fetch_sub(size, std::memory_order_relaxed);
    return false;
  }
  push(size_class, batch, batch);
  return true;
}

// Takes all and puts back the rest: a pop of one could meet a head that went and came back meanwhile.
Block* Depot::take(std::uint32_t size_class) {
  std::atomic<Block*>& head = heads_[size_class];
  if (head.load(std::memory_order_relaxed) == nullptr) {
    return nullptr;
  }
  Block* batch = head.exchange(nullptr, std::memory_order_acquire);
  if (batch == nullptr) {
    return nullptr;
  }
  push_all(size_class, std::exchange(batch->next_batch, nullptr));
  drawn_[size_class].store(static_cast<std::uint8_t>(drawn(size_class) + 1),
                           std::memory_order_relaxed);
  bytes_.fetch_sub(batch->batch_bytes, std::memory_order_relaxed);
  return batch;
}

Block* Depot::take_down_to(Bytes left) {
  Block* all = nullptr;
  for (std::uint32_t i = 0; i < kClasses && bytes_.load(std::memory_order_relaxed) > left.count();
       ++i) {
    // Not always the small ones first.
    const std::uint32_t size_class = next_down_.fetch_add(1, std::memory_order_relaxed) % kClasses;
    Block* batch = heads_[size_class].exchange(nullptr, std::memory_order_acquire);
    while (batch != nullptr && bytes_.load(std::memory_order_relaxed) > left.count()) {
      Block* next = std::exchange(batch->next_batch, nullptr);
      bytes_.fetch_sub(batch->batch_bytes, std::memory_order_relaxed);
      all = chain_blocks(batch, all);
      batch = next;
    }
    push_all(size_class, batch);
  }
  return all;
}

Block* KeptBlocks::take_from(Magazine& magazine, Bytes least, Bytes most) {
  Block** link = &magazine.top;
  for (int looked = 0; *link != nullptr && looked < kLook; ++looked) {
    Block* block = *link;
    if (block->size >= least && block->size <= most) {
      *link = block->next_kept;
      block->drawn = magazine.drawn;
      prefetch_to_write(block->some_kept);
      --magazine.count;
      magazine.bytes -= block->size;
      return block;
    }
    link = &block->next_kept;
  }
  return nullptr;
}

Block* KeptBlocks::take_binned(std::uint32_t size_class, Bytes least, Bytes most) {
  Bin& bin = bins_[size_class];
  if (Block* block = take_from(bin.loaded, least, most)) {
    return block;
  }
  if (bin.full.count == 0) {
    Block* batch = depot.take(size_class);
    if (batch == nullptr) {
      return nullptr;
    }
    note_used(size_class);
    bin.full = {batch, batch->batch_count, depot.drawn(size_class), Bytes(batch->batch_bytes)};
    binned_bytes_ += bin.full.bytes;
  }
  if (bin.loaded.count == 0) {
    bin.loaded = std::exchange(bin.full, {});
    return take_from(bin.loaded, least, most);
  }
  return take_from(bin.full, least, most);
}

// From the nearest of the classes above that holds any, as far as they are less than twice as large.
Block* KeptBlocks::take_above(std::uint32_t size_class) {
  constexpr Bytes kAny{UINT64_MAX};
  const std::uint32_t last = std::min(size_class + kClassesADoubling - 1, Depot::kClasses - 1);
  for (std::uint32_t above = size_class + 1; above <= last; ++above) {
    if (used_[above] == 0) {
      continue;
    }
    Bin& bin = bins_[above];
    Block* block = take_from(bin.loaded, Bytes(0), kAny);
    if (block == nullptr) {
      block = take_from(bin.full, Bytes(0), kAny);
    }
    if (block != nullptr) {
      return block;
    }
    used_[above] = 0;
  }
  for (std::uint32_t above = size_class + 1; above <= last; ++above) {
    if (Block* block = take_binned(above, Bytes(0), kAny)) {
      return block;
    }
  }
  return nullptr;
}

Block* KeptBlocks::take_other(std::uint32_t size_class, Bytes size, Fit fit) {
  const Bytes most = fit == Fit::kExact ? size : size + Bytes(size.count() / kExcessShare);
  Block* block = take_binned(size_class, size, most);
  if (block == nullptr && fit == Fit::kDouble) {
    block = take_above(size_class);
  } else if (block == nullptr && fit == Fit::kEighth && size_class + 1 < Depot::kClasses) {
    block = take_binned(size_class + 1, size, most);
  }
  if (block != nullptr) {
    binned_bytes_ -= block->size;
  }
  return block;
}

Block* KeptBlocks::take_same(Bytes size, std::uint64_t epoch) {
  for (std::uint32_t i = 0; i < large_count_; ++i) {
    Block* block = large_[i];
    if (block->size == size && block->epoch == epoch) {
      large_[i] = large_[--large_count_];
      large_bytes_ -= size;
      return block;
    }
  }
  return nullptr;
}

bool KeptBlocks::hand_over(std::uint32_t size_class, Magazine& leaving, Bytes most) {
  leaving.top->batch_count = leaving.count;
  leaving.top->batch_bytes = leaving.bytes.count();
  const Bytes size = leaving.bytes;
  if (!depot.put(size_class, leaving.top, most)) {
    return false;
  }
  binned_bytes_ -= size;
  leaving = {};
  return true;
}

// Of a class whose stack is full, or when all stacks together are. False: no room.
bool KeptBlocks::make_room(std::uint32_t size_class, Bytes size, Bytes most) {
  Bin& bin = bins_[size_class];
  if (!depot.shared()) {
    // Nobody would come for it to the depot: what that might hold, this may.
    return binned_bytes_ + depot.bytes() + size <= 2 * most;
  }
  const bool over = binned_bytes_ + size > most;
  Magazine& leaving = bin.full.count != 0 ? bin.full : bin.loaded;
  if (leaving.count != 0 && (over || bin.full.count != 0) &&
      !hand_over(size_class, leaving, most)) {
    return false;
  }
  if (bin.loaded.count >= batch(size_class)) {
    bin.full = std::exchange(bin.loaded, {});
    bin.loaded.drawn = depot.drawn(size_class);
  }
  return binned_bytes_ + size <= most;
}

bool KeptBlocks::put_large(Block* block, Bytes most) {
  if (large_count_ == kLargeEntries || large_bytes_ + block->size > most) {
    return false;
  }
  large_[large_count_++] = block;
  large_bytes_ += block->size;
  return true;
}

// As a chain; all of it if there is only one.
Block* KeptBlocks::older_half(Magazine& magazine) {
  const std::uint32_t stay = magazine.count / 2;
  Magazine younger;
  younger.drawn = magazine.drawn;
  Block** link = &magazine.top;
  for (; younger.count < stay; ++younger.count) {
    younger.bytes += (*link)->size;
    link = &(*link)->next_kept;
  }
  Block* older = std::exchange(*link, nullptr);
  younger.top = magazine.top;
  magazine = younger;
  return older;
}

Block* KeptBlocks::take_down_to(Bytes left) {
  Block* all = nullptr;
  while (binned_bytes_ > left) {
    Magazine* largest = &bins_[0].loaded;
    for (Bin& bin : bins_) {
      largest = bin.loaded.bytes > largest->bytes ? &bin.loaded : largest;
      largest = bin.full.bytes > largest->bytes ? &bin.full : largest;
    }
    const Bytes before = largest->bytes;
    all = chain_blocks(older_half(*largest), all);
    binned_bytes_ -= before - largest->bytes;
  }
  return all;
}

Block* KeptBlocks::take_all() {
  if (binned_bytes_.is_zero()) {
    return take_large();
  }
  Block* all = nullptr;
  for (std::uint32_t first = 0; first < used_.size(); first += kTogether) {
    std::uint64_t some = 0;
    std::memcpy(&some, &used_[first], kTogether);
    for (std::uint32_t i = 0; some != 0 && i < kTogether; ++i) {
      if (std::exchange(used_[first + i], 0) != 0) {
        Bin& bin = bins_[first + i];
        all = chain_blocks(std::exchange(bin.loaded, {}).top, all);
        all = chain_blocks(std::exchange(bin.full, {}).top, all);
      }
    }
  }
  binned_bytes_ = Bytes(0);
  return chain_blocks(take_large(), all);
}

Block* KeptBlocks::take_large() {
  Block* all = nullptr;
  while (large_count_ > 0) {
    Block* block = large_[--large_count_];
    block->next_kept = all;
    all = block;
  }
  large_bytes_ = Bytes(0);
  return all;
}

}  // namespace nofrag
