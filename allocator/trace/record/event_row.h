// fill_row: an event of the allocator as a recording has it.
//
// Owns: nothing. Layer: trace. Units: bytes; ticks of the recording's clock.
// Invariants: a block's events carry what was asked for, and how much more the block has than that, rounded up.
// Threads: a pure function. Failure: none. Cost: one cache line written.
#pragma once

#include <cstdint>

#include "base/event_sink.h"
#include "trace/record/record_event.h"

namespace nofrag {

// `site`: the number of its call stack, 0 if that is not kept.
void fill_row(const AllocatorEvent& event,
              std::uint64_t tick,
              std::uint16_t thread,
              std::uint32_t site,
              RecordEvent* row);

}  // namespace nofrag
