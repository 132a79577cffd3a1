// EventSink: the one hole through which the core tells the outside what happened.
//
// The core (heap, device) emits AllocatorEvents; tracing, NVTX or a test installs an EventSink. The
// core never includes trace/. With no sink installed an emit costs one predictable branch.
// Layer: base. Units: Bytes, VirtAddr. Threads: emit() is called under the device lock, so a sink
// sees one device's events in order; it must not call back into the allocator, allocate device
// memory or block. Ownership: the installer keeps the sink alive while it is installed.
#pragma once

#include "base/units.h"

namespace nofrag {

enum class EventKind : unsigned char {
  kAlloc,
  kFreeRequested,  // the caller gave the block up
  kFreeCompleted,  // no stream can still touch it; the bytes are reusable
  kRecordStream,
  kMap,  // physical memory became reachable at address
  kUnmap,
  kCreate,       // physical memory taken from the driver
  kRelease,      // and given back
  kRung,         // an out-of-memory ladder rung was taken; size = request, detail = rung number
  kOutOfMemory,  // size = request
};

struct AllocatorEvent {
  EventKind kind = EventKind::kAlloc;
  DeviceOrdinal device;
  VirtAddr address;
  Bytes size;
  StreamId stream;
  // The pool of a block's events; {0, 0} is the default pool and everything that has none.
  std::uint64_t pool_first = 0;
  std::uint64_t pool_second = 0;
  std::uint32_t detail = 0;
};

class EventSink {
 public:
  virtual void on_event(const AllocatorEvent& event) = 0;

 protected:
  EventSink() = default;
  EventSink(const EventSink&) = default;
  EventSink& operator=(const EventSink&) = default;
  ~EventSink() = default;
};

}  // namespace nofrag
