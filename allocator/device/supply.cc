// Supply: idle handles and free ends of handles: which may serve a request, and how they are moved.

#include <algorithm>

#include "device/device_impl.h"

namespace nofrag {
namespace {

// A private pool grows by this part of the device's memory, and never by more than this part of the
// addresses that are left.
constexpr std::uint64_t kPrivateShare = 8;
constexpr std::uint64_t kAddressShare = 1024;

}  // namespace

// May `clock` use bytes [from, to) of the handle at once (or, with `wait`, behind a device-side wait)?
bool DeviceAllocator::Impl::may_use(
    const Handle& handle, Bytes from, Bytes to, const StreamClock& clock, bool wait) const {
  if (wait) {
    return true;
  }
  // In a private heap a graph may do its work once more at any time: there nothing is ever done.
  const bool shared = handle.mappings->region->heap->sharing() == RangeHeap::Sharing::kShared;
  return RangeHeap::all_marks(
      handle, from, to, [&clock, shared](const StreamClock* mark, Tick tick) {
        return mark == nullptr || mark == &clock || (shared && mark->done(tick));
      });
}

bool DeviceAllocator::Impl::known_done(const Handle& handle) {
  for (const Mapping* m = handle.mappings; m != nullptr; m = m->next) {
    if (!known_done(*m)) {
      return false;
    }
  }
  return true;
}

bool DeviceAllocator::Impl::known_done(const Mapping& mapping) {
  return mapping.last_uses.all_of(
      [](const StreamClock& clock, Tick tick) { return clock.done(tick); });
}

Status DeviceAllocator::Impl::wait_for(const Mapping& mapping) {
  Status status;
  mapping.last_uses.all_of([&](StreamClock& clock, Tick tick) {
    status = streams.is_done(clock, tick) ? Status{} : streams.wait_host(clock, tick);
    return status.ok();
  });
  return status;
}

Status DeviceAllocator::Impl::wait_for_handle(const Handle& handle) {
  Status status;
  for (const Mapping* m = handle.mappings; m != nullptr && status.ok(); m = m->next) {
    status = wait_for(*m);
  }
  return status;
}

// The driver call and the record of it, for a mapping that nothing uses any more.
Status DeviceAllocator::Impl::unmap(Mapping* mapping) {
  const Bytes size = mapping->handle->physical.size;
  if (const Status unmapped = driver.unmap(mapping->address, size); !unmapped.ok()) {
    return unmapped;
  }
  emit(EventKind::kUnmap, mapping->address, size, StreamId{});
  tell(MemoryEvent::Kind::kUnmapped,
       physical,
       mapping->address,
       size,
       mapping->handle->physical.id,
       mapping->handle->mapping_count == 1);
  Region* region = mapping->region;
  if (region->mapping_count == 1 && !region->home) {
    note_emptied(*region);
  }
  return {};
}

// Takes an idle handle from all its addresses. On a refusal it keeps those that are left.
Result<PhysicalHandle> DeviceAllocator::Impl::unmap_idle(Handle* handle) {
  RangeHeap& heap = *handle->mappings->region->heap;
  while (handle->mapping_count > 1) {
    Mapping* newest = handle->mappings;
    if (const Status unmapped = unmap(newest); !unmapped.ok()) {
      return unmapped.error();
    }
    heap.drop(newest);
  }
  if (const Status unmapped = unmap(handle->mappings); !unmapped.ok()) {
    return unmapped.error();
  }
  return heap.detach(handle);
}

// The mapping that goes when a handle with all its addresses taken needs one more: the oldest that no
// block was allocated through, of views rather than of the home region.
Mapping* DeviceAllocator::Impl::spare_mapping(const Pool& pool, const Handle& handle, bool wait) {
  // Graphs may use every address a private pool ever gave out.
  if (!pool.lends() || handle.mapping_count < 2) {
    return nullptr;
  }
  Mapping* spare = nullptr;
  for (Mapping* m = handle.mappings; m != nullptr; m = m->next) {
    const bool better = spare == nullptr || spare->region->home || !m->region->home;
    if (better && m->blocks == 0 && m->pins == 0 && (wait || known_done(*m))) {
      spare = m;
    }
  }
  return spare;
}

bool DeviceAllocator::Impl::can_alias(const Pool& pool, const Handle& handle, bool wait) const {
  return handle.mapping_count < tuning.aliases || spare_mapping(pool, handle, wait) != nullptr;
}

// Makes sure that the handle may have one more address.
Status DeviceAllocator::Impl::make_room(Pool& pool, Handle& handle, bool wait) {
  if (handle.mapping_count < tuning.aliases) {
    return {};
  }
  Mapping* spare = spare_mapping(pool, handle, wait);
  if (spare == nullptr) {
    return Errc::kNotReady;
  }
  if (!known_done(*spare)) {
    if (const Status waited = wait_for(*spare); !waited.ok()) {
      return waited;
    }
  }
  if (const Status unmapped = unmap(spare); !unmapped.ok()) {
    return unmapped;
  }
  pool.heap.drop(spare);
  return {};
}

void DeviceAllocator::Impl::note_emptied(Region& view) {
  if (!view.listed) {
    view.listed = true;
    emptied_views.push_back(&view);
  }
}

// Views in which nothing is mapped any more give their addresses back.
void DeviceAllocator::Impl::drop_emptied_views() {
  for (Region* region : emptied_views) {
    region->listed = false;
    if (region->mapping_count == 0) {
      const AddressRange range = region->range;
      region->heap->remove_region(*region);
      space.return_region(range);
    }
  }
  emptied_views.clear();
}

// Takes away the views that nothing uses and whose handles are all mapped elsewhere too: for their
// addresses.
void DeviceAllocator::Impl::drop_unused_views(const Fill& fill) {
  for (auto& [key, pool] : pools) {
    if (!pool.lends()) {
      continue;
    }
    std::vector<Mapping*> unused;
    for (const auto& region : pool.heap.regions()) {
      if (region->home) {
        continue;
      }
      const std::size_t before = unused.size();
      bool all = true;
      RangeHeap::for_each_mapping(
          *region, region->range.address, region->range.end(), [&](Mapping& mapping) {
            all = all && mapping.blocks == 0 && mapping.pins == 0 && !mapping.stuck &&
                  mapping.handle->mapping_count > 1 && mapping.handle->chosen != fill.id &&
                  known_done(mapping);
            unused.push_back(&mapping);
          });
      if (!all) {
        unused.resize(before);
      }
    }
    for (Mapping* mapping : unused) {
      if (mapping->handle->mapping_count > 1 && unmap(mapping).ok()) {
        pool.heap.drop(mapping);
      }
    }
  }
  drop_emptied_views();
}

// Addresses for a heap to grow in, `size` at least.
Result<AddressRange> DeviceAllocator::Impl::take_home(const Fill& fill, Bytes size) {
  // Twice the memory for the default pool, so that scattered survivors never use up its addresses;
  // private pools are many and mostly small.
  const Bytes usual = fill.pool.is_private()
                          ? std::min(Bytes(info.total_memory.count() / kPrivateShare),
                                     Bytes(space.free_bytes().count() / kAddressShare))
                          : info.total_memory * 2;
  return take_addresses(fill, round_up(std::max(usual, size), info.granularity), size);
}

// `usual` addresses, or `least` where they run short; views that nothing uses make room.
Result<AddressRange> DeviceAllocator::Impl::take_addresses(const Fill& fill,
                                                           Bytes usual,
                                                           Bytes least) {
  Result<AddressRange> range = space.take_region(usual);
  if (!range.ok()) {
    range = space.take_region(least);
  }
  if (!range.ok()) {
    drop_unused_views(fill);
    range = space.take_region(least);
  }
  return range;
}

Supply DeviceAllocator::Impl::supply_for(Pool& pool) {
  // Asked once, so that everything after goes by what is known.
  if (!filling_pool()) {
    streams.poll_all();
  }
  Supply supply;
  for (Handle* handle = pool.heap.first_idle(); handle != nullptr; handle = handle->next_idle) {
    if (handle->pins == 0) {
      supply.own.push_back(handle);
    }
  }
  for (auto& [key, lender] : pools) {
    if (&lender == &pool || !lender.lends()) {
      continue;
    }
    for (Handle* handle = lender.heap.first_idle(); handle != nullptr; handle = handle->next_idle) {
      if (handle->pins == 0) {
        supply.others.push_back(handle);
      }
    }
  }
  return supply;
}

Bytes DeviceAllocator::keep_addresses() {
  const std::lock_guard lock(impl_->mutex);
  return impl_->space.keep();
}

void DeviceAllocator::share_addresses(unsigned count) {
  const std::lock_guard lock(impl_->mutex);
  impl_->space.be_one_of(count);
}

}  // namespace nofrag
