// ranges_of: the ranges that a recorded program marked (NVTX), each with its beginning and its end.
//
// Owns: nothing. Layer: trace. Units: microseconds on the trace's clock.
// Invariants: in the order of their beginnings; a range that the recording does not see end lasts to `end_us`; an
// end without a beginning is left out. Threads: a pure function. Failure: none. Cost: one pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/record/recording.h"

namespace nofrag {

struct RecordedRange {
  std::uint64_t begin_us = 0;
  std::uint64_t end_us = 0;
  std::uint16_t thread = 0;
  bool of_thread = true;  // pushed and popped; else started and ended, perhaps by two threads
  std::string name;
};

std::vector<RecordedRange> ranges_of(const Recording& recording, std::uint64_t end_us);

}  // namespace nofrag
