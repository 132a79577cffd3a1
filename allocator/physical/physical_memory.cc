#include "physical/physical_memory.h"

#include <algorithm>

namespace nofrag {

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
  const Result<HandleId> id = driver_.create(device_, size);
  if (!id.ok()) {
    return id.error();
  }
  reserved_ += size;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  return PhysicalHandle{id.value(), size};
}

void PhysicalMemory::release(PhysicalHandle handle) {
  if (!driver_.release(handle.id).ok()) {
    spares_.push_back(handle);
    return;
  }
  reserved_ -= handle.size;
}

void PhysicalMemory::release_spares() {
  std::vector<PhysicalHandle> refused;
  refused.swap(spares_);
  for (const PhysicalHandle& handle : refused) {
    release(handle);
  }
}

Status PhysicalMemory::charge(Bytes size) {
  if (!fits_limit(size)) {
    return Errc::kLimit;
  }
  reserved_ += size;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  return {};
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
