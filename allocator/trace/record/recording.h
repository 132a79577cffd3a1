// Recording: what a trace of a live process tells beyond its allocations and frees.
//
// Owns: plain data beside a Trace (trace/trace.h), whose blocks and events it numbers alike.
// Layer: trace. Units: bytes, microseconds on the trace's clock.
// Invariants: `blocks` has an entry a block, `event_threads` one an event; notes and marks are in time order, and
// `before` is the number of the trace's events that come before them.
// Threads: immutable once read. Failure: none. Cost: 40 bytes a block, 2 an event, 72 a note.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/units.h"
#include "trace/record/record_event.h"

namespace nofrag {

struct Recording {
  static constexpr std::uint32_t kNoBlock = UINT32_MAX;

  struct Block {
    std::uint64_t address = 0;
    std::uint64_t pool_first = 0;  // 0, 0: the default pool
    std::uint64_t pool_second = 0;
    std::uint32_t slack = 0;  // bytes beyond the size rounded up to 512
    std::uint32_t site = 0;   // 0: not known
    std::uint16_t thread = 0;
    std::uint8_t device = 0;
    bool existing = false;  // live when the recording began
  };
  // Everything that is neither an allocation nor a free: what the event says stands in trace_format.h.
  struct Note {
    std::uint64_t time_us = 0;
    std::uint64_t before = 0;
    std::uint32_t block = kNoBlock;  // of RECORD_STREAM and FREE_COMPLETED: the one it is about
    std::uint32_t stream = 0;        // the trace's number of event.stream
    RecordEvent event{};
  };
  struct Mark {
    std::uint64_t time_us = 0;
    std::uint64_t before = 0;
    std::uint16_t thread = 0;
    std::string text;
  };
  // A beginning or an end of a range of the program's own (trace_format.h: RANGES). ranges.h pairs them.
  struct RangeMoment {
    std::uint64_t time_us = 0;
    std::uint16_t thread = 0;
    std::uint8_t kind = 0;
    std::uint64_t key = 0;
    std::string name;
  };
  struct Thread {
    std::uint64_t kernel_id = 0;
    std::string name;
  };

  struct Module {
    std::string path;
    std::string build_id;  // bytes
  };
  // Where an allocation was made, as the recorder saw it (trace_format.h: STACKS); innermost frame first.
  struct Stack {
    struct Native {
      std::uint32_t module = 0;
      std::uint64_t offset = 0;
    };
    struct Python {
      std::string file;
      std::uint64_t line = 0;
      std::string function;
    };
    std::uint64_t flags = 0;
    std::vector<Native> native;
    std::vector<Python> python;
  };

  std::map<std::string, std::string> info;
  std::vector<Block> blocks;
  std::vector<std::uint16_t> event_threads;
  std::vector<Note> notes;
  std::vector<Mark> marks;
  std::vector<RangeMoment> range_moments;
  std::map<std::uint16_t, Thread> threads;
  std::map<std::uint32_t, std::vector<std::string>> sites;  // frames as texts, innermost first
  std::map<std::uint32_t, Module> modules;
  std::map<std::uint32_t, Stack> stacks;        // by site
  std::map<std::uint8_t, Bytes> peak_reserved;  // by device, as far as the recording shows it
  std::map<std::uint8_t, Bytes> peak_held;      // by device: live blocks with all they had
  std::uint64_t lost = 0;                       // events that the recorder could not keep
  bool whole = false;                           // it has its end
};

}  // namespace nofrag
