// The C interface: blocks and pools.
#include <string>

#include <nofrag/frameworks.h>

#include "api/edge.h"
#include "runtime/log.h"
#include "runtime/process.h"

using nofrag::DeviceAllocator;
using nofrag::Errc;
using nofrag::Process;
using nofrag::VirtAddr;

namespace {

// "pool {1, 2} on device 0"
std::string pool_on(nofrag_pool pool, int ordinal) {
  return "pool {" + std::to_string(pool.first) + ", " + std::to_string(pool.second) +
         "} on device " + std::to_string(ordinal);
}

// `pool` is null where the caller named none.
void* allocation_failed(DeviceAllocator* device,
                        std::size_t size,
                        nofrag::Error error,
                        const nofrag_pool* pool) {
  const int ordinal = device->device().value();
  if (pool != nullptr && error.code == Errc::kInvalidArgument && error.driver_code == 0) {
    nofrag::set_last_error(error,
                           "there is no %s: it was never begun, or it was released",
                           pool_on(*pool, ordinal).c_str());
    return nullptr;
  }
  if (error.code != Errc::kOutOfMemory && error.code != Errc::kLimit) {
    const std::string where =
        pool != nullptr ? "in " + pool_on(*pool, ordinal) : "on device " + std::to_string(ordinal);
    nofrag::set_last_error(error,
                           "allocation of %zu bytes %s failed: %s (driver code %d)",
                           size,
                           where.c_str(),
                           to_string(error.code),
                           error.driver_code);
    return nullptr;
  }
  const nofrag_oom_report report = nofrag::to_c_report(ordinal, device->last_oom());
  std::string message = device->last_oom_message();
  message += "\n" + Process::instance().observer().explain(device, message);
  if (nofrag::Recorder* const recorder = Process::instance().recorder()) {
    recorder->note_failure();
  }
  Process::instance().oom_callbacks().for_each(
      [&](nofrag_oom_callback callback, void* user) { callback(ordinal, &report, user); });
  // Last, because a callback may have failed in calls of its own.
  nofrag::set_last_error(error, "%s", message.c_str());
  return nullptr;
}

template <typename Allocate>
void* allocate(std::size_t size, int ordinal, Allocate call, const nofrag_pool* pool = nullptr) {
  if (size == 0) {
    nofrag::clear_last_error();
    return nullptr;
  }
  DeviceAllocator* device = Process::ready_device(ordinal);
  if (device == nullptr) [[unlikely]] {
    const nofrag::Result<DeviceAllocator*> made = Process::instance().device(ordinal);
    if (!made) {
      return nullptr;
    }
    device = made.value();
  }
  const nofrag::Result<VirtAddr> block = call(device);
  return block ? block.value().pointer() : allocation_failed(device, size, block.error(), pool);
}

nofrag_status unknown_pointer(const void* address) {
  return to_status(nofrag::set_last_error(
      {Errc::kUnknownPointer}, "%p is not in a live block of nofrag", address));
}

// Runs `call` on the device that owns the address. Devices without virtual memory have no range of
// their own, so each of them is asked.
template <typename Call>
nofrag_status on_owner(const void* address, Call call) {
  Process& process = Process::instance();
  if (process.forked() || process.exiting()) {
    return nofrag::to_status(process.start().code());
  }
  Errc code = Errc::kUnknownPointer;
  if (DeviceAllocator* owner = Process::owner(VirtAddr(address)); owner != nullptr) {
    code = call(owner);
  } else {
    for (int i = 0; i < Process::kMostDevices && code == Errc::kUnknownPointer; ++i) {
      DeviceAllocator* device = process.used_device(i);
      if (device != nullptr && !device->uses_virtual_memory()) {
        code = call(device);
      }
    }
  }
  if (code == Errc::kUnknownPointer) {
    return unknown_pointer(address);
  }
  if (code != Errc::kOk) {
    nofrag::set_last_error({code}, "%p: %s", address, to_string(code));
  }
  return nofrag::to_status(code);
}

nofrag::PoolKey to_key(nofrag_pool pool) {
  return {pool.first, pool.second};
}

// `wrong` says what an invalid argument of this call means.
template <typename Call>
nofrag_status on_pool(
    int ordinal, nofrag_pool pool, const char* what, const char* wrong, Call call) {
  if (pool.first == 0 && pool.second == 0) {
    return nofrag::invalid_argument(
        "pool {0, 0} is the default pool, which is neither begun nor released");
  }
  const nofrag::Result<DeviceAllocator*> device = Process::instance().device(ordinal);
  if (!device) {
    return nofrag::to_status(device.code());
  }
  const nofrag::Status status = call(device.value());
  if (!status) {
    nofrag::set_last_error(
        status.error(),
        "%s of %s: %s",
        what,
        pool_on(pool, ordinal).c_str(),
        status.code() == Errc::kInvalidArgument ? wrong : to_string(status.code()));
  }
  return nofrag::to_status(status.code());
}

}  // namespace

// What no cache of this thread serves.
[[gnu::noinline, gnu::hot]] static void* malloc_slowly(std::size_t size, int device, void* stream) {
  return allocate(size, device, [&](DeviceAllocator* allocator) {
    return allocator->allocate_uncached(nofrag::Bytes(size), nofrag::to_stream(stream));
  });
}

[[gnu::hot]] void* nofrag_malloc(size_t size, int device, void* stream) noexcept {
  if (DeviceAllocator* ready = Process::ready_device(device)) [[likely]] {
    const VirtAddr kept = ready->allocate_kept(nofrag::Bytes(size), nofrag::to_stream(stream));
    if (!kept.is_null()) [[likely]] {
      return kept.pointer();
    }
  }
  return malloc_slowly(size, device, stream);
}

void* nofrag_malloc_single(size_t size, int device, void* stream) noexcept {
  return allocate(size, device, [&](DeviceAllocator* allocator) {
    return allocator->allocate_single(nofrag::Bytes(size), nofrag::to_stream(stream));
  });
}

// What no cache of this thread takes. `owner` may be null.
[[gnu::noinline, gnu::hot]] static nofrag_status free_slowly(void* block, DeviceAllocator* owner) {
  if (owner != nullptr) {
    const Errc code = owner->free_uncached(VirtAddr(block)).code();
    return code == Errc::kOk ? NOFRAG_OK : unknown_pointer(block);
  }
  Process& process = Process::instance();
  if (block == nullptr || process.exiting()) {
    return NOFRAG_OK;
  }
  if (process.forked() && nofrag::first_time(nofrag::OnceMessage::kFreeAfterFork)) {
    nofrag::log_line(nofrag::LogLevel::kWarning,
                     "memory freed in a forked child stays with the parent (said once)");
  }
  return on_owner(block,
                  [&](DeviceAllocator* device) { return device->free(VirtAddr(block)).code(); });
}

[[gnu::hot]] nofrag_status nofrag_free(void* block) noexcept {
  DeviceAllocator* const owner = Process::owner(VirtAddr(block));
  if (owner != nullptr) [[likely]] {
    const DeviceAllocator::Freed freed = owner->free_kept(VirtAddr(block));
    if (freed == DeviceAllocator::Freed::kYes) [[likely]] {
      return NOFRAG_OK;
    }
    if (freed == DeviceAllocator::Freed::kNobodys) {
      return unknown_pointer(block);
    }
  }
  return free_slowly(block, owner);
}

nofrag_status nofrag_record_stream(void* address, void* stream) noexcept {
  return on_owner(address, [&](DeviceAllocator* owner) {
    const nofrag::StreamId user = nofrag::to_stream(stream);
    const Errc code = owner->record_stream(VirtAddr(address), user).code();
    if (code != Errc::kUnknownPointer) {
      return code;
    }
    // Not the first byte of a block: the slower question.
    const nofrag::Result<nofrag::BlockInfo> block = owner->find(VirtAddr(address));
    return block ? owner->record_stream(block.value().address, user).code() : block.code();
  });
}

nofrag_status nofrag_pin(const void* address) noexcept {
  return on_owner(address,
                  [&](DeviceAllocator* owner) { return owner->pin(VirtAddr(address)).code(); });
}

nofrag_status nofrag_unpin(const void* address) noexcept {
  const nofrag_status status = on_owner(
      address, [&](DeviceAllocator* owner) { return owner->unpin(VirtAddr(address)).code(); });
  if (status == NOFRAG_UNKNOWN_POINTER) {
    nofrag::set_last_error({Errc::kUnknownPointer}, "nothing is pinned at %p", address);
  }
  return status;
}

nofrag_status nofrag_retire_stream(int ordinal, void* stream) noexcept {
  const nofrag::Result<DeviceAllocator*> device = Process::instance().device(ordinal);
  if (!device) {
    return nofrag::to_status(device.code());
  }
  const nofrag::Status retired = device.value()->retire_stream(nofrag::to_stream(stream));
  if (!retired) {
    nofrag::set_last_error(retired.error(),
                           "no event can be recorded on stream %p of device %d: %s",
                           stream,
                           ordinal,
                           to_string(retired.code()));
    return nofrag::to_status(retired.code());
  }
  nofrag::clear_last_error();
  return NOFRAG_OK;
}

nofrag_status nofrag_find(const void* address, nofrag_block_info* info) noexcept {
  nofrag_block_info full{};
  const nofrag_status found = on_owner(address, [&](DeviceAllocator* owner) {
    const nofrag::Result<nofrag::BlockInfo> block = owner->find(VirtAddr(address));
    if (block) {
      const nofrag::BlockInfo& b = block.value();
      full.version = NOFRAG_BLOCK_INFO_VERSION;
      full.address = b.address.pointer();
      full.size = b.size.count();
      full.requested_size = b.requested.count();
      full.stream = nofrag::to_pointer(b.stream);
      full.pool_first = b.pool.first;
      full.pool_second = b.pool.second;
      full.device = owner->device().value();
    }
    return block.code();
  });
  return found == NOFRAG_OK ? nofrag::copy_out(full, info, "nofrag_block_info") : found;
}

nofrag_status nofrag_pool_begin(int device,
                                nofrag_pool pool,
                                nofrag_stream_filter filter,
                                void* user) noexcept {
  const char* const wrong = "its first number is one that nofrag keeps for itself";
  return on_pool(device, pool, "begin", wrong, [&](DeviceAllocator* allocator) {
    return allocator->begin_allocate_to_pool(to_key(pool), [filter, user](nofrag::StreamId stream) {
      return filter == nullptr || filter(nofrag::to_pointer(stream), user) != 0;
    });
  });
}

nofrag_status nofrag_pool_end(int device, nofrag_pool pool) noexcept {
  const char* const wrong = "no nofrag_pool_begin of it is open";
  return on_pool(device, pool, "end", wrong, [&](DeviceAllocator* allocator) {
    return allocator->end_allocate_to_pool(to_key(pool));
  });
}

nofrag_status nofrag_pool_release(int device, nofrag_pool pool) noexcept {
  const char* const wrong = "there is no such pool: it was never begun, or it was released";
  return on_pool(device, pool, "release", wrong, [&](DeviceAllocator* allocator) {
    return allocator->release_pool(to_key(pool));
  });
}

void* nofrag_pool_malloc(size_t size, int device, void* stream, nofrag_pool pool) noexcept {
  return allocate(
      size,
      device,
      [&](DeviceAllocator* allocator) {
        return allocator->allocate_in_pool(
            nofrag::Bytes(size), nofrag::to_stream(stream), to_key(pool));
      },
      &pool);
}

void* nofrag_pool_malloc_single(size_t size, int device, void* stream, nofrag_pool pool) noexcept {
  return allocate(
      size,
      device,
      [&](DeviceAllocator* allocator) {
        return allocator->allocate_single_in_pool(
            nofrag::Bytes(size), nofrag::to_stream(stream), to_key(pool));
      },
      &pool);
}
