#include "cli/peers/nofrag_adapter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "device/device_allocator.h"

namespace nofrag {
namespace {

class NofragAdapter final : public ReplayAllocator {
 public:
  NofragAdapter(std::unique_ptr<DeviceAllocator> allocator, std::uint32_t blocks)
      : allocator_(std::move(allocator)), live_(blocks) {}

  Status allocate(std::uint32_t block, Bytes size, StreamId stream) override {
    const Result<VirtAddr> address = allocator_->allocate(size, stream);
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

  Status retire(StreamId stream) override { return allocator_->retire_stream(stream); }

  [[nodiscard]] VirtAddr address(std::uint32_t block) const override {
    return live_[block].address;
  }
  [[nodiscard]] Bytes pending() const override { return allocator_->stats().pending; }
  [[nodiscard]] Bytes reserved() const override { return allocator_->stats().reserved; }
  [[nodiscard]] Bytes peak_reserved() const override { return allocator_->stats().peak_reserved; }
  [[nodiscard]] Bytes free_granules() const override { return allocator_->stats().free_handles; }

 private:
  struct Live {
    VirtAddr address;
    StreamId stream;
  };
  std::unique_ptr<DeviceAllocator> allocator_;
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
      std::make_unique<NofragAdapter>(std::move(allocator.value()), config.blocks));
}

}  // namespace nofrag
