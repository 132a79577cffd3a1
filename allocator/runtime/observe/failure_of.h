// failure_of: what nofrag knows about its own failure, in the form that diagnose judges.
//
// Layer: runtime. Owns: nothing; `timeline` must outlive the Failure. Units: bytes. Threads: any.
// Failure: none. Cost: a walk over the live blocks.
#pragma once

#include "device/device_allocator.h"
#include "diagnose/failure.h"

namespace nofrag {

[[nodiscard]] Failure failure_of(const OomReport& report,
                                 const DeviceAllocator& device,
                                 const Timeline* timeline);
// The most that live memory can be: what is held, what the driver has, what the limit allows.
[[nodiscard]] Bytes capacity_of(const DeviceStats& stats,
                                const DeviceInfo& info,
                                std::optional<Bytes> driver_free);

}  // namespace nofrag
