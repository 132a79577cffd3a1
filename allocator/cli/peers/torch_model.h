// TorchModel: what PyTorch's two caching policies have in common, as a model for replay.
//
// Owns: the memory it took from the driver, cut into blocks. Policy: PyTorch 2.11 (docs/replay.md
// says which rules are modelled). One *arena* for each (stream, small or large pool): its free
// blocks serve only its own stream. Derived classes say how an arena finds a free block, grows and
// gives memory back. Layer: cli. Units: bytes; sizes in the model are multiples of 512. Invariants:
// a segment's blocks form a list in address order that covers it; two free neighbours never exist
// (of equal mapping state); reserved() == bytes of all segments that are backed. Threads: none.
// Failure: as ReplayAllocator. Cost: O(log free blocks of the arena) an event.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <set>
#include <unordered_map>
#include <vector>

#include "cli/peers/replay_allocator.h"

namespace nofrag {

class TorchModel : public ReplayAllocator {
 public:
  explicit TorchModel(const PeerConfig& config);
  ~TorchModel() override;

  Status allocate(std::uint32_t block, Bytes size, StreamId stream) override;
  Status free(std::uint32_t block, StreamId stream) override;
  [[nodiscard]] VirtAddr address(std::uint32_t block) const override {
    return VirtAddr(blocks_[live_[block]].address);
  }
  [[nodiscard]] Bytes reserved() const override { return Bytes(reserved_); }
  [[nodiscard]] Bytes peak_reserved() const override { return Bytes(peak_reserved_); }
  [[nodiscard]] Bytes free_granules() const override;

 protected:
  using Index = std::uint32_t;
  static constexpr Index kNone = UINT32_MAX;

  enum class State : unsigned char { kFree, kUsed, kUnmapped };
  struct Block {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    Index previous = kNone;  // neighbours in the segment
    Index next = kNone;
    Index arena = 0;
    Index segment = 0;
    State state = State::kFree;
  };
  struct FreeKey {
    std::uint64_t size = 0;
    std::uint64_t address = 0;
    Index block = kNone;
    auto operator<=>(const FreeKey&) const = default;
  };
  struct AddressKey {
    std::uint64_t address = 0;
    Index block = kNone;
    auto operator<=>(const AddressKey&) const = default;
  };
  using FreeSet = std::pmr::set<FreeKey>;
  struct Arena {
    StreamId stream;
    bool small = false;
    FreeSet free;                        // smallest first, then lowest address
    std::pmr::set<AddressKey> unmapped;  // address space without memory (expandable only)
  };

  // A free block of the arena for the request, or kNone. It stays in the free set.
  virtual Index find_free(Arena& arena, std::uint64_t size) = 0;
  // New memory: the result is a free block of at least `size`, in the free set.
  virtual Result<Index> grow(Index arena, std::uint64_t size) = 0;
  // Gives back every cached byte that the policy can give back, of all arenas.
  virtual void release_cached() = 0;
  // Is what remains of a block worth being a block of its own?
  [[nodiscard]] virtual bool splits(const Arena& arena, std::uint64_t remainder) const = 0;

  Index make_block(const Block& block);
  void drop_block(Index index);
  void insert_free(Index index);
  void erase_free(Index index);
  // Cuts `index` after `size` bytes; returns the new block behind it, of the same state, in no set.
  Index cut(Index index, std::uint64_t size);
  // Joins a block that is in no set with neighbours of the same state (taken out of their sets).
  Index join_neighbours(Index index);
  void add_reserved(std::uint64_t bytes);
  void remove_reserved(std::uint64_t bytes) { reserved_ -= bytes; }
  [[nodiscard]] bool over_limit(std::uint64_t more) const;

  PeerConfig config_;
  std::uint64_t granule_;
  std::vector<Block> blocks_;
  std::vector<Index> unused_blocks_;
  std::pmr::unsynchronized_pool_resource memory_;
  std::deque<Arena> arenas_;  // a deque: references survive growth

 private:
  struct Pending {
    EventId event;
    Index block = kNone;
  };

  Index arena_for(StreamId stream, bool small);
  void take(Index index, std::uint64_t size);
  void release_block(Index index);
  Status free_later(Index index, StreamId stream);
  void poll_pending();
  void wait_for_pending();

  std::uint64_t reserved_ = 0;
  std::uint64_t peak_reserved_ = 0;
  std::vector<Index> live_;                              // by trace block
  std::unordered_map<StreamId, Index> arena_of_stream_;  // of the small one; the large one follows
  StreamId last_stream_;
  Index last_arena_ = kNone;
  std::unordered_map<StreamId, std::deque<Pending>> pending_;
  std::size_t pending_count_ = 0;
};

}  // namespace nofrag
