// CountingDriver: passes every call on and counts what a driver cannot tell: aliases, evictions, cuts.
//
// Owns: which handle is mapped where. Layer: tests. An alias is a mapping of a handle that is mapped
// already; an eviction the unmapping of one address of a handle that is then mapped at another, the rest
// staying; a cut a smaller mapping where a larger one was unmapped just before.
// Threads: any, one lock. Failure: the target's.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>

#include "forwarding_driver.h"

namespace nofrag {

struct MappingCounts {
  std::uint64_t aliases = 0;
  std::uint64_t evictions = 0;
  std::uint64_t cuts = 0;
  std::uint64_t most_mappings = 0;  // at how many addresses a handle was at most

  MappingCounts& operator+=(const MappingCounts& other) {
    aliases += other.aliases;
    evictions += other.evictions;
    cuts += other.cuts;
    most_mappings = std::max(most_mappings, other.most_mappings);
    return *this;
  }
};

class CountingDriver final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;

  [[nodiscard]] MappingCounts counts() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
  }

  Status map(VirtAddr address, Bytes size, HandleId handle) override {
    const Status status = ForwardingDriver::map(address, size, handle);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status.ok()) {
      Handle& mapped = handles_[handle.raw];
      counts_.aliases += mapped.mappings > 0 ? 1U : 0U;
      counts_.evictions += mapped.mappings > 0 && mapped.left_an_address ? 1U : 0U;
      counts_.cuts += address == unmapped_at_ && size < unmapped_size_ ? 1U : 0U;
      mapped.left_an_address = false;
      ++mapped.mappings;
      counts_.most_mappings = std::max(counts_.most_mappings, mapped.mappings);
      addresses_[address.value()] = handle.raw;
      unmapped_size_ = Bytes(0);
    }
    return status;
  }

  Status unmap(VirtAddr address, Bytes size) override {
    const Status status = ForwardingDriver::unmap(address, size);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = addresses_.find(address.value());
    if (status.ok() && found != addresses_.end()) {
      Handle& mapped = handles_[found->second];
      mapped.left_an_address = true;
      if (--mapped.mappings == 0) {
        handles_.erase(found->second);
      }
      addresses_.erase(found);
      unmapped_at_ = address;
      unmapped_size_ = size;
    }
    return status;
  }

 private:
  struct Handle {
    std::uint64_t mappings = 0;
    bool left_an_address = false;
  };
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Handle> handles_;           // Sync: mutex_
  std::map<std::uint64_t, std::uint64_t> addresses_;  // Sync: mutex_
  VirtAddr unmapped_at_;                              // Sync: mutex_
  Bytes unmapped_size_;                               // Sync: mutex_
  MappingCounts counts_;                              // Sync: mutex_
};

}  // namespace nofrag
