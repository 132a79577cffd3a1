// EventSink: the one hole through which the core tells the outside what happened.
//
// The core (heap, device) emits AllocatorEvents; tracing, NVTX or a test installs an EventSink. The
// core never includes trace/. With no sink installed an emit costs one predictable branch.
// Layer: base. Units: Bytes, VirtAddr; stamps are the sink's own. Threads: on_event is called under the
// device lock, so a sink sees one device's events in order; one that is concurrent() is also called
// without it, by threads that serve themselves from their caches, and orders events by their stamps. A
// sink must not call back into the allocator, allocate device memory or wait for a thread that may.
// Ownership: the installer keeps the sink alive while it is installed. Failure: none.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace nofrag {

enum class EventKind : unsigned char {
  kAlloc,
  kFreeRequested,  // the caller gave the block up
  kFreeCompleted,  // no stream can still touch it; detail = 1 if it was waited for
  kRecordStream,
  kMap,  // physical memory became reachable at address
  kUnmap,
  kCreate,       // physical memory taken from the driver
  kRelease,      // and given back
  kRung,         // an out-of-memory ladder rung was taken; size = request, detail = rung number
  kOutOfMemory,  // size = request; address = the limit of ours that refused it, 0: the driver did;
                 // detail = whole MiB that the driver had free, plus 1 (0: not known)
  kCompose,      // a view was made; size = what it serves, detail = handles in it
  kExisting,     // a block that was live when the sink was installed
  kPoolBegin,    // these three: the pool's name alone
  kPoolEnd,
  kPoolRelease,
  kRetireStream,  // nothing more comes on the stream
  kTrim,          // size = what was kept
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
  Bytes requested{};        // kAlloc, kExisting: what was asked for; 0 = not known
  std::uint64_t stamp = 0;  // when it happened, by EventSink::stamp(); 0: now
};

class EventSink {
 public:
  virtual void on_event(const AllocatorEvent& event) = 0;

  // May on_event be called by several threads at once? Then threads go on keeping blocks for themselves
  // while the sink is installed.
  [[nodiscard]] virtual bool concurrent() const { return false; }
  // A number that is higher the later it is taken, by whatever thread; 0 if the sink needs none.
  [[nodiscard]] virtual std::uint64_t stamp() const { return 0; }

  // Around work that takes driver calls: begun and ended by one thread, nested. `name` is static.
  virtual void on_work_begin(const char* /*name*/) {}
  virtual void on_work_end() {}

 protected:
  EventSink() = default;
  EventSink(const EventSink&) = default;
  EventSink& operator=(const EventSink&) = default;
  ~EventSink() = default;
};

}  // namespace nofrag
