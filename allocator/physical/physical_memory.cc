#include "physical/physical_memory.h"

#include <algorithm>

namespace nofrag {

namespace {

constexpr std::uint64_t kLookShare = 64;

}  // namespace

PhysicalMemory::PhysicalMemory(Driver& driver, DeviceOrdinal device, Bytes granularity)
    : driver_(driver), device_(device), granularity_(granularity) {}

Result<PhysicalHandle> PhysicalMemory::create(Bytes size) {
  const auto spare = std::find_if(
      spares_.begin(), spares_.end(), [size](const PhysicalHandle& h) { return h.size == size; });
  if (spare != spares_.end()) {
    const PhysicalHandle handle = *spare;
    spares_.erase(spare);
    return handle;  // its bytes were never given up, so they are still counted
  }
  if (!fits_limit(size)) {
    return Errc::kLimit;
  }
  if (reserved_ >= next_look_) {
    static_cast<void>(look());
  }
  const Result<HandleId> id = driver_.create(device_, size);
  if (!id.ok()) {
    if (id.code() == Errc::kOutOfMemory) {
      static_cast<void>(look());
    }
    return id.error();
  }
  reserved_ += size;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  return PhysicalHandle{id.value(), size};
}

Result<MemoryInfo> PhysicalMemory::look() {
  Result<MemoryInfo> memory = driver_.memory_info(device_);
  if (memory.ok()) {
    const MemoryInfo& now = memory.value();
    others_ = now.total - std::min(now.total, now.free + reserved_);
    step_ = Bytes(now.total.count() / kLookShare);
    next_look_ = reserved_ + step_;
  }
  return memory;
}

void PhysicalMemory::release(PhysicalHandle handle) {
  if (!driver_.release(handle.id).ok()) {
    spares_.push_back(handle);
    return;
  }
  reserved_ -= handle.size;
  next_look_ = std::min(next_look_, reserved_ + step_);
}

void PhysicalMemory::release_spares() {
  std::vector<PhysicalHandle> refused;
  refused.swap(spares_);
  for (const PhysicalHandle& handle : refused) {
    release(handle);
  }
}

void PhysicalMemory::charge(Bytes size) {
  reserved_ += size;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
}

void PhysicalMemory::uncharge(Bytes size) {
  reserved_ -= size;
}

Bytes PhysicalMemory::spare_bytes() const {
  Bytes sum;
  for (const PhysicalHandle& handle : spares_) {
    sum += handle.size;
  }
  return sum;
}

}  // namespace nofrag
