// MemorySpan, PoolBlock, MemoryPart, ImportedPart: what a framework is told of memory, and names it by.
// Import: another process's memory as it is mapped here.
//
// Layer: device. Plain values.
// Units: Bytes; spans of blocks are multiples of 512 B.
// Threads: values. Failure: none.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"

namespace nofrag {

struct MemorySpan {
  enum class State : unsigned char {
    kLive,     // a caller's block
    kKept,     // freed, and kept by a thread
    kPending,  // freed, but another stream may still touch it
    kFree,
    kUnusable  // the driver failed to make it usable, and to take it back
  };
  State state = State::kFree;
  VirtAddr address;
  Bytes size;
  Bytes requested;  // live ones
  StreamId stream;  // live and pending ones
  std::uint64_t pool_first = 0;
  std::uint64_t pool_second = 0;
};

// A block as a framework remembers it.
struct PoolBlock {
  VirtAddr address;
  Bytes requested;
  StreamId stream;
};

// Physical memory under a block: a handle, where it is mapped there, and its whole size.
struct MemoryPart {
  std::uint64_t handle = 0;
  VirtAddr address;
  Bytes size;
};

struct ImportedPart {
  int descriptor = -1;
  Bytes size;
};

struct Import {
  struct Part {
    VirtAddr address;
    Bytes size;
  };
  Bytes size;                // of its address range
  std::vector<Part> mapped;  // those that are not undone yet
};

}  // namespace nofrag
