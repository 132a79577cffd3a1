// The counters of memory that passes nofrag by: the preload counts, statistics and metrics read.
//
// Owns: a row of counters for each device, for good. Layer: runtime. Units: bytes. Invariant: a kind is what was noted
// for it, never below zero. Threads: any; no locks, so kinds and total may be a moment apart. Failure: devices beyond
// the known ones are not counted. Cost: two atomic additions.
#pragma once

#include <cstdint>
#include <vector>

#include "stats/passed_on.h"

namespace nofrag {

void note_passed_on(int device, PassedOnKind kind, std::int64_t difference);
void note_uncounted(int device);
// Devices on which there ever was any, by ordinal.
[[nodiscard]] std::vector<PassedOn> passed_on();

}  // namespace nofrag
