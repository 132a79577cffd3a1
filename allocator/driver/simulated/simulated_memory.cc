#include "driver/simulated/simulated_memory.h"

#include <algorithm>

#include "driver/simulated/simulated_driver.h"
#include "driver/simulated/simulated_errors.h"

namespace nofrag {
namespace {

bool is_multiple(std::uint64_t value, Bytes unit) {
  return value % unit.count() == 0;
}

// Merges [begin, begin + size) into the gaps.
void add_gap(std::map<std::uint64_t, std::uint64_t>& gaps,
             std::uint64_t begin,
             std::uint64_t size) {
  std::uint64_t end = begin + size;
  auto next = gaps.lower_bound(begin);
  if (next != gaps.end() && next->first == end) {
    end = next->second;
    next = gaps.erase(next);
  }
  if (next != gaps.begin() && std::prev(next)->second == begin) {
    std::prev(next)->second = end;
  } else {
    gaps.emplace_hint(next, begin, end);
  }
}

}  // namespace

SimulatedAddressSpace::SimulatedAddressSpace(std::uint64_t begin, std::uint64_t end)
    : gaps_{{begin, end}}, cursor_(begin) {}

std::optional<std::uint64_t> SimulatedAddressSpace::take(std::uint64_t size,
                                                         std::uint64_t alignment) {
  // Two passes: from the cursor to the end, then everything.
  for (int pass = 0; pass < 2; ++pass) {
    auto it = pass == 0 ? gaps_.upper_bound(cursor_) : gaps_.begin();
    if (pass == 0 && it != gaps_.begin()) {
      --it;
    }
    for (; it != gaps_.end(); ++it) {
      const std::uint64_t from = pass == 0 ? std::max(it->first, cursor_) : it->first;
      const std::uint64_t at = (from + alignment - 1) / alignment * alignment;
      if (at < from || at >= it->second || it->second - at < size) {
        continue;
      }
      const auto [gap_begin, gap_end] = *it;
      gaps_.erase(it);
      if (gap_begin < at) {
        gaps_.emplace(gap_begin, at);
      }
      if (at + size < gap_end) {
        gaps_.emplace(at + size, gap_end);
      }
      cursor_ = at + size;
      return at;
    }
  }
  return std::nullopt;
}

void SimulatedAddressSpace::give_back(std::uint64_t begin, std::uint64_t size) {
  add_gap(gaps_, begin, size);
}

std::optional<std::uint64_t> SimulatedMallocSpace::take(std::uint64_t size,
                                                        std::uint64_t alignment) {
  constexpr std::uint64_t kStep = std::uint64_t{32} << 20;
  for (auto it = gaps_.begin(); it != gaps_.end(); ++it) {
    const auto [gap_begin, gap_end] = *it;
    const std::uint64_t at = (gap_begin + alignment - 1) / alignment * alignment;
    if (at >= gap_end || gap_end - at < size) {
      continue;
    }
    gaps_.erase(it);
    if (gap_begin < at) {
      gaps_.emplace(gap_begin, at);
    }
    if (at + size < gap_end) {
      gaps_.emplace(at + size, gap_end);
    }
    return at;
  }
  const std::uint64_t opened = (size + kStep - 1) / kStep * kStep;
  if (opened < size || floor_ - begin_ < opened) {
    return std::nullopt;
  }
  floor_ -= opened;
  const std::uint64_t at = (floor_ + alignment - 1) / alignment * alignment;
  if (floor_ + opened - at < size) {
    return std::nullopt;  // an alignment beyond the step
  }
  if (at + size < floor_ + opened) {
    add_gap(gaps_, at + size, floor_ + opened - at - size);
  }
  return at;
}

void SimulatedMallocSpace::give_back(std::uint64_t begin, std::uint64_t size) {
  add_gap(gaps_, begin, size);
}

void SimulatedMemory::add_device(Bytes physical, Bytes granularity) {
  devices_.push_back({physical, Bytes(0), Bytes(0), granularity});
  granularity_ = std::max(granularity_, granularity);
}

Bytes SimulatedMemory::free(int device) const {
  const Device& d = at(device);
  const Bytes taken = d.in_use + d.others;
  return taken >= d.physical ? Bytes(0) : d.physical - taken;
}

bool SimulatedMemory::take_physical(int device, Bytes size) {
  if (size > free(device)) {
    return false;
  }
  at(device).in_use += size;
  return true;
}

void SimulatedMemory::drop_if_unused(std::unordered_map<std::uint64_t, Handle>::iterator handle) {
  if (handle->second.released && handle->second.mappings == 0) {
    at(handle->second.device).in_use -= handle->second.size;
    handles_.erase(handle);
  }
}

Result<HandleId> SimulatedMemory::create(int device, Bytes size) {
  if (size.is_zero() || !is_multiple(size.count(), at(device).granularity)) {
    return simulated_invalid();
  }
  if (!take_physical(device, size)) {
    return simulated_error(Errc::kOutOfMemory);
  }
  const HandleId id{next_handle_++};
  Handle& handle = handles_[id.raw];
  handle.device = device;
  handle.size = size;
  return id;
}

Status SimulatedMemory::release(HandleId id) {
  const auto it = handles_.find(id.raw);
  if (it == handles_.end() || it->second.released) {
    return simulated_invalid();
  }
  if (it->second.imports > 0) {
    --it->second.imports;
    return {};
  }
  it->second.released = true;
  drop_if_unused(it);
  return {};
}

Status SimulatedMemory::retain(HandleId id) {
  const auto it = handles_.find(id.raw);
  if (it == handles_.end() || it->second.plain) {
    return simulated_invalid();
  }
  if (it->second.released) {
    it->second.released = false;  // only mappings kept it alive
  } else {
    ++it->second.imports;
  }
  return {};
}

Result<VirtAddr> SimulatedMemory::reserve(Bytes size, Bytes alignment) {
  if (alignment.is_zero()) {
    alignment = granularity_;
  }
  const std::uint64_t a = alignment.count();
  if (size.is_zero() || !is_multiple(size.count(), granularity_) || (a & (a - 1)) != 0) {
    return simulated_invalid();
  }
  const auto begin = virtual_space_.take(size.count(), std::max(a, granularity_.count()));
  if (!begin) {
    // The driver says "out of memory" (2) here, too; for us that word means device memory.
    return Error{Errc::kDriverFailure, 2};
  }
  reservations_.emplace(*begin, size);
  return VirtAddr(*begin);
}

Status SimulatedMemory::free_range(VirtAddr address, Bytes size) {
  const auto it = reservations_.find(address.value());
  if (it == reservations_.end() || it->second != size || overlaps_mapping(address, size)) {
    return simulated_invalid();
  }
  reservations_.erase(it);
  virtual_space_.give_back(address.value(), size.count());
  return {};
}

bool SimulatedMemory::in_one_reservation(VirtAddr address, Bytes size) const {
  auto it = reservations_.upper_bound(address.value());
  if (it == reservations_.begin()) {
    return false;
  }
  --it;
  const std::uint64_t offset = address.value() - it->first;
  return offset < it->second.count() && size.count() <= it->second.count() - offset;
}

bool SimulatedMemory::overlaps_mapping(VirtAddr address, Bytes size) const {
  const auto next = mappings_.lower_bound(address.value());
  if (next != mappings_.end() && next->first < address.value() + size.count()) {
    return true;
  }
  if (next == mappings_.begin()) {
    return false;
  }
  const auto previous = std::prev(next);
  return previous->first + previous->second.size.count() > address.value();
}

Status SimulatedMemory::map(VirtAddr address, Bytes size, HandleId id) {
  const auto it = handles_.find(id.raw);
  if (it == handles_.end() || it->second.released || size.is_zero()) {
    return simulated_invalid();
  }
  Handle& handle = it->second;
  if (!is_multiple(address.value(), at(handle.device).granularity) ||
      !is_multiple(size.count(), at(handle.device).granularity)) {
    return simulated_invalid();
  }
  if (size != handle.size) {
    return simulated_error(Errc::kNotSupported);
  }
  if (!in_one_reservation(address, size) || overlaps_mapping(address, size)) {
    return simulated_invalid();
  }
  mappings_.emplace(address.value(), Mapping{size, id.raw, 0, handle.device});
  ++handle.mappings;
  return {};
}

bool SimulatedMemory::covered_exactly(VirtAddr address, Bytes size) const {
  if (size.is_zero() || mallocs_.contains(address.value())) {
    return false;
  }
  std::uint64_t at = address.value();
  const std::uint64_t end = at + size.count();
  for (auto it = mappings_.find(at); it != mappings_.end() && it->first == at && at < end; ++it) {
    at += it->second.size.count();
  }
  return at == end;
}

Status SimulatedMemory::set_access(VirtAddr address, Bytes size, int device) {
  if (!covered_exactly(address, size)) {
    return simulated_invalid();
  }
  auto it = mappings_.find(address.value());
  for (; it != mappings_.end() && it->first < address.value() + size.count(); ++it) {
    it->second.access |= std::uint64_t{1} << device;
  }
  return {};
}

Status SimulatedMemory::unmap(VirtAddr address, Bytes size) {
  if (!covered_exactly(address, size)) {
    return simulated_invalid();
  }
  auto it = mappings_.find(address.value());
  while (it != mappings_.end() && it->first < address.value() + size.count()) {
    const auto handle = handles_.find(it->second.handle);
    it = mappings_.erase(it);
    --handle->second.mappings;
    drop_if_unused(handle);
  }
  return {};
}

Result<VirtAddr> SimulatedMemory::malloc(int device, Bytes size) {
  if (size.is_zero()) {
    return simulated_invalid();
  }
  const Bytes unit = at(device).granularity;
  if (size > at(device).physical || !take_physical(device, round_up(size, unit))) {
    return simulated_error(Errc::kOutOfMemory);
  }
  const Bytes rounded = round_up(size, unit);
  const auto begin = malloc_space_.take(rounded.count(), unit.count());
  NOFRAG_CHECK(begin.has_value(), "the malloc address space exceeds any physical memory");
  Handle& handle = handles_[next_handle_];
  handle.device = device;
  handle.size = rounded;
  handle.released = true;
  handle.plain = true;
  handle.mappings = 1;
  mappings_.emplace(*begin, Mapping{rounded, next_handle_++, std::uint64_t{1} << device, device});
  mallocs_.emplace(*begin, size);
  return VirtAddr(*begin);
}

Status SimulatedMemory::free(int device, VirtAddr address) {
  if (!mallocs_.contains(address.value())) {
    return simulated_invalid();
  }
  const auto mapping = mappings_.find(address.value());
  if (mapping->second.owner != device) {
    return simulated_invalid();
  }
  const auto handle = handles_.find(mapping->second.handle);
  malloc_space_.give_back(address.value(), mapping->second.size.count());
  mappings_.erase(mapping);
  mallocs_.erase(address.value());
  handle->second.mappings = 0;
  drop_if_unused(handle);
  return {};
}

Bytes SimulatedMemory::handle_size(HandleId id) const {
  const auto it = handles_.find(id.raw);
  return it == handles_.end() ? Bytes(0) : it->second.size;
}

int SimulatedMemory::handle_device(HandleId id) const {
  const auto it = handles_.find(id.raw);
  return it == handles_.end() ? 0 : it->second.device;
}

Bytes SimulatedMemory::malloc_size(VirtAddr address) const {
  const auto it = mallocs_.find(address.value());
  return it == mallocs_.end() ? Bytes(0) : it->second;
}

bool SimulatedMemory::resolve(VirtAddr address,
                              Bytes size,
                              int device,
                              std::vector<PhysicalPiece>* out) const {
  auto it = mappings_.upper_bound(address.value());
  if (it == mappings_.begin() || size.is_zero()) {
    return false;
  }
  --it;
  std::uint64_t at = address.value();
  const std::uint64_t end = at + size.count();
  for (; at < end; ++it) {
    if (it == mappings_.end() || it->first > at || it->first + it->second.size.count() <= at ||
        (it->second.access >> device & 1U) == 0) {
      return false;
    }
    const std::uint64_t piece_end = std::min(end, it->first + it->second.size.count());
    out->push_back({it->second.handle, at - it->first, piece_end - it->first});
    at = piece_end;
  }
  return true;
}

void SimulatedMemory::fill(const PhysicalPiece& piece, std::uint64_t tag) {
  handles_.at(piece.handle).contents.fill(piece.begin, piece.end, tag);
}

std::optional<std::uint64_t> SimulatedMemory::tag_of(const PhysicalPiece& piece) const {
  return handles_.at(piece.handle).contents.tag_of(piece.begin, piece.end);
}

void SimulatedMemory::count_leaks(SimulatedLeaks* out) const {
  for (const auto& [id, handle] : handles_) {
    if (!handle.released) {
      ++out->handles;
      out->handle_bytes += handle.size;
    }
  }
  for (const auto& [address, mapping] : mappings_) {
    if (!mallocs_.contains(address)) {
      ++out->mappings;
      out->mapped_bytes += mapping.size;
    }
  }
  for (const auto& [address, size] : reservations_) {
    ++out->reservations;
    out->reserved_bytes += size;
  }
  for (const auto& [address, size] : mallocs_) {
    ++out->mallocs;
    out->malloc_bytes += size;
  }
}

void SimulatedMemory::check() const {
  std::unordered_map<std::uint64_t, std::uint32_t> mapped;
  std::uint64_t previous_end = 0;
  for (const auto& [address, mapping] : mappings_) {
    NOFRAG_CHECK(address >= previous_end, "mappings overlap");
    previous_end = address + mapping.size.count();
    const bool plain = mallocs_.contains(address);
    NOFRAG_CHECK(plain || in_one_reservation(VirtAddr(address), mapping.size),
                 "a mapping outside every reservation");
    const auto handle = handles_.find(mapping.handle);
    NOFRAG_CHECK(handle != handles_.end(), "a mapping of a handle that is gone");
    NOFRAG_CHECK(handle->second.size == mapping.size && handle->second.plain == plain &&
                     handle->second.device == mapping.owner,
                 "a mapping that does not fit its handle");
    ++mapped[mapping.handle];
  }
  std::vector<Bytes> in_use(devices_.size());
  for (const auto& [id, handle] : handles_) {
    NOFRAG_CHECK(handle.mappings == mapped[id], "a handle miscounts its mappings");
    NOFRAG_CHECK(!handle.released || handle.mappings > 0, "a dead handle was kept");
    in_use[static_cast<std::size_t>(handle.device)] += handle.size;
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    NOFRAG_CHECK(in_use[i] == devices_[i].in_use, "physical memory in use is miscounted");
  }
}

}  // namespace nofrag
