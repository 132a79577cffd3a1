// TraceDigest: what a trace says about the job itself, whatever the allocator.
//
// Owns: the numbers of a report's tables and histograms. Layer: cli. Units: bytes, microseconds from the trace's
// first event. A block that is never freed lives to the last event. Threads: none. Failure: none.
// Cost: two passes over the events, 16 bytes a block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/trace.h"

namespace nofrag {

struct TraceDigest {
  // Blocks that belong together: of one call site, or of one size where sites are not known.
  struct Group {
    std::string name;
    std::uint64_t allocations = 0;
    std::uint64_t blocks_at_peak = 0;
    Bytes bytes_at_peak;
    Bytes largest;
    std::vector<std::string>
        frames;  // one call stack that led there: that of its largest at the peak
  };
  struct Block {
    std::uint64_t id = 0;
    std::uint64_t size = 0;
    std::uint64_t stream = 0;
    std::uint64_t from_us = 0;
    std::uint64_t to_us = 0;
    bool freed = false;
    std::string site;
    std::vector<std::string> frames;  // innermost first; empty where only the site is known
  };
  struct Bin {
    std::uint64_t from = 0;  // to twice that
    std::uint64_t blocks = 0;
    Bytes bytes;
  };
  // The highest and the last value of each of `buckets` runs of consecutive events.
  struct Bucket {
    std::uint64_t time_us = 0;  // of its last event
    Bytes highest;
    Bytes last;
  };

  std::uint64_t peak_events = 0;  // events done when live is highest for the first time
  bool by_site = false;
  std::vector<Group> groups;   // most bytes at the peak first
  std::vector<Block> biggest;  // largest first
  std::vector<Block> longest;  // longest first, larger first among equals
  std::vector<Bin> sizes;
  std::vector<Bin> lifetimes;
  std::vector<Bucket> live;
  std::vector<std::string> ranges_at_peak;  // of the program's own, outermost first
};

TraceDigest digest_trace(const Trace& trace, std::uint64_t events_a_bucket, std::size_t rows);

}  // namespace nofrag
