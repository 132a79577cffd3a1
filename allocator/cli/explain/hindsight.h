// hindsight: what of a job's history can only be said by one who knows how it went on.
//
// Layer: cli. Owns: values. Units: bytes, events. Threads: pure function. Failure: what the events do not tell is
// left empty or 0. Cost: a few passes over the events and a bounded search, a bit a block and 8 bytes an event.
#pragma once

#include <cstdint>
#include <optional>

#include "diagnose/failure.h"
#include "trace/trace.h"

namespace nofrag {

struct Hindsight {
  // Of what was held beside the base when a third of the work was done, the share that was never freed.
  std::optional<double> growth_kept;
  bool growth_larger =
      false;  // the mean block held so at the end is clearly larger than it was then
  // What was held rose until then by what was never freed: what is replaced on the way did not grow.
  bool rise_kept = false;
  Repeats repeats;
};

// Events up to `end`, where the job failed: the growth is that since `base`, where the base was complete, and the work
// began with the first free.
[[nodiscard]] Hindsight look_back(const Trace& trace, std::uint64_t base, std::uint64_t end);

// What becomes of the blocks that were allocated since `base` and are live at `now`, by the events from there on. What
// is freed when hardly anything is allocated any more goes with the job and counts as staying. What a job does after a
// failure of its own is no proof: a handler gives back what a step would have kept. Empty if there is no such block, or
// nothing is allocated from `now` on but what fails.
[[nodiscard]] std::optional<Fate> look_ahead(const Trace& trace,
                                             std::uint64_t base,
                                             std::uint64_t now);

}  // namespace nofrag
