// Any bytes as a status page of /dev/shm: refused, or safe to print.
#include "stats/status_page.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto page = std::make_unique<nofrag::StatusPage>();
  std::memcpy(static_cast<void*>(page.get()), data, std::min(size, sizeof(nofrag::StatusPage)));
  nofrag::ProcessStatus status;
  if (!nofrag::read_status(page.get(), size, &status)) {
    return 0;
  }
  bool safe = status.device_count <= nofrag::kStatusDevices &&
              std::memchr(status.command.data(), 0, status.command.size()) != nullptr;
  for (std::uint32_t i = 0; safe && i < status.device_count; ++i) {
    const nofrag::DeviceStatus& device = status.devices[i];
    safe = std::isfinite(device.headroom_seconds) &&
           std::memchr(device.last_cause.data(), 0, device.last_cause.size()) != nullptr;
  }
  if (!safe) {
    std::abort();
  }
  return 0;
}
