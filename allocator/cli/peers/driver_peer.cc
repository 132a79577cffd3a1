// The plainest peer: every allocation is a driver allocation, every free waits for the device.
#include <algorithm>
#include <vector>

#include "cli/peers/replay_allocator.h"

namespace nofrag {
namespace {

class DriverPeer final : public ReplayAllocator {
 public:
  explicit DriverPeer(const PeerConfig& config)
      : config_(config),
        unit_(config.info.granularity.is_zero() ? 2 * kMiB : config.info.granularity),
        live_(config.blocks) {}
  ~DriverPeer() override {
    for (const Live& live : live_) {
      if (!live.address.is_null()) {
        config_.driver->free(config_.device, live.address).ignore();
      }
    }
  }

  Status allocate(std::uint32_t block, Bytes size, StreamId) override {
    // What the driver takes for an allocation, by its own granularity.
    const Bytes held = round_up(size, unit_);
    if (reserved_ > config_.limit || held > config_.limit - reserved_) {
      return Errc::kLimit;
    }
    const Result<VirtAddr> memory = config_.driver->malloc(config_.device, size);
    if (!memory.ok()) {
      return memory.error();
    }
    live_[block] = {memory.value(), held};
    reserved_ += held;
    peak_reserved_ = std::max(peak_reserved_, reserved_);
    return {};
  }

  Status free(std::uint32_t block, StreamId) override {
    const Live live = live_[block];
    live_[block] = {};
    reserved_ -= live.held;
    return config_.driver->free(config_.device, live.address);
  }

  [[nodiscard]] Bytes reserved() const override { return reserved_; }
  [[nodiscard]] Bytes peak_reserved() const override { return peak_reserved_; }
  [[nodiscard]] Bytes free_granules() const override { return Bytes(0); }

 private:
  struct Live {
    VirtAddr address;
    Bytes held;
  };
  PeerConfig config_;
  Bytes unit_;
  std::vector<Live> live_;
  Bytes reserved_;
  Bytes peak_reserved_;
};

}  // namespace

std::unique_ptr<ReplayAllocator> make_driver_peer(const PeerConfig& config) {
  return std::make_unique<DriverPeer>(config);
}

}  // namespace nofrag
