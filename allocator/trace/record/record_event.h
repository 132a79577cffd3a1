// RecordEvent: one event of a live process, as threads hand it to the recorder and as a reader finds it.
//
// Owns: nothing. Layer: trace. Units: bytes; ticks of the recording's clock (clock.h). `kind` is an enum
// nofrag_trace_record_kind; what each kind fills in stands there (include/nofrag/trace_format.h); the rest is 0.
// Threads: a plain value. Failure: none. Cost: one cache line.
#pragma once

#include <cstdint>

namespace nofrag {

struct RecordEvent {
  std::uint64_t tick;
  std::uint64_t address;
  std::uint64_t size;
  std::uint64_t stream;
  std::uint64_t pool_first;
  std::uint64_t pool_second;
  std::uint32_t slack;
  std::uint32_t detail;
  std::uint32_t site;
  std::uint16_t thread;
  std::uint8_t device;
  std::uint8_t kind;
};
static_assert(sizeof(RecordEvent) == 64);

// One moment by both clocks.
struct ClockPair {
  std::uint64_t tick = 0;
  std::uint64_t ns = 0;
};

}  // namespace nofrag
