// CrowdFixture: a device whose free memory lies scattered over handles between live blocks.
//
// Owns: nothing more than DeviceFixture. Layer: tests. Handles are 8 MiB and hold two blocks of 4 MiB
// each, one after the other from the start of the home region; so the ends of handles, whole ones and
// their marks can be freed by number. Units: MiB. Threads: none. Failure: that of DeviceFixture.
#pragma once

#include "device_fixture.h"

namespace nofrag {

class CrowdFixture : public DeviceFixture {
 protected:
  static constexpr std::size_t kBlocks = 32;
  static constexpr Bytes kHalf = 4 * kMiB;
  static constexpr Bytes kHandle = 8 * kMiB;

  static Options crowd_options() {
    Options options;
    options.handle_size = kHandle;
    options.reserve_slack = 0.0;
    return options;
  }
  // Far more memory than is used: handles come whole, nothing is cut.
  void crowd(const Options& options = crowd_options()) {
    start(16 * kGiB, options);
    fill();
  }
  void fill() {
    blocks_.clear();
    for (std::size_t i = 0; i < kBlocks; ++i) {
      blocks_.push_back(allocate(kHalf));
    }
    ASSERT_EQ(allocator_->stats().reserved, kHalf * kBlocks);
    recorder_->take();
  }
  // First and second half of handle `n`, or both.
  void free_front(std::size_t n) { free(blocks_[2 * n]); }
  void free_back(std::size_t n) { free(blocks_[2 * n + 1]); }
  void free_handle(std::size_t n) {
    free_front(n);
    free_back(n);
  }
  void free_handles(const std::vector<std::size_t>& which) {
    for (const std::size_t n : which) {
      free_handle(n);
    }
    recorder_->take();
  }

  std::vector<VirtAddr> blocks_;
};

}  // namespace nofrag
