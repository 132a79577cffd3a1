#include "driver/driver.h"

#include <numeric>

namespace nofrag {
namespace {

constexpr std::array<const char*, kDriverCallCount> kCallNames = {"create",
                                                                  "release",
                                                                  "reserve",
                                                                  "free_range",
                                                                  "map",
                                                                  "unmap",
                                                                  "set_access",
                                                                  "malloc",
                                                                  "free",
                                                                  "event_create",
                                                                  "event_destroy",
                                                                  "event_record",
                                                                  "event_query",
                                                                  "event_synchronize",
                                                                  "stream_wait",
                                                                  "stream_capture_query",
                                                                  "stream_synchronize",
                                                                  "device_synchronize",
                                                                  "mem_info"};

}  // namespace

const char* to_string(DriverCall call) {
  return kCallNames[static_cast<std::size_t>(call)];
}

bool driver_call_from_name(std::string_view name, DriverCall* out) {
  for (std::size_t i = 0; i < kCallNames.size(); ++i) {
    if (name == kCallNames[i]) {
      *out = static_cast<DriverCall>(i);
      return true;
    }
  }
  return false;
}

double DriverLedger::total_microseconds() const {
  return std::accumulate(microseconds.begin(), microseconds.end(), 0.0);
}

DriverLedger DriverLedger::since(const DriverLedger& earlier) const {
  DriverLedger added = *this;
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    added.calls[i] -= earlier.calls[i];
    added.microseconds[i] -= earlier.microseconds[i];
  }
  return added;
}

std::uint64_t DriverLedger::total_calls() const {
  return std::accumulate(calls.begin(), calls.end(), std::uint64_t{0});
}

void Driver::release_context(DeviceOrdinal /*device*/) {}

bool Driver::stream_is(DeviceOrdinal device, StreamId stream, std::uint64_t identity) {
  const Result<bool> capturing = stream_is_capturing(device, stream);
  if (!capturing.ok() || capturing.value()) {
    return false;
  }
  const Result<std::uint64_t> known = stream_identity(device, stream);
  return known.ok() && known.value() == identity;
}

Result<int> Driver::export_handle(HandleId /*handle*/) {
  return Errc::kNotSupported;
}

Result<HandleId> Driver::import_handle(DeviceOrdinal /*device*/, int /*descriptor*/) {
  return Errc::kNotSupported;
}

}  // namespace nofrag
