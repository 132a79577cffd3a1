// Trace: one recorded run of allocations and frees, in memory, checked and ready to replay.
//
// Owns: the events and the tables they refer to. Layer: trace (depends on base only). Units: times
// are microseconds on the recorder's clock; sizes are bytes as requested; "live" counts each size
// rounded up to 512 B, an empty allocation counting nothing. Blocks are numbered densely in the
// order of their allocation, streams in the order of their first event.
// Invariants, established by TraceBuilder: times never fall; every block is allocated once, freed
// at most once, and after its allocation; allocations + frees == events.size(); ids and sizes have
// one entry a block; at least one event, unless a recording tells of failed requests alone (`marks`). Threads: immutable once built. Cost: 24 bytes an event, 8 a block (16 where
// ids are not simply 0, 1, 2, ...).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace nofrag {

struct Recording;  // trace/record/recording.h

inline constexpr Bytes kTraceRounding{512};

struct TraceEvent {
  std::uint64_t time_us;
  std::uint64_t size;   // as requested; of a free, the size of the block it frees
  std::uint32_t block;  // 0-based number of the allocation
  std::uint32_t stream_and_op;

  static constexpr std::uint32_t kFreeBit = std::uint32_t{1} << 31;
  [[nodiscard]] bool is_free() const { return (stream_and_op & kFreeBit) != 0; }
  [[nodiscard]] std::uint32_t stream() const { return stream_and_op & ~kFreeBit; }
};

enum class TraceFormat : unsigned char {
  kAuto,
  kCsv,
  kNofrag,
  kTorch,       // torch.cuda.memory._dump_snapshot
  kKineto,      // torch.profiler, events [memory]
  kTimeline,    // torch.profiler export_memory_timeline
  kRmm,         // RMM's logging_resource_adaptor
  kNsys,        // Nsight Systems, exported to SQLite
  kUmpire,      // Umpire replay log
  kMinimalloc,  // MiniMalloc instance
  kPerfetto,    // written only
};

// "auto", "csv", "nofrag", "torch", ...: as --format takes them.
std::string_view to_string(TraceFormat format);

// What a recorder saw beside allocations and frees.
struct TraceMark {
  enum class Kind : unsigned char { kOutOfMemory };
  Kind kind = Kind::kOutOfMemory;
  std::uint64_t event = 0;  // happened before the event of this index
  std::uint64_t time_us = 0;
  std::uint64_t requested = 0;              // bytes
  std::optional<std::uint64_t> free_bytes;  // what the driver had left, where the recorder says so
  // What the allocator held from the driver then; the limit that the process had set itself, where that refused it.
  std::optional<std::uint64_t> reserved_bytes{};
  std::optional<std::uint64_t> limit_bytes{};
};

struct Trace {
  TraceFormat format = TraceFormat::kCsv;  // what it was read from
  std::vector<TraceEvent> events;
  std::vector<std::uint64_t> streams;  // the recorder's stream names, by stream number
  std::vector<std::uint64_t> ids;      // the recorder's block names; empty if block n is named n
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  Bytes peak_live;
  Bytes live_at_end;
  std::shared_ptr<const Recording> recording;  // what a recording of a live process tells beside

  // What only some formats know.
  std::uint64_t device = 0;             // the recorder's number of the device
  std::string device_name;              // where a number does not tell devices apart; else empty
  std::vector<std::string> site_names;  // call sites, each once
  std::vector<std::uint32_t> sites;     // index into site_names, by block; empty if unknown
  // All frames of each of site_names, innermost first, where the source has them; else empty.
  std::vector<std::vector<std::string>> site_frames;
  std::vector<TraceMark> marks;       // in the order of their events
  std::uint64_t device_bytes = 0;     // the device's memory; 0: not known
  std::vector<std::string> warnings;  // what the source lacks, as sentences for people

  [[nodiscard]] std::uint64_t id_of(std::uint32_t block) const {
    return ids.empty() ? block : ids[block];
  }
  [[nodiscard]] std::uint64_t duration_us() const {
    return events.empty() ? 0 : events.back().time_us - events.front().time_us;
  }
};

// What is wrong with an input, where, and what would have been right.
struct TraceError {
  // kEmpty: a recording that ended before it could tell of anything.
  enum class Kind : unsigned char { kUnreadable, kCorrupt, kUnsupported, kEmpty };
  Kind kind = Kind::kCorrupt;
  std::string path;
  std::optional<std::uint64_t> line;    // 1-based, text formats
  std::optional<std::uint64_t> offset;  // bytes from the start of the file, binary formats
  std::optional<std::uint64_t> row;     // of a database table
  std::string found;
  std::string expected;

  // "t.csv:7: found ...; expected ..."
  [[nodiscard]] std::string message() const;
};

}  // namespace nofrag
