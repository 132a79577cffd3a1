#include "cli/peers/nofrag_adapter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <nofrag/trace_format.h>

#include "device/device_allocator.h"

namespace nofrag {
namespace {

class NofragAdapter final : public ReplayAllocator {
 public:
  NofragAdapter(std::unique_ptr<DeviceAllocator> allocator, const PeerConfig& config)
      : allocator_(std::move(allocator)), recording_(config.recording), live_(config.blocks) {}

  Status allocate(std::uint32_t block, Bytes size, StreamId stream) override {
    const PoolKey pool = pool_of(block);
    const Result<VirtAddr> address =
        pool == PoolKey{} ? allocator_->allocate(size, stream) : allocate_in(pool, size, stream);
    if (!address.ok()) {
      return address.error();
    }
    live_[block] = {address.value(), stream};
    return {};
  }

  Status free(std::uint32_t block, StreamId stream) override {
    const Live& live = live_[block];
    if (stream != live.stream) {
      const Status recorded = allocator_->record_stream(live.address, stream);
      if (!recorded.ok()) {
        return recorded;
      }
    }
    return allocator_->free(live.address);
  }

  Status note(const Recording::Note& note, StreamId stream) override {
    const PoolKey pool{note.event.pool_first, note.event.pool_second};
    switch (note.event.kind) {
      case NOFRAG_TRACE_RECORD_STREAM:
        return note.block == Recording::kNoBlock
                   ? Status()
                   : allocator_->record_stream(live_[note.block].address, stream);
      case NOFRAG_TRACE_RECORD_TRIM:
        allocator_->trim(Bytes(note.event.size));
        return {};
      case NOFRAG_TRACE_RECORD_POOL_BEGIN:
        return allocator_->begin_allocate_to_pool(pool, [](StreamId) { return false; });
      // Of a pool that was begun before the recording they end nothing.
      case NOFRAG_TRACE_RECORD_POOL_END:
        allocator_->end_allocate_to_pool(pool).ignore();
        return {};
      case NOFRAG_TRACE_RECORD_POOL_RELEASE:
        allocator_->release_pool(pool).ignore();
        return {};
      default:
        return {};
    }
  }

  Status retire(StreamId stream) override { return allocator_->retire_stream(stream); }

  [[nodiscard]] VirtAddr address(std::uint32_t block) const override {
    return live_[block].address;
  }
  // Asked thousands of times a run for pictures: without the walk over all handles that stats() makes.
  [[nodiscard]] Bytes pending() const override { return allocator_->gauges().pending; }
  [[nodiscard]] Bytes reserved() const override { return allocator_->gauges().reserved; }
  [[nodiscard]] Bytes peak_reserved() const override { return allocator_->gauges().peak_reserved; }
  [[nodiscard]] Bytes free_granules() const override { return allocator_->stats().free_handles; }
  [[nodiscard]] Bytes limit() const override { return allocator_->gauges().limit; }

 private:
  [[nodiscard]] PoolKey pool_of(std::uint32_t block) const {
    if (recording_ == nullptr) {
      return {};
    }
    const Recording::Block& recorded = recording_->blocks[block];
    return {recorded.pool_first, recorded.pool_second};
  }
  // A pool that was made before the recording began is made now.
  Result<VirtAddr> allocate_in(PoolKey pool, Bytes size, StreamId stream) {
    Result<VirtAddr> address = allocator_->allocate_in_pool(size, stream, pool);
    if (address.code() != Errc::kInvalidArgument) {
      return address;
    }
    const Status begun = allocator_->begin_allocate_to_pool(pool, [](StreamId) { return false; });
    if (!begun.ok()) {
      return begun.error();
    }
    allocator_->end_allocate_to_pool(pool).ignore();
    return allocator_->allocate_in_pool(size, stream, pool);
  }

  struct Live {
    VirtAddr address;
    StreamId stream;
  };
  std::unique_ptr<DeviceAllocator> allocator_;
  const Recording* recording_;
  std::vector<Live> live_;
};

}  // namespace

Result<std::unique_ptr<ReplayAllocator>> make_nofrag(const PeerConfig& config,
                                                     const Options& options) {
  Options limited = options;
  limited.limit = std::min(options.limit, config.limit);
  Result<std::unique_ptr<DeviceAllocator>> allocator =
      DeviceAllocator::create(*config.driver, config.device, limited);
  if (!allocator.ok()) {
    return allocator.error();
  }
  return std::unique_ptr<ReplayAllocator>(
      std::make_unique<NofragAdapter>(std::move(allocator.value()), config));
}

}  // namespace nofrag
