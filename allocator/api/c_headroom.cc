// The C interface: headroom.
#include <nofrag/headroom.h>

#include "api/edge.h"
#include "runtime/process.h"

using nofrag::DeviceAllocator;
using nofrag::Process;
using nofrag::Result;

nofrag_status nofrag_get_headroom(int device, nofrag_headroom* headroom) noexcept {
  Process& process = Process::instance();
  const Result<DeviceAllocator*> used = process.device(device);
  if (!used) {
    return nofrag::to_status(used.code());
  }
  return nofrag::copy_out(
      nofrag::to_c_headroom(device, process.observer().headroom_now(*used.value())),
      headroom,
      "nofrag_headroom");
}

nofrag_status nofrag_set_headroom_callback(nofrag_headroom_callback callback,
                                           void* user,
                                           uint64_t below_bytes,
                                           double below_seconds) noexcept {
  Process& process = Process::instance();
  if (const nofrag::Status started = process.start(); !started) {
    return nofrag::to_status(started.code());
  }
  // Written so that a NaN is refused too.
  if (!(below_seconds >= 0)) {
    return nofrag::invalid_argument("below_seconds is a number that is not negative");
  }
  process.observer().set_headroom_callback(callback, user, below_bytes, below_seconds);
  return NOFRAG_OK;
}
