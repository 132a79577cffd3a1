// PyTorch's expandable segments: for each stream and pool one long address range that is backed
// granule by granule as it grows; whole granules inside free blocks are given back, but only when
// an allocation would fail.
#include <algorithm>

#include "base/checks.h"
#include "cli/peers/torch_model.h"
#include "config/human_bytes.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kSmallGranule = std::uint64_t{2} << 20;
constexpr std::uint64_t kLargeGranule = std::uint64_t{20} << 20;
constexpr std::uint64_t kRemainder = 512;
constexpr int kNoAddresses = 2;  // what drivers answer to a reservation then

class TorchExpandable final : public TorchModel {
 public:
  explicit TorchExpandable(const PeerConfig& config)
      : TorchModel(config),
        small_granule_(round_up(Bytes(kSmallGranule), Bytes(granule_)).count()),
        large_granule_(round_up(Bytes(kLargeGranule), Bytes(granule_)).count()) {}
  ~TorchExpandable() override;
  [[nodiscard]] std::string trouble(Error error) const override {
    return refused_addresses_.is_zero() || error.driver_code != kNoAddresses
               ? std::string()
               : "like PyTorch it takes " + human_bytes(refused_addresses_) +
                     " of addresses for each stream and pool, and none are left";
  }

 protected:
  Index find_free(Arena& arena, std::uint64_t size) override;
  Result<Index> grow(Index arena, std::uint64_t size) override;
  void release_cached() override;
  [[nodiscard]] bool splits(const Arena&, std::uint64_t remainder) const override {
    return remainder >= kRemainder;
  }

 private:
  struct Segment {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    std::uint64_t granule = 0;
    std::vector<HandleId> handles;  // by granule; raw 0 = not backed
  };

  // A free block's size counts with the room behind it into which it could grow.
  [[nodiscard]] std::uint64_t size_with_tail(Index index) const {
    const Index next = blocks_[index].next;
    const bool grows = next != kNone && blocks_[next].state == State::kUnmapped;
    return blocks_[index].size + (grows ? blocks_[next].size : 0);
  }
  [[nodiscard]] bool has_room(Index first, std::uint64_t size) const;
  Result<Index> place_to_grow(Index arena, std::uint64_t size);
  Result<Index> new_segment(Index arena, std::uint64_t size);
  // Backs the first `size` bytes (rounded up to granules) of an unmapped block; the result is free,
  // joined with its neighbours and in the free set.
  Result<Index> back_block(Index index, std::uint64_t size);
  Status map_granules(Segment& segment, std::size_t first, std::size_t count);
  void unmap_granules(Segment& segment, std::size_t first, std::size_t count);
  void release_block_granules(Index index);

  std::uint64_t small_granule_;
  std::uint64_t large_granule_;
  std::vector<Segment> segments_;
  Bytes refused_addresses_;  // by the last reservation
};

TorchExpandable::~TorchExpandable() {
  for (Segment& segment : segments_) {
    for (std::size_t i = 0; i < segment.handles.size(); ++i) {
      if (segment.handles[i].raw != 0) {
        unmap_granules(segment, i, 1);
      }
    }
    if (segment.size != 0) {
      config_.driver->free_range(VirtAddr(segment.address), Bytes(segment.size)).ignore();
    }
  }
}

// Best fit, then onwards as long as the next larger block has less room to grow: a block at the end
// of the backed range is spared for growth.
TorchModel::Index TorchExpandable::find_free(Arena& arena, std::uint64_t size) {
  auto at = arena.free.lower_bound({size, 0, 0});
  if (at == arena.free.end()) {
    return kNone;
  }
  for (auto next = std::next(at); next != arena.free.end(); ++next) {
    if (size_with_tail(next->block) >= size_with_tail(at->block)) {
      break;
    }
    at = next;
  }
  return at->block;
}

bool TorchExpandable::has_room(Index first, std::uint64_t size) const {
  std::uint64_t room = 0;
  for (Index i = first; i != kNone && blocks_[i].state != State::kUsed; i = blocks_[i].next) {
    room += blocks_[i].size;
    if (room >= size) {
      return true;
    }
  }
  return false;
}

// The lowest place where free and unbacked neighbours together suffice.
Result<TorchModel::Index> TorchExpandable::place_to_grow(Index arena, std::uint64_t size) {
  for (const AddressKey& key : arenas_[arena].unmapped) {
    Index first = key.block;
    const Index previous = blocks_[first].previous;
    if (previous != kNone && blocks_[previous].state == State::kFree) {
      first = previous;
    }
    if (has_room(first, size)) {
      return first;
    }
  }
  return new_segment(arena, size);
}

Result<TorchModel::Index> TorchExpandable::new_segment(Index arena, std::uint64_t size) {
  const std::uint64_t granule = arenas_[arena].small ? small_granule_ : large_granule_;
  const Bytes space = round_up(
      config_.info.total_memory + Bytes(config_.info.total_memory / Bytes(8)), Bytes(granule));
  if (Bytes(size) > space) {
    return Errc::kOutOfMemory;
  }
  const Result<VirtAddr> range = config_.driver->reserve(space, Bytes(0));
  refused_addresses_ = !range.ok() && range.error().driver_code == kNoAddresses ? space : Bytes(0);
  if (!range.ok()) {
    return range.error();
  }
  segments_.push_back({range.value().value(),
                       space.count(),
                       granule,
                       std::vector<HandleId>(space / Bytes(granule))});
  Block block;
  block.address = range.value().value();
  block.size = space.count();
  block.arena = arena;
  block.segment = static_cast<Index>(segments_.size() - 1);
  block.state = State::kUnmapped;
  const Index index = make_block(block);
  insert_free(index);
  return index;
}

Status TorchExpandable::map_granules(Segment& segment, std::size_t first, std::size_t count) {
  if (over_limit(count * segment.granule)) {
    return Errc::kLimit;
  }
  Driver& driver = *config_.driver;
  const Bytes granule(segment.granule);
  for (std::size_t i = first; i < first + count; ++i) {
    const Result<HandleId> handle = driver.create(config_.device, granule);
    if (!handle.ok()) {
      while (i-- > first) {
        driver.release(segment.handles[i]).ignore();
        segment.handles[i] = {};
      }
      return handle.error();
    }
    segment.handles[i] = handle.value();
  }
  const VirtAddr start(segment.address + first * segment.granule);
  for (std::size_t i = 0; i < count; ++i) {
    const Status mapped = driver.map(start + granule * i, granule, segment.handles[first + i]);
    if (!mapped.ok()) {
      return mapped;
    }
  }
  add_reserved(count * segment.granule);
  return driver.set_access(start, granule * count, config_.device);
}

void TorchExpandable::unmap_granules(Segment& segment, std::size_t first, std::size_t count) {
  const Bytes granule(segment.granule);
  for (std::size_t i = first; i < first + count; ++i) {
    const VirtAddr at(segment.address + i * segment.granule);
    config_.driver->unmap(at, granule).ignore();
    config_.driver->release(segment.handles[i]).ignore();
    segment.handles[i] = {};
  }
  remove_reserved(count * segment.granule);
}

Result<TorchModel::Index> TorchExpandable::back_block(Index index, std::uint64_t size) {
  const Block& block = blocks_[index];
  Segment& segment = segments_[block.segment];
  // Unbacked blocks start at a granule: granules are backed and given back whole.
  const std::size_t first = (block.address - segment.address) / segment.granule;
  const std::size_t count = (size + segment.granule - 1) / segment.granule;
  const Status mapped = map_granules(segment, first, count);
  if (!mapped.ok()) {
    return mapped.error();
  }
  erase_free(index);
  if (count * segment.granule < blocks_[index].size) {
    insert_free(cut(index, count * segment.granule));
  }
  blocks_[index].state = State::kFree;
  const Index joined = join_neighbours(index);
  insert_free(joined);
  return joined;
}

// Backs one unbacked stretch after the other until the free block at the place is long enough. A
// stretch that was backed before a later one failed stays, as free memory.
Result<TorchModel::Index> TorchExpandable::grow(Index arena, std::uint64_t size) {
  const Result<Index> place = place_to_grow(arena, size);
  if (!place.ok()) {
    return place;
  }
  Index block = place.value();
  while (blocks_[block].state != State::kFree || blocks_[block].size < size) {
    const bool is_free = blocks_[block].state == State::kFree;
    const Index stretch = is_free ? blocks_[block].next : block;
    const std::uint64_t missing = size - (is_free ? blocks_[block].size : 0);
    const Result<Index> backed = back_block(stretch, std::min(missing, blocks_[stretch].size));
    if (!backed.ok()) {
      return backed;
    }
    block = backed.value();
  }
  return block;
}

void TorchExpandable::release_block_granules(Index index) {
  Segment& segment = segments_[blocks_[index].segment];
  const Bytes granule(segment.granule);
  const Bytes start(blocks_[index].address - segment.address);
  const Bytes first = round_up(start, granule);
  const Bytes last = round_down(start + Bytes(blocks_[index].size), granule);
  if (first >= last) {
    return;
  }
  config_.driver->stream_synchronize(config_.device, arenas_[blocks_[index].arena].stream).ignore();
  unmap_granules(segment, first / granule, (last - first) / granule);
  erase_free(index);
  Index middle = index;
  if (first > start) {
    middle = cut(index, (first - start).count());
    insert_free(index);
  }
  if (Bytes(blocks_[middle].size) > last - first) {
    insert_free(cut(middle, (last - first).count()));
  }
  blocks_[middle].state = State::kUnmapped;
  middle = join_neighbours(middle);
  if (blocks_[middle].previous != kNone || blocks_[middle].next != kNone) {
    insert_free(middle);
    return;
  }
  config_.driver->free_range(VirtAddr(segment.address), Bytes(segment.size)).ignore();
  segment.size = 0;
  drop_block(middle);
}

void TorchExpandable::release_cached() {
  std::vector<Index> free_blocks;
  for (const bool small : {false, true}) {
    for (const Arena& arena : arenas_) {
      for (const FreeKey& key : arena.free) {
        if (arena.small == small) {
          free_blocks.push_back(key.block);
        }
      }
    }
  }
  for (const Index index : free_blocks) {
    release_block_granules(index);
  }
}

}  // namespace

std::unique_ptr<ReplayAllocator> make_torch_expandable_model(const PeerConfig& config) {
  return std::make_unique<TorchExpandable>(config);
}

}  // namespace nofrag
