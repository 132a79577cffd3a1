// Memory that others use too: exported to and imported from other processes, accessible to other devices.

#include <algorithm>

#include "device/device_impl.h"
#include "range/mapping.h"

namespace nofrag {
namespace {

using Lock = std::unique_lock<RankedMutex>;

}  // namespace

Result<std::vector<MemoryPart>> DeviceAllocator::parts_of(VirtAddr address) const {
  const Impl& s = *impl_;
  const Lock lock(s.mutex);
  const Block* block = s.live_block(address);
  if (block == nullptr) {
    return Errc::kUnknownPointer;
  }
  if (!s.virtual_memory) {
    return Errc::kNotSupported;
  }
  std::vector<MemoryPart> parts;
  RangeHeap::for_each_mapping(
      *block->region, block->address, block->end(), [&parts](const Mapping& mapping) {
        const PhysicalHandle& physical = mapping.handle->physical;
        parts.push_back({physical.id.raw, mapping.address, physical.size});
      });
  return parts;
}

// The handle must be one that lies under the block now: nobody can have released it.
Result<int> DeviceAllocator::export_part(VirtAddr address, std::uint64_t handle) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  const Block* block = s.live_block(address);
  if (block == nullptr) {
    return Errc::kUnknownPointer;
  }
  if (!s.virtual_memory) {
    return Errc::kNotSupported;
  }
  bool here = false;
  RangeHeap::for_each_mapping(
      *block->region, block->address, block->end(), [&](const Mapping& mapping) {
        here = here || mapping.handle->physical.id.raw == handle;
      });
  return here ? s.driver.export_handle(HandleId{handle}) : Result<int>(Errc::kInvalidArgument);
}

Result<VirtAddr> DeviceAllocator::import(std::span<const ImportedPart> parts) {
  Impl& s = *impl_;
  Bytes total;
  for (const ImportedPart& part : parts) {
    if (part.size.is_zero() || !(part.size % s.info.granularity).is_zero()) {
      return Errc::kInvalidArgument;
    }
    total += part.size;
  }
  if (total.is_zero()) {
    return Errc::kInvalidArgument;
  }
  const Lock lock(s.mutex);
  std::vector<PhysicalHandle> handles;
  Status status;
  for (const ImportedPart& part : parts) {
    const Result<HandleId> handle = s.driver.import_handle(s.device, part.descriptor);
    if (!handle.ok()) {
      status = handle.error();
      break;
    }
    handles.push_back({handle.value(), part.size});
  }
  const Result<VirtAddr> base =
      status.ok() ? s.driver.reserve(total, Bytes(0)) : Result<VirtAddr>(status.error());
  if (base.ok()) {
    const MapOutcome outcome = map_handles(s.driver, s.device, base.value(), handles, s.peers);
    status = outcome.status;
    if (status.ok()) {
      Import& import = s.imports[base.value()];
      import.size = total;
      VirtAddr at = base.value();
      for (const PhysicalHandle& handle : handles) {
        import.mapped.push_back({at, handle.size});
        at = at + handle.size;
      }
    } else if (outcome.stuck == 0) {
      s.driver.free_range(base.value(), total).ignore();
    }
  }
  s.release_imported(handles);  // the mappings keep the memory
  return base.ok() && !status.ok() ? Result<VirtAddr>(status.error()) : base;
}

// And those that the driver refused to take back before.
void DeviceAllocator::Impl::release_imported(const std::vector<PhysicalHandle>& handles) {
  for (const PhysicalHandle& handle : handles) {
    refused_imports.push_back(handle.id);
  }
  std::erase_if(refused_imports, [this](HandleId id) { return driver.release(id).ok(); });
}

Status DeviceAllocator::close_import(VirtAddr address) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  const auto found = s.imports.find(address);
  if (found == s.imports.end()) {
    return Errc::kUnknownPointer;
  }
  // Whoever imported may have work queued on it, on any stream. The wait would end a capture, and while a pool
  // is being filled one may be under way on a stream that was never seen here.
  if (s.filling_pool()) {
    return Errc::kCapturing;
  }
  if (const Status idle = s.streams.wait_device_idle(); !idle.ok()) {
    return idle;
  }
  // From the end, so that what is undone is forgotten at once: a refusal leaves the rest for the next call.
  std::vector<Import::Part>& mapped = found->second.mapped;
  while (!mapped.empty()) {
    const auto [at, size] = mapped.back();
    if (const Status unmapped = s.driver.unmap(at, size); !unmapped.ok()) {
      return unmapped;
    }
    mapped.pop_back();
  }
  s.driver.free_range(address, found->second.size).ignore();
  s.imports.erase(found);
  s.release_imported({});
  return {};
}

Status DeviceAllocator::grant_access(DeviceOrdinal peer) {
  Impl& s = *impl_;
  const Lock lock(s.mutex);
  const bool known = std::find(s.peers.begin(), s.peers.end(), peer) != s.peers.end();
  if (peer == s.device || known || !s.virtual_memory) {
    return {};
  }
  for (const auto& [key, pool] : s.pools) {
    for (const Handle* handle : pool.heap.handles()) {
      for (const Mapping* m = handle->mappings; m != nullptr; m = m->next) {
        if (const Status granted = s.driver.set_access(m->address, handle->physical.size, peer);
            !granted.ok()) {
          return granted;
        }
      }
    }
  }
  s.peers.push_back(peer);
  return {};
}

}  // namespace nofrag
