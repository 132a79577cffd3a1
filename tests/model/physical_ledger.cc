#include "physical_ledger.h"

#include <algorithm>

namespace nofrag::model {
namespace {

// Free bytes at either end of one used handle.
struct Ends {
  std::uint64_t prefix = 0;
  std::uint64_t suffix = 0;
};

// The best suffix_i + prefix_j, i != j, either left out: every pair is looked at.
Bytes best_pair(const std::vector<Ends>& ends) {
  std::uint64_t best = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    best = std::max({best, ends[i].prefix, ends[i].suffix});
    for (std::size_t j = 0; j < ends.size(); ++j) {
      if (i != j) {
        best = std::max(best, ends[i].suffix + ends[j].prefix);
      }
    }
  }
  return Bytes(best);
}

}  // namespace

Result<HandleId> PhysicalLedger::create(DeviceOrdinal device, Bytes size) {
  Result<HandleId> made = ForwardingDriver::create(device, size);
  if (made.ok()) {
    handles_[made.value().raw].size = size;
    touched_.insert(made.value().raw);
  }
  return made;
}

Status PhysicalLedger::release(HandleId handle) {
  Status done = ForwardingDriver::release(handle);
  if (done.ok()) {
    handles_.at(handle.raw).released = true;
    forget_if_gone(handle.raw);
  }
  return done;
}

Status PhysicalLedger::map(VirtAddr address, Bytes size, HandleId handle) {
  Status done = ForwardingDriver::map(address, size, handle);
  if (done.ok()) {
    mappings_[address.value()] = {size, handle.raw};
    ++handles_.at(handle.raw).mappings;
    touched_.insert(handle.raw);
  }
  return done;
}

Status PhysicalLedger::unmap(VirtAddr address, Bytes size) {
  Status done = ForwardingDriver::unmap(address, size);
  if (done.ok()) {
    auto it = mappings_.lower_bound(address.value());
    while (it != mappings_.end() && it->first < (address + size).value()) {
      const std::uint64_t handle = it->second.handle;
      it = mappings_.erase(it);
      --handles_.at(handle).mappings;
      forget_if_gone(handle);
    }
  }
  return done;
}

void PhysicalLedger::forget_if_gone(std::uint64_t handle) {
  const auto it = handles_.find(handle);
  if (it->second.released && it->second.mappings == 0) {
    touched_.erase(handle);
    handles_.erase(it);
  }
}

void PhysicalLedger::take_touched(std::set<std::uint64_t>* out) {
  out->insert(touched_.begin(), touched_.end());
  touched_.clear();
}

std::size_t PhysicalLedger::most_mappings() const {
  std::size_t most = 0;
  for (const auto& [id, handle] : handles_) {
    most = std::max(most, handle.mappings);
  }
  return most;
}

std::map<std::uint64_t, PhysicalLedger::Mapping>::const_iterator PhysicalLedger::at(
    std::uint64_t address) const {
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) {
    return mappings_.end();
  }
  --it;
  return address - it->first < it->second.size.count() ? it : mappings_.end();
}

void PhysicalLedger::handles_of(Extent addresses, std::set<std::uint64_t>* out) const {
  for (auto it = at(addresses.begin); it != mappings_.end() && it->first < addresses.end; ++it) {
    out->insert(it->second.handle);
  }
}

std::vector<std::uint64_t> PhysicalLedger::behind(Extent addresses) const {
  std::vector<std::uint64_t> handles;
  for (std::uint64_t address = addresses.begin; address < addresses.end;) {
    const auto mapping = at(address);
    if (mapping == mappings_.end()) {
      handles.push_back(0);
      return handles;
    }
    handles.push_back(mapping->second.handle);
    address = mapping->first + mapping->second.size.count();
  }
  return handles;
}

// Adds the block's bytes to the handles behind it; false if some have none.
bool PhysicalLedger::collect(const Extent& block, Uses* uses) const {
  for (std::uint64_t address = block.begin; address < block.end;) {
    const auto mapping = at(address);
    if (mapping == mappings_.end()) {
      return false;
    }
    const std::uint64_t until = std::min(block.end, mapping->first + mapping->second.size.count());
    (*uses)[mapping->second.handle].push_back({address - mapping->first, until - mapping->first});
    address = until;
  }
  return true;
}

Layout PhysicalLedger::layout(const std::vector<Extent>& live,
                              const std::set<std::uint64_t>& exempt,
                              const std::set<std::uint64_t>& pinned) const {
  Layout layout;
  Uses uses;
  for (const Extent& block : live) {
    if (!collect(block, &uses)) {
      layout.problem = "a live block has nothing behind some of its bytes";
    }
  }
  std::vector<Ends> ends;
  for (const auto& [id, handle] : handles_) {
    layout.handles += handle.size;
    const auto used = uses.find(id);
    if (used == uses.end() && pinned.contains(id)) {
      layout.pinned += handle.size;
      layout.in_use += handle.size;
      layout.stranded += handle.size;
      layout.beside += handle.size;
      continue;
    }
    if (used == uses.end()) {
      layout.idle += handle.size;
      if (!exempt.contains(id)) {
        layout.composable_whole += handle.size;
      }
      continue;
    }
    std::vector<Extent>& extents = used->second;
    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
      return a.begin < b.begin;
    });
    const std::uint64_t first = extents.front().begin;
    std::uint64_t last = first;
    std::uint64_t holes = 0;
    for (const Extent& extent : extents) {
      if (extent.begin < last) {
        layout.problem = "two live blocks lie on the same bytes of a handle";
      }
      holes += extent.begin - std::min(last, extent.begin);
      last = std::max(last, extent.end);
    }
    const Ends of_handle{first, handle.size.count() - last};
    layout.in_use += handle.size;
    layout.stranded += Bytes(holes);
    layout.beside += Bytes(of_handle.prefix + holes + of_handle.suffix);
    if (pinned.contains(id)) {
      layout.pinned += handle.size;
      layout.stranded += Bytes(of_handle.prefix + of_handle.suffix);
    } else if (!exempt.contains(id)) {
      ends.push_back(of_handle);
    }
  }
  layout.composable_ends = best_pair(ends);
  return layout;
}

}  // namespace nofrag::model
