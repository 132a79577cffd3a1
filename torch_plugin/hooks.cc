#include "torch_plugin/hooks.h"

#include <cstdio>

#include "config/human_bytes.h"
#include "runtime/last_error.h"
#include "runtime/log.h"
#include "runtime/process.h"
#include "torch_plugin/torch_error.h"

namespace {

nofrag_pool to_pool(NofragTorchPoolId pool) {
  return {pool.first, pool.second};
}

void log_failure(const char* hook, nofrag_status status) {
  if (status != NOFRAG_OK) {
    nofrag::log_line(nofrag::LogLevel::kWarning, "%s: %s", hook, nofrag::last_error().text);
  }
}

// As PyTorch's own message begins, for the tools that look for it; then our numbers.
[[gnu::noinline]] void format_oom(char* text, std::size_t capacity, std::size_t size, int device) {
  nofrag_oom_report report{};
  report.struct_size = sizeof report;
  // Ours is the last error of this thread, and asking for the report must not replace it.
  const nofrag::LastError failure = nofrag::last_error();
  const nofrag_status known = nofrag_get_oom_report(device, &report);
  if (known == NOFRAG_OK && report.driver_total_bytes != 0) {
    std::snprintf(text,
                  capacity,
                  "CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of "
                  "which %s is free. %s",
                  nofrag::torch_bytes(nofrag::Bytes(size)).c_str(),
                  device,
                  nofrag::torch_bytes(nofrag::Bytes(report.driver_total_bytes)).c_str(),
                  nofrag::torch_bytes(nofrag::Bytes(report.driver_free_bytes)).c_str(),
                  failure.text);
  } else {
    std::snprintf(text,
                  capacity,
                  "CUDA out of memory. Tried to allocate %s. %s",
                  nofrag::torch_bytes(nofrag::Bytes(size)).c_str(),
                  failure.text);
  }
}

[[gnu::noinline]] void throw_failed_allocation(std::size_t size, int device) {
  const char* reason = nullptr;
  const nofrag_status status = nofrag_last_error(&reason);
  char text[nofrag::LastError::kTextBytes + 512];
  if (status == NOFRAG_OUT_OF_MEMORY || status == NOFRAG_LIMIT) {
    format_oom(text, sizeof text, size, device);
    nofrag::throw_torch_error(nofrag::TorchException::kOutOfMemory, text);
  } else {
    std::snprintf(text, sizeof text, "nofrag: %s", reason);
    nofrag::throw_torch_error(nofrag::TorchException::kError, text);
  }
}

[[gnu::noinline]] nofrag::Status begin_pool(int ordinal,
                                            NofragTorchPoolId pool,
                                            const std::function<bool(void*)>& filter) {
  const nofrag::Result<nofrag::DeviceAllocator*> device =
      nofrag::Process::instance().device(ordinal);
  if (!device) {
    return device.error();
  }
  const nofrag::Status begun = device.value()->begin_allocate_to_pool(
      {pool.first, pool.second}, [filter](nofrag::StreamId stream) {
        return !filter || filter(nofrag::VirtAddr(stream.value()).pointer());
      });
  if (!begun) {
    nofrag::set_last_error(begun.error(),
                           "begin of pool {%llu, %llu} on device %d: %s",
                           pool.first,
                           pool.second,
                           ordinal,
                           to_string(begun.code()));
  }
  return begun;
}

}  // namespace

// The frames below that throw hold no object with a destructor (torch_error.h says why).

void* nofrag_torch_alloc(std::size_t size, int device, void* stream) {
  void* const block = nofrag_malloc(size, device, stream);
  if (block == nullptr && size != 0) [[unlikely]] {
    throw_failed_allocation(size, device);
  }
  return block;
}

void nofrag_torch_begin_allocate_to_pool(
    int device,
    NofragTorchPoolId pool,
    // NOLINTNEXTLINE(performance-unnecessary-value-param): PyTorch's
    std::function<bool(void*)> filter) {
  if (!begin_pool(device, pool, filter)) {
    nofrag::throw_torch_error(nofrag::TorchException::kError, nofrag::last_error().text);
  }
}

void nofrag_torch_free(void* block, std::size_t size, int device, void* /*stream*/) noexcept {
  const nofrag_status status = nofrag_free(block);
  if (status == NOFRAG_UNKNOWN_POINTER) {
    if (nofrag::first_time(nofrag::OnceMessage::kForeignFree)) {
      nofrag::log_line(nofrag::LogLevel::kWarning,
                       "PyTorch freed %p (%zu bytes, device %d), which is not a block of nofrag; "
                       "ignored (said once)",
                       block,
                       size,
                       device);
    }
  } else if (status != NOFRAG_FORKED) {
    log_failure("nofrag_torch_free", status);
  }
}

void nofrag_torch_init(int /*device_count*/) noexcept {
  // The first call comes while the allocator object is being made; a driver that cannot be opened
  // is reported here, before the first allocation throws.
  int count = 0;
  log_failure("nofrag_torch_init", nofrag_device_count(&count));
}

void nofrag_torch_reset() noexcept {
  int count = 0;
  if (nofrag_device_count(&count) != NOFRAG_OK) {
    return;
  }
  for (int device = 0; device < count; ++device) {
    log_failure("nofrag_torch_reset", nofrag_trim(device, 0, nullptr));
  }
}

void nofrag_torch_memory_fraction(double fraction, int device) noexcept {
  log_failure("nofrag_torch_memory_fraction", nofrag_set_memory_fraction(device, fraction));
}

void* nofrag_torch_base_alloc(void* address, std::size_t* size) noexcept {
  nofrag_block_info info{};
  info.struct_size = sizeof info;
  if (address == nullptr || nofrag_find(address, &info) != NOFRAG_OK) {
    return address;
  }
  if (size != nullptr) {
    *size = info.size;
  }
  return info.address;
}

void nofrag_torch_record_stream(void* address, void* stream) noexcept {
  // PyTorch passes every tensor's storage, also ones that other allocators own.
  if (address == nullptr) {
    return;
  }
  const nofrag_status status = nofrag_record_stream(address, stream);
  if (status != NOFRAG_UNKNOWN_POINTER && status != NOFRAG_FORKED && status != NOFRAG_EXITING) {
    log_failure("nofrag_torch_record_stream", status);
  }
}

void nofrag_torch_end_allocate_to_pool(int device, NofragTorchPoolId pool) noexcept {
  log_failure("nofrag_torch_end_allocate_to_pool", nofrag_pool_end(device, to_pool(pool)));
}

void nofrag_torch_release_pool(int device, NofragTorchPoolId pool) noexcept {
  log_failure("nofrag_torch_release_pool", nofrag_pool_release(device, to_pool(pool)));
}
