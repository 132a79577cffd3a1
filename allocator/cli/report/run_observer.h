// RunObserver: what one replay held over time, and where it put each block.
//
// Owns: the samples and the addresses. Layer: cli. Units: bytes; addresses as the allocator gave them, 0 for blocks
// that it never got. Threads: none. Failure: none. Cost: a few thousand looks a run, 8 bytes a block.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/replay/replay_run.h"

namespace nofrag {

class RunObserver final : public ReplayObserver {
 public:
  // Looks at most `looks` times at a run of the trace.
  RunObserver(const Trace& trace, std::uint64_t looks);

  struct Sample {
    std::uint64_t events_done = 0;
    Bytes reserved;
    Bytes pending;
  };

  [[nodiscard]] std::uint64_t every() const override { return every_; }
  void look(std::uint64_t events_done, const ReplayAllocator& allocator) override;
  void allocated(std::uint32_t block, VirtAddr address) override {
    addresses_[block] = address.value();
    has_addresses_ = has_addresses_ || !address.is_null();
  }

  [[nodiscard]] const std::vector<Sample>& samples() const { return samples_; }
  [[nodiscard]] const std::vector<std::uint64_t>& addresses() const { return addresses_; }
  [[nodiscard]] bool has_addresses() const { return has_addresses_; }

 private:
  std::uint64_t every_;
  std::vector<Sample> samples_;
  std::vector<std::uint64_t> addresses_;
  bool has_addresses_ = false;
};

}  // namespace nofrag
