// StreamClock: how far one stream has come, counted in ticks.
//
// A marker is an event recorded on the stream. Tick n stands for "everything queued before
// marker n was recorded". Work queued now will be covered by marker issued + 1, so a freed
// block is stamped with that number at no cost, and the marker itself is recorded later, only
// if somebody asks. One marker answers for every block stamped up to it.
//
// Layer: stream.
// Units: ticks, starting at 1; 0 = before any work.
// Invariants: completed <= issued; `markers` holds the events of ticks completed+1 .. issued in
// order.
// Threads: none (the device lock). Plain data; Streams (streams.h) makes the moves.
// Decision: docs/decisions/0002-first-engine.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "base/units.h"
#include "driver/driver.h"

namespace nofrag {

using Tick = std::uint64_t;

// What nearly every allocation and free asks or changes is in the first cache line.
struct alignas(64) StreamClock {
  StreamId stream;
  Tick issued = 0;
  Tick completed = 0;
  // Bytes freed on this stream since the last marker: when enough have gathered a marker is worth
  // its price, so that memory is already known to be safe when somebody needs it.
  Bytes freed_since_marker;
  // The thread a per-thread default stream belongs to: only it can record markers there. 0 = any.
  std::uint64_t owner_thread = 0;
  // What the driver calls the stream beside its handle, which it gives to the next stream once this
  // one is destroyed. 0 = the driver cannot tell, or a default stream.
  std::uint64_t identity = 0;
  std::uint32_t frees_since_marker = 0;
  std::uint32_t index =
      0;                // position among the device's clocks; users keep per-stream arrays by it
  bool active = false;  // among Streams' active clocks
  // The driver refuses to record our events on it, as it does for another context's streams: waiting
  // for the device does not wait for it.
  bool foreign = false;
  // Stands for whatever stream has this handle while it is being captured: then it may not be asked who
  // it is, and no marker recorded; nor later, when the handle may mean another. Only a wait for the
  // device completes it.
  bool captured = false;
  // The stream was destroyed without retire(): no marker can be recorded, only the device waited for.
  bool gone = false;
  // No more work can come: the last marker (or a wait for the device) covers all there was.
  bool retired = false;
  // Users' own: up to where they have taken in what is completed.
  Tick taken_in = 0;
  std::deque<EventId> markers;

  // The tick that covers the work queued so far. A retired stream takes no more work.
  [[nodiscard]] Tick stamp() const { return retired ? issued : issued + 1; }
  [[nodiscard]] bool done(Tick tick) const { return tick <= completed; }
  // May there be news of it? Where no marker can be had only a wait for the device tells more.
  [[nodiscard]] bool at_work() const {
    const bool asks = !retired && !gone && !captured && !freed_since_marker.is_zero();
    return asks || !markers.empty() || taken_in != completed;
  }
};
static_assert(offsetof(StreamClock, taken_in) == 64);

}  // namespace nofrag
