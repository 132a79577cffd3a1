// MemoryWatch: who is told when physical memory comes, goes, or changes its addresses, and when a free that
// had to wait is done. A framework's own statistics and traces are made of it.
//
// Unlike an EventSink it hears nothing of blocks that are simply allocated and freed, so that threads may go
// on keeping blocks for themselves while it listens.
// Owns: the function. Layer: device.
// Units: Bytes; `reserved` is what the device holds from the driver once the event has happened.
// Invariants: an address is unmapped as often as it was mapped, with the same size and handle; of a handle the
// first mapping and the last unmapping are marked.
// Threads: called under the device's mutex, in order; it must not call the allocator, nor block.
// Failure: none; no exception may leave the function.
#pragma once

#include <cstdint>
#include <functional>

#include "base/units.h"

namespace nofrag {

struct MemoryEvent {
  enum class Kind : unsigned char {
    kCreated,       // physical memory was taken from the driver: size
    kReleased,      // and given back
    kMapped,        // it can be reached at address; only: there was no other mapping of the handle
    kUnmapped,      // no longer; only: there is no other mapping left
    kFreeDeferred,  // the block at address was freed, but another stream may still touch it
    kFreeCompleted  // now no stream can: only for those that were deferred
  };
  Kind kind = Kind::kCreated;
  bool only = false;
  DeviceOrdinal device;
  VirtAddr address;
  Bytes size;
  std::uint64_t handle = 0;
  Bytes reserved;
};

class MemoryWatch {
 public:
  using Listener = std::function<void(const MemoryEvent&)>;

  void set(Listener listener) { listener_ = std::move(listener); }
  void tell(const MemoryEvent& event) const {
    if (listener_) [[unlikely]] {
      listener_(event);
    }
  }

 private:
  Listener listener_;
};

}  // namespace nofrag
