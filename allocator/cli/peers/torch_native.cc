// PyTorch's default policy: segments by cudaMalloc, cut and coalesced, never moved, given back only
// whole and only when an allocation would fail.
#include <algorithm>

#include "cli/peers/torch_model.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kMiBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kSmallSegment = 2 * kMiBytes;
constexpr std::uint64_t kLargeSegment = 20 * kMiBytes;
constexpr std::uint64_t kLargeSegmentBelow = 10 * kMiBytes;  // larger: a segment of its own size
constexpr std::uint64_t kLargeRounding = 2 * kMiBytes;
constexpr std::uint64_t kSmallRemainder = 512;
constexpr std::uint64_t kLargeRemainder = kMiBytes;  // what a large block may waste

class TorchNative final : public TorchModel {
 public:
  using TorchModel::TorchModel;
  ~TorchNative() override {
    for (const Segment& segment : segments_) {
      if (segment.block != kNone) {
        config_.driver->free(config_.device, segment.address).ignore();
      }
    }
  }

 protected:
  Index find_free(Arena& arena, std::uint64_t size) override {
    const auto at = arena.free.lower_bound({size, 0, 0});
    return at == arena.free.end() ? kNone : at->block;
  }

  Result<Index> grow(Index arena, std::uint64_t size) override {
    std::uint64_t bytes = kSmallSegment;
    if (!arenas_[arena].small) {
      bytes = size < kLargeSegmentBelow ? kLargeSegment
                                        : round_up(Bytes(size), Bytes(kLargeRounding)).count();
    }
    if (over_limit(bytes)) {
      return Errc::kLimit;
    }
    const Result<VirtAddr> memory = config_.driver->malloc(config_.device, Bytes(bytes));
    if (!memory.ok()) {
      return memory.error();
    }
    add_reserved(bytes);
    Block block;
    block.address = memory.value().value();
    block.size = bytes;
    block.arena = arena;
    block.segment = new_segment();
    const Index index = make_block(block);
    segments_[block.segment] = {memory.value(), bytes, index};
    insert_free(index);
    return index;
  }

  // The first block of a segment keeps its index through cuts and joins, so a segment is wholly
  // free exactly if that block is free and as long as the segment.
  void release_cached() override {
    for (Index i = 0; i < segments_.size(); ++i) {
      Segment& segment = segments_[i];
      if (segment.block == kNone || blocks_[segment.block].state != State::kFree ||
          blocks_[segment.block].size != segment.size) {
        continue;
      }
      if (!config_.driver->free(config_.device, segment.address).ok()) {
        continue;
      }
      remove_reserved(segment.size);
      erase_free(segment.block);
      drop_block(segment.block);
      segment.block = kNone;
      unused_segments_.push_back(i);
    }
  }

  [[nodiscard]] bool splits(const Arena& arena, std::uint64_t remainder) const override {
    return arena.small ? remainder >= kSmallRemainder : remainder > kLargeRemainder;
  }

 private:
  struct Segment {
    VirtAddr address;
    std::uint64_t size = 0;
    Index block = kNone;  // the first one
  };

  Index new_segment() {
    if (unused_segments_.empty()) {
      segments_.emplace_back();
      return static_cast<Index>(segments_.size() - 1);
    }
    const Index index = unused_segments_.back();
    unused_segments_.pop_back();
    return index;
  }

  std::vector<Segment> segments_;
  std::vector<Index> unused_segments_;
};

}  // namespace

std::unique_ptr<ReplayAllocator> make_torch_native_model(const PeerConfig& config) {
  return std::make_unique<TorchNative>(config);
}

}  // namespace nofrag
