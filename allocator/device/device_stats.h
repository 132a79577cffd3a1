// DeviceStats and OomReport: what one device allocator knows about itself, as plain numbers.
//
// Layer: device. Units: bytes; counts since creation. "peak_" since creation or reset_peaks().
// Invariant, checked by DeviceAllocator::check():
//   requested <= live <= allocated <= mapped_in_use <= reserved <= limit at the time of growth
//   allocated == live + pending;  reserved == mapped_in_use + free_handles;
//   reserved == the sum of all handles held from the driver.
#pragma once

#include <array>

#include "base/units.h"

namespace nofrag {

// The out-of-memory ladder, in the order it is climbed. Numbers are those of docs/design.md; the
// rungs between kPressureCallbacks and kFailed are reserved for later releases.
enum class Rung : unsigned char {
  kOwnFree = 1,            // free memory this stream may use at once
  kOwnMappable = 2,        // free memory of the same heap, mapped at new addresses
  kGrow = 3,               // new physical memory from the driver
  kOtherPools = 4,         // idle handles of other heaps and pools
  kDeviceWait = 5,         // memory other streams just freed, made safe by a device-side wait
  kPressureCallbacks = 6,  // callbacks that can give memory back (C API, frameworks)
  kFailed = 10,            // out of memory
};
inline constexpr std::size_t kRungCount = 11;

struct DeviceStats {
  Bytes requested;  // what live blocks were asked for
  Bytes live;       // the same, each rounded up to 512 B
  Bytes kept;       // freed, and kept by threads for their next requests; not counted as allocated
  Bytes pending;    // freed by the caller, but another stream may still touch it
  Bytes allocated;  // live + pending
  Bytes mapped_in_use;     // handles in which at least one byte is allocated, and pinned ones
  Bytes reserved;          // physical memory held from the driver
  Bytes limit;             // most that reserved may be; kNoLimit = no limit of ours
  Bytes largest_free_run;  // longest contiguous mapped free range
  Bytes free_handles;      // the other handles: movable and returnable
  Bytes free_ends;         // free bytes at the front or back of used handles that are not pinned
  Bytes composable;        // the most that the ends of two used handles can add to one block
  Bytes stranded;          // free bytes in the middle of used handles, and all of pinned ones
  Bytes pinned;            // handles that pins hold where they are
  Bytes peak_live;
  Bytes peak_allocated;
  Bytes peak_reserved;
  std::uint64_t live_blocks = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t failed_allocations = 0;
  std::uint64_t pools = 0;  // including the default pool
  // How often each rung served (kFailed: ended) a request; index by Rung.
  std::array<std::uint64_t, kRungCount> rungs{};
};

// Live blocks of one size.
struct HeldSize {
  Bytes size;
  std::uint64_t blocks = 0;
};

// The numbers of the last failed allocation, taken at the moment of failure.
struct OomReport {
  Bytes requested;
  DeviceStats stats;
  Bytes driver_free;  // by the driver's own count; 0 if it could not be asked
  Bytes driver_total;
  bool limit_reached = false;  // our limit refused it, not the driver
  StreamId stream;
};

}  // namespace nofrag
