// The C interface for frameworks: pools, the walk, news of memory, memory for other processes.
#include <vector>

#include <nofrag/frameworks.h>

#include "api/edge.h"
#include "api/on_device.h"
#include "runtime/process.h"

using nofrag::Bytes;
using nofrag::DeviceAllocator;
using nofrag::Errc;
using nofrag::Process;
using nofrag::Result;
using nofrag::Status;
using nofrag::VirtAddr;

namespace {

nofrag::PoolKey key_of(nofrag_pool pool) {
  return {pool.first, pool.second};
}

// A call on a pool of a device, with what its failures mean.
template <typename Call>
nofrag_status on_pool(int ordinal, nofrag_pool pool, const char* what, Call call) {
  return nofrag::on_device(ordinal, [&](DeviceAllocator& device) -> Status {
    const Status status = call(device);
    if (!status) {
      nofrag::set_last_error(status.error(),
                             "%s of pool {%llu, %llu} on device %d: %s",
                             what,
                             static_cast<unsigned long long>(pool.first),
                             static_cast<unsigned long long>(pool.second),
                             ordinal,
                             status.code() == Errc::kInvalidArgument
                                 ? "there is no such pool, or it was released"
                                 : to_string(status.code()));
    }
    return status;
  });
}

nofrag_span to_c_span(const nofrag::MemorySpan& span, int device) {
  nofrag_span c{};
  c.struct_size = sizeof c;
  c.version = NOFRAG_SPAN_VERSION;
  c.address = span.address.pointer();
  c.size = span.size.count();
  c.requested_size = span.requested.count();
  c.stream = nofrag::to_pointer(span.stream);
  c.pool_first = span.pool_first;
  c.pool_second = span.pool_second;
  c.state = static_cast<std::uint32_t>(span.state);
  c.device = device;
  return c;
}

nofrag_memory_event to_c_event(const nofrag::MemoryEvent& event) {
  nofrag_memory_event c{};
  c.struct_size = sizeof c;
  c.version = NOFRAG_MEMORY_EVENT_VERSION;
  c.kind = static_cast<std::uint32_t>(event.kind);
  c.device = event.device.value();
  c.address = event.address.pointer();
  c.size = event.size.count();
  c.allocation = event.handle;
  c.reserved_bytes = event.reserved.count();
  c.only = event.only ? 1 : 0;
  return c;
}

// The device of a live block's address.
Result<DeviceAllocator*> owner_of(const void* address) {
  Process& process = Process::instance();
  if (process.forked() || process.exiting()) {
    return process.start().error();
  }
  DeviceAllocator* owner = Process::owner(VirtAddr(address));
  if (owner == nullptr) {
    return nofrag::set_last_error(
        {Errc::kUnknownPointer}, "%p is not in a live block of nofrag", address);
  }
  return owner;
}

nofrag_status failed(Status status, const char* what, const void* address) {
  return to_status(
      nofrag::set_last_error(status.error(), "%s %p: %s", what, address, to_string(status.code())));
}

}  // namespace

nofrag_status nofrag_pool_retain(int ordinal, nofrag_pool pool) noexcept {
  return on_pool(ordinal, pool, "use", [&](DeviceAllocator& device) {
    return device.retain_pool(key_of(pool));
  });
}

nofrag_status nofrag_pool_lend_when_short(int ordinal, nofrag_pool pool, int lends) noexcept {
  return on_pool(ordinal, pool, "lending", [&](DeviceAllocator& device) {
    return device.lend_when_short(key_of(pool), lends != 0);
  });
}

nofrag_status nofrag_pool_trim(int ordinal, nofrag_pool pool, uint64_t* given_back) noexcept {
  Bytes trimmed;
  const nofrag_status status =
      on_pool(ordinal, pool, "trim", [&](DeviceAllocator& device) -> Status {
        const Result<Bytes> result = device.trim_pool(key_of(pool));
        trimmed = result ? result.value() : Bytes(0);
        return result.error();
      });
  if (given_back != nullptr) {
    *given_back = trimmed.count();
  }
  return status;
}

nofrag_status nofrag_pool_restore(int ordinal,
                                  nofrag_pool pool,
                                  const nofrag_pool_block* blocks,
                                  size_t count) noexcept {
  if (blocks == nullptr && count != 0) {
    return nofrag::invalid_argument("the blocks are NULL");
  }
  std::vector<nofrag::PoolBlock> wanted;
  wanted.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    wanted.push_back({VirtAddr(blocks[i].address),
                      Bytes(blocks[i].requested_size),
                      nofrag::to_stream(blocks[i].stream)});
  }
  return on_pool(ordinal, pool, "restoring", [&](DeviceAllocator& device) {
    return device.restore_pool(key_of(pool), wanted);
  });
}

nofrag_status nofrag_walk(int ordinal, nofrag_span_visitor visitor, void* user) noexcept {
  if (visitor == nullptr) {
    return nofrag::invalid_argument("the visitor is NULL");
  }
  return nofrag::on_used_device(ordinal, [&](DeviceAllocator& device) -> Status {
    device.walk([&](const nofrag::MemorySpan& span) {
      const nofrag_span c = to_c_span(span, ordinal);
      visitor(&c, user);
    });
    return {};
  });
}

nofrag_status nofrag_spans(int ordinal, nofrag_span* spans, size_t* count) noexcept {
  if (count == nullptr || (spans == nullptr && *count != 0)) {
    return nofrag::invalid_argument("spans or count is NULL");
  }
  const std::size_t room = *count;
  std::size_t seen = 0;
  const nofrag_status walked =
      nofrag::on_used_device(ordinal, [&](DeviceAllocator& device) -> Status {
        device.walk([&](const nofrag::MemorySpan& span) {
          if (seen < room) {
            spans[seen] = to_c_span(span, ordinal);
          }
          ++seen;
        });
        return {};
      });
  *count = seen;
  if (walked != NOFRAG_OK || seen <= room || room == 0) {
    return walked;
  }
  return to_status(nofrag::set_last_error(
      {nofrag::Errc::kBufferTooSmall}, "there are %zu spans, and room for %zu", seen, room));
}

nofrag_status nofrag_set_memory_listener(nofrag_memory_listener listener, void* user) noexcept {
  Process& process = Process::instance();
  if (process.forked() || process.exiting()) {
    return to_status(process.start().code());
  }
  process.set_watch(listener == nullptr ? nofrag::MemoryWatch::Listener()
                                        : [listener, user](const nofrag::MemoryEvent& event) {
                                            const nofrag_memory_event c = to_c_event(event);
                                            listener(&c, user);
                                          });
  return NOFRAG_OK;
}

nofrag_status nofrag_parts(const void* block, nofrag_part* parts, size_t* count) noexcept {
  if (count == nullptr || (parts == nullptr && *count != 0)) {
    return nofrag::invalid_argument("parts or count is NULL");
  }
  const Result<DeviceAllocator*> owner = owner_of(block);
  if (!owner) {
    return to_status(owner.code());
  }
  const Result<std::vector<nofrag::MemoryPart>> found = owner.value()->parts_of(VirtAddr(block));
  if (!found) {
    return failed(found.error(), "the physical memory of", block);
  }
  const size_t room = *count;
  *count = found.value().size();
  for (size_t i = 0; i < std::min(room, *count); ++i) {
    const nofrag::MemoryPart& part = found.value()[i];
    parts[i] = {part.handle, part.address.pointer(), part.size.count()};
  }
  if (room >= *count || room == 0) {
    return NOFRAG_OK;
  }
  return to_status(nofrag::set_last_error({Errc::kBufferTooSmall},
                                          "the block lies in %zu parts, and there is room for %zu",
                                          *count,
                                          room));
}

nofrag_status nofrag_prefer_exportable(void) noexcept {
  return to_status(Process::instance().prefer_shareable().code());
}

nofrag_status nofrag_settle(int ordinal) noexcept {
  return nofrag::on_used_device(ordinal, [](DeviceAllocator& device) -> Status {
    device.settle_finished();
    return {};
  });
}

nofrag_status nofrag_export(const void* block, uint64_t allocation, int* descriptor) noexcept {
  if (descriptor == nullptr) {
    return nofrag::invalid_argument("descriptor is NULL");
  }
  *descriptor = -1;
  const Result<DeviceAllocator*> owner = owner_of(block);
  if (!owner) {
    return to_status(owner.code());
  }
  // The driver would only say that the argument is invalid.
  if (!Process::instance().exportable()) {
    return to_status(nofrag::set_last_error(
        {Errc::kNotSupported},
        "the memory of %p was made so that it cannot be exported; set shareable_handles:fd in "
        "NOFRAG_CONF, or call nofrag_prefer_exportable before nofrag is used",
        block));
  }
  const Result<int> exported = owner.value()->export_part(VirtAddr(block), allocation);
  if (!exported) {
    return failed(exported.error(), "export of the memory of", block);
  }
  *descriptor = exported.value();
  return NOFRAG_OK;
}

nofrag_status nofrag_import(int ordinal,
                            const int* descriptors,
                            const uint64_t* sizes,
                            size_t count,
                            void** address) noexcept {
  if (descriptors == nullptr || sizes == nullptr || address == nullptr) {
    return nofrag::invalid_argument("descriptors, sizes or address is NULL");
  }
  *address = nullptr;
  std::vector<nofrag::ImportedPart> parts;
  parts.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    parts.push_back({descriptors[i], Bytes(sizes[i])});
  }
  return nofrag::on_device(ordinal, [&](DeviceAllocator& device) -> Status {
    const Result<VirtAddr> imported = device.import(parts);
    if (imported) {
      *address = imported.value().pointer();
    } else {
      nofrag::set_last_error(
          imported.error(),
          "%zu parts of another process's memory could not be mapped on device %d: "
          "%s (driver code %d)",
          count,
          ordinal,
          to_string(imported.code()),
          imported.error().driver_code);
    }
    return imported.error();
  });
}

nofrag_status nofrag_close_import(int ordinal, void* address) noexcept {
  return nofrag::on_device(ordinal, [&](DeviceAllocator& device) -> Status {
    const Status closed = device.close_import(VirtAddr(address));
    if (!closed) {
      failed(closed, "end of the import at", address);
    }
    return closed;
  });
}

nofrag_status nofrag_grant_access(int ordinal, int peer) noexcept {
  const Result<int> count = Process::instance().device_count();
  if (!count) {
    return to_status(count.code());
  }
  if (peer < 0 || peer >= count.value()) {
    return nofrag::invalid_argument("there is no such peer");
  }
  return nofrag::on_device(ordinal, [&](DeviceAllocator& device) -> Status {
    const Status granted = device.grant_access(nofrag::DeviceOrdinal(peer));
    if (!granted) {
      nofrag::set_last_error(granted.error(),
                             "device %d could not be given access to device %d's memory: %s",
                             peer,
                             ordinal,
                             to_string(granted.code()));
    }
    return granted;
  });
}
