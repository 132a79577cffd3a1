// CUB's CachingDeviceAllocator with its default numbers: blocks of 8^3 to 8^7 bytes are kept when freed, up to 6 MB
// less a byte; what is larger goes to the driver each time.
#include <algorithm>
#include <list>
#include <unordered_map>
#include <vector>

#include "cli/peers/replay_allocator.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kGrowth = 8;
constexpr std::uint64_t kSmallestBin = 512;        // 8^3
constexpr std::uint64_t kLargestBin = 8ULL << 18;  // 8^7
constexpr std::uint64_t kMostCached = 3 * kLargestBin - 1;

class CubCaching final : public ReplayAllocator {
 public:
  explicit CubCaching(const PeerConfig& config)
      : config_(config),
        unit_(config.info.granularity.is_zero() ? 2 * kMiB : config.info.granularity),
        live_(config.blocks) {}
  ~CubCaching() override {
    drop_cached();
    for (const Block& block : live_) {
      if (!block.address.is_null()) {
        give_back(block).ignore();
      }
    }
  }

  Status allocate(std::uint32_t number, Bytes size, StreamId stream) override {
    std::uint64_t bin = kSmallestBin;
    while (bin < size.count() && bin < kLargestBin) {
      bin *= kGrowth;
    }
    const bool cacheable = size.count() <= kLargestBin;
    if (cacheable && take_cached(number, bin, stream)) {
      return {};
    }
    const Bytes wanted = cacheable ? Bytes(bin) : size;
    Result<VirtAddr> memory = take(wanted);
    if (!memory.ok()) {
      drop_cached();
      memory = take(wanted);
    }
    if (!memory.ok()) {
      return memory.error();
    }
    const Result<EventId> event = config_.driver->event_create(config_.device);
    if (!event.ok()) {
      config_.driver->free(config_.device, memory.value()).ignore();
      count(round_up(wanted, unit_), false);
      return event.error();
    }
    live_[number] = {memory.value(), wanted, cacheable, stream, event.value()};
    return {};
  }

  // The stream of the allocation is the one whose work is waited for: the caller's free names none.
  Status free(std::uint32_t number, StreamId) override {
    const Block block = live_[number];
    live_[number] = {};
    if (block.cacheable && cached_bytes_ + block.size.count() <= kMostCached) {
      cached_bytes_ += block.size.count();
      cached_[block.size.count()].push_back(block);
      return config_.driver->event_record(config_.device, block.event, block.stream);
    }
    return give_back(block);
  }

  Status retire(StreamId stream) override {
    Status first;
    for (auto& [bin, blocks] : cached_) {
      for (auto at = blocks.begin(); at != blocks.end();) {
        if (at->stream != stream) {
          ++at;
          continue;
        }
        cached_bytes_ -= at->size.count();
        const Status freed = give_back(*at);
        first = first.ok() ? freed : first;
        at = blocks.erase(at);
      }
    }
    return first;
  }

  [[nodiscard]] Bytes reserved() const override { return reserved_; }
  [[nodiscard]] Bytes peak_reserved() const override { return peak_reserved_; }
  [[nodiscard]] Bytes free_granules() const override {
    Bytes total;
    for (const auto& [bin, blocks] : cached_) {
      total += round_up(Bytes(bin), unit_) * blocks.size();
    }
    return total;
  }

 private:
  struct Block {
    VirtAddr address;
    Bytes size;
    bool cacheable = false;
    StreamId stream;
    EventId event;
  };

  bool take_cached(std::uint32_t number, std::uint64_t bin, StreamId stream) {
    std::list<Block>& blocks = cached_[bin];
    for (auto at = blocks.begin(); at != blocks.end(); ++at) {
      if (at->stream == stream || config_.driver->event_query(config_.device, at->event).ok()) {
        live_[number] = *at;
        live_[number].stream = stream;
        cached_bytes_ -= bin;
        blocks.erase(at);
        return true;
      }
    }
    return false;
  }

  Result<VirtAddr> take(Bytes size) {
    const Bytes held = round_up(size, unit_);
    if (reserved_ > config_.limit || held > config_.limit - reserved_) {
      return Errc::kLimit;
    }
    Result<VirtAddr> memory = config_.driver->malloc(config_.device, size);
    if (memory.ok()) {
      count(held, true);
    }
    return memory;
  }

  Status give_back(const Block& block) {
    count(round_up(block.size, unit_), false);
    const Status freed = config_.driver->free(config_.device, block.address);
    const Status destroyed = config_.driver->event_destroy(config_.device, block.event);
    return freed.ok() ? destroyed : freed;
  }

  void drop_cached() {
    for (auto& [bin, blocks] : cached_) {
      for (const Block& block : blocks) {
        give_back(block).ignore();
      }
      blocks.clear();
    }
    cached_bytes_ = 0;
  }

  void count(Bytes held, bool taken) {
    reserved_ = taken ? reserved_ + held : reserved_ - held;
    peak_reserved_ = std::max(peak_reserved_, reserved_);
  }

  PeerConfig config_;
  Bytes unit_;
  std::vector<Block> live_;
  std::unordered_map<std::uint64_t, std::list<Block>> cached_;  // by bin
  std::uint64_t cached_bytes_ = 0;
  Bytes reserved_;
  Bytes peak_reserved_;
};

}  // namespace

std::unique_ptr<ReplayAllocator> make_cub_caching_model(const PeerConfig& config) {
  return std::make_unique<CubCaching>(config);
}

}  // namespace nofrag
