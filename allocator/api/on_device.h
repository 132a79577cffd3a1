// A call of the C interface that goes to one device.
//
// Layer: api. Owns: nothing. Threads: any. Failure: that of the call, which sets the last error; that of
// finding the device sets it itself. Cost: none worth naming.
#pragma once

#include "api/edge.h"
#include "runtime/process.h"

namespace nofrag {

// `call(device)` on the device's allocator, made if need be: for settings, which must not be lost.
template <typename Call>
nofrag_status on_device(int ordinal, Call call) {
  const Result<DeviceAllocator*> device = Process::instance().device(ordinal);
  return to_status(device ? call(*device.value()).code() : device.code());
}

// The same if the device has been used; else nothing is to be done: for questions, which must not open a
// context on a device that nobody uses.
template <typename Call>
nofrag_status on_used_device(int ordinal, Call call) {
  const Result<DeviceAllocator*> device = Process::instance().device_if_used(ordinal);
  const bool used = device && device.value() != nullptr;
  return to_status(used ? call(*device.value()).code() : device.code());
}

}  // namespace nofrag
