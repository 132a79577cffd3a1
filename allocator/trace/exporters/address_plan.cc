#include "trace/exporters/address_plan.h"

#include <algorithm>

namespace nofrag {

std::uint64_t AddressPlan::held(std::uint64_t size) {
  return std::max(kTraceRounding, round_up(Bytes(size), kTraceRounding)).count();
}

AddressPlan::AddressPlan(const Trace& trace) {
  addresses_.resize(trace.allocations);
  for (const TraceEvent& event : trace.events) {
    if (event.is_free()) {
      give_back(addresses_[event.block], held(event.size));
    } else {
      addresses_[event.block] = take(held(event.size));
    }
  }
}

std::uint64_t AddressPlan::take(std::uint64_t size) {
  const auto fit = free_sizes_.lower_bound({size, 0});
  if (fit == free_sizes_.end()) {
    const std::uint64_t address = top_;
    top_ += size;
    return address;
  }
  const auto [had, address] = *fit;
  free_sizes_.erase(fit);
  free_.erase(address);
  if (had > size) {
    free_.emplace(address + size, had - size);
    free_sizes_.emplace(had - size, address + size);
  }
  return address;
}

void AddressPlan::give_back(std::uint64_t address, std::uint64_t size) {
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + size) {
    size += next->second;
    free_sizes_.erase({next->second, next->first});
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == address) {
      address = before->first;
      size += before->second;
      free_sizes_.erase({before->second, before->first});
      free_.erase(before);
    }
  }
  free_.emplace(address, size);
  free_sizes_.emplace(size, address);
}

}  // namespace nofrag
