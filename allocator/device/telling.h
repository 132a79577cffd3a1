// Telling: what a device allocator tells the outside: every event to the sink of a trace, memory and waiting
// frees to the watch of a framework.
//
// Owns: nothing but the watch's function. Layer: device (private header).
// Invariants: with neither installed a call costs one predictable branch.
// Threads: under the device's mutex. Failure: none.
#pragma once

#include "base/event_sink.h"
#include "device/frameworks/memory_watch.h"
#include "device/pool.h"
#include "heap/block.h"
#include "physical/physical_memory.h"

namespace nofrag {

struct Telling {
  explicit Telling(DeviceOrdinal ordinal) : device(ordinal) {}

  void emit(
      EventKind kind, VirtAddr address, Bytes size, StreamId stream, std::uint32_t detail = 0) {
    if (sink != nullptr) [[unlikely]] {
      sink->on_event({kind, device, address, size, stream, 0, 0, detail});
    }
  }
  void emit(EventKind kind, const Block& block, StreamId stream, std::uint32_t detail = 0) {
    if (sink != nullptr) [[unlikely]] {
      const PoolKey pool = block.pool->key;
      sink->on_event({kind,
                      device,
                      block.address,
                      block.size,
                      stream,
                      pool.first,
                      pool.second,
                      detail,
                      block.requested});
    }
  }
  void emit(EventKind kind, PoolKey pool) {
    if (sink != nullptr) [[unlikely]] {
      sink->on_event({kind, device, VirtAddr{}, Bytes{}, StreamId{}, pool.first, pool.second, 0});
    }
  }
  // Lives as long as one piece of slow work.
  class Work {
   public:
    Work(EventSink* sink, const char* name) : sink_(sink) {
      if (sink_ != nullptr) [[unlikely]] {
        sink_->on_work_begin(name);
      }
    }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;
    ~Work() {
      if (sink_ != nullptr) [[unlikely]] {
        sink_->on_work_end();
      }
    }

   private:
    EventSink* sink_;
  };
  void tell(MemoryEvent::Kind kind,
            const PhysicalMemory& physical,
            VirtAddr address,
            Bytes size,
            HandleId handle = {},
            bool only = false) const {
    watch.tell({kind, only, device, address, size, handle.raw, physical.reserved()});
  }

  EventSink* sink = nullptr;
  const DeviceOrdinal device;
  MemoryWatch watch;
};

}  // namespace nofrag
