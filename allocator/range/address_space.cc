#include "range/address_space.h"

#include <algorithm>

namespace nofrag {

AddressSpace::AddressSpace(Driver& driver, Bytes device_memory, Bytes granularity)
    : driver_(driver), device_memory_(device_memory), granularity_(granularity) {}

AddressSpace::~AddressSpace() {
  if (size_.load(std::memory_order_relaxed) != 0 && !kept_) {
    driver_
        .free_range(VirtAddr(base_.load(std::memory_order_relaxed)),
                    Bytes(size_.load(std::memory_order_relaxed)))
        .ignore();  // nothing is mapped in it; the driver drops it with the process at the latest
  }
}

Status AddressSpace::reserve() {
  Error refusal;
  for (std::uint64_t span = span_; span >= kSmallestSpan; span /= 2) {
    const Bytes size = round_up(device_memory_ * span, granularity_);
    const Result<VirtAddr> base = driver_.reserve(size, granularity_);
    if (base.ok()) {
      free_.push_back({base.value(), size});
      base_.store(base.value().value(), std::memory_order_relaxed);
      size_.store(size.count(), std::memory_order_release);
      return {};
    }
    refusal = base.error();
  }
  return refusal;
}

Result<AddressRange> AddressSpace::take_region(Bytes size) {
  if (size_.load(std::memory_order_relaxed) == 0) {
    if (const Status reserved = reserve(); !reserved.ok()) {
      return reserved.error();
    }
  }
  size = round_up(size, granularity_);
  for (auto span = free_.begin(); span != free_.end(); ++span) {
    if (span->size < size) {
      continue;
    }
    const AddressRange region{span->address, size};
    if (span->size == size) {
      free_.erase(span);
    } else {
      *span = {span->address + size, span->size - size};
    }
    return region;
  }
  return Errc::kOutOfMemory;
}

void AddressSpace::return_region(AddressRange region) {
  auto next = std::lower_bound(
      free_.begin(), free_.end(), region, [](const AddressRange& a, const AddressRange& b) {
        return a.address < b.address;
      });
  NOFRAG_CHECK(next == free_.end() || region.end() <= next->address, "region returned twice");
  if (next != free_.end() && region.end() == next->address) {
    region.size += next->size;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    NOFRAG_CHECK(previous->end() <= region.address, "region returned twice");
    if (previous->end() == region.address) {
      previous->size += region.size;
      return;
    }
  }
  free_.insert(next, region);
}

Bytes AddressSpace::free_bytes() const {
  if (size_.load(std::memory_order_relaxed) == 0) {
    return device_memory_ * span_;
  }
  Bytes sum;
  for (const AddressRange& span : free_) {
    sum += span.size;
  }
  return sum;
}

}  // namespace nofrag
