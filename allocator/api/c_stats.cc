// The C interface: limits, statistics, out-of-memory reports, debugging.
#include "api/edge.h"
#include "runtime/process.h"

using nofrag::Bytes;
using nofrag::DeviceAllocator;
using nofrag::Process;
using nofrag::Result;

namespace {

// `call` on the device's allocator, made if need be: for settings, which must not be lost.
template <typename Call>
nofrag_status on_device(int ordinal, Call call) {
  const Result<DeviceAllocator*> device = Process::instance().device(ordinal);
  if (device) {
    call(device.value());
  }
  return nofrag::to_status(device.code());
}

// `call` if the device has been used; else nothing is to be done: for questions, which must not
// open a context on a device that nobody uses.
template <typename Call>
nofrag_status on_used_device(int ordinal, Call call) {
  const Result<DeviceAllocator*> device = Process::instance().device_if_used(ordinal);
  if (device && device.value() != nullptr) {
    call(device.value());
  }
  return nofrag::to_status(device.code());
}

template <typename Render>
nofrag_status report_text(Render render, char* buffer, size_t capacity, size_t* needed) {
  Process& process = Process::instance();
  if (const nofrag::Status started = process.start(); !started) {
    return nofrag::to_status(started.code());
  }
  return nofrag::copy_text(render(process.stats_report()), buffer, capacity, needed);
}

}  // namespace

nofrag_status nofrag_set_limit(int device, uint64_t bytes) noexcept {
  return on_device(device, [&](DeviceAllocator* allocator) { allocator->set_limit(Bytes(bytes)); });
}

nofrag_status nofrag_set_memory_fraction(int device, double fraction) noexcept {
  // Written so that a NaN is refused too.
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    return nofrag::invalid_argument("a memory fraction is a number from 0 to 1");
  }
  return on_device(device,
                   [&](DeviceAllocator* allocator) { allocator->set_memory_fraction(fraction); });
}

nofrag_status nofrag_trim(int device, uint64_t keep, uint64_t* given_back) noexcept {
  Bytes trimmed;
  const nofrag_status status = on_used_device(
      device, [&](DeviceAllocator* allocator) { trimmed = allocator->trim(Bytes(keep)); });
  if (given_back != nullptr) {
    *given_back = trimmed.count();
  }
  return status;
}

nofrag_status nofrag_get_stats(int device, nofrag_device_stats* stats) noexcept {
  nofrag::DeviceStats numbers;
  const nofrag_status status =
      on_used_device(device, [&](DeviceAllocator* allocator) { numbers = allocator->stats(); });
  return status == NOFRAG_OK
             ? nofrag::copy_out(nofrag::to_c_stats(numbers), stats, "nofrag_device_stats")
             : status;
}

nofrag_status nofrag_reset_peaks(int device) noexcept {
  return on_used_device(device, [](DeviceAllocator* allocator) { allocator->reset_peaks(); });
}

nofrag_status nofrag_stats_text(char* buffer, size_t capacity, size_t* needed) noexcept {
  return report_text(nofrag::stats_text, buffer, capacity, needed);
}

nofrag_status nofrag_stats_json(char* buffer, size_t capacity, size_t* needed) noexcept {
  return report_text(nofrag::stats_json, buffer, capacity, needed);
}

nofrag_status nofrag_get_oom_report(int device, nofrag_oom_report* report) noexcept {
  nofrag::OomReport numbers;
  const nofrag_status status =
      on_used_device(device, [&](DeviceAllocator* allocator) { numbers = allocator->last_oom(); });
  return status == NOFRAG_OK
             ? nofrag::copy_out(nofrag::to_c_report(device, numbers), report, "nofrag_oom_report")
             : status;
}

nofrag_status nofrag_oom_message(int device,
                                 char* buffer,
                                 size_t capacity,
                                 size_t* needed) noexcept {
  std::string message;
  const nofrag_status status = on_used_device(device, [&](DeviceAllocator* allocator) {
    if (!allocator->last_oom().requested.is_zero()) {
      message = allocator->last_oom_message();
    }
  });
  return status == NOFRAG_OK ? nofrag::copy_text(message, buffer, capacity, needed) : status;
}

nofrag_status nofrag_check(int device) noexcept {
  return on_used_device(device, [](DeviceAllocator* allocator) { allocator->check(); });
}
