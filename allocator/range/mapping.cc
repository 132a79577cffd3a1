#include "range/mapping.h"

namespace nofrag {
namespace {

// Unmaps the first `count` handles; returns how many could not be unmapped.
std::size_t undo(Driver& driver,
                 VirtAddr address,
                 std::span<const PhysicalHandle> handles,
                 std::size_t count) {
  Bytes mapped;
  for (std::size_t i = 0; i < count; ++i) {
    mapped += handles[i].size;
  }
  // Backwards, one by one: whatever refuses leaves a prefix mapped, which is easy to account for.
  for (std::size_t i = count; i-- > 0;) {
    mapped -= handles[i].size;
    if (!driver.unmap(address + mapped, handles[i].size).ok()) {
      return i + 1;
    }
  }
  return 0;
}

}  // namespace

MapOutcome map_handles(Driver& driver,
                       DeviceOrdinal device,
                       VirtAddr address,
                       std::span<const PhysicalHandle> handles,
                       std::span<const DeviceOrdinal> peers) {
  Bytes mapped;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (const Status status = driver.map(address + mapped, handles[i].size, handles[i].id);
        !status.ok()) {
      return {status, undo(driver, address, handles, i)};
    }
    mapped += handles[i].size;
  }
  if (const Status status = driver.set_access(address, mapped, device); !status.ok()) {
    return {status, undo(driver, address, handles, handles.size())};
  }
  for (const DeviceOrdinal peer : peers) {
    if (const Status status = driver.set_access(address, mapped, peer); !status.ok()) {
      return {status, undo(driver, address, handles, handles.size())};
    }
  }
  return {};
}

}  // namespace nofrag
