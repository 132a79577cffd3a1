// Failure and Diagnosis: what is known about an allocation that failed, and what that makes of it.
//
// Owns: values. Layer: diagnose; plain numbers, whatever they came from: this allocator, a trace, or an
// error message of another one. Units: bytes. What is not known is empty, never zero.
// Threads: values. Failure: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/timeline.h"
#include "base/units.h"

namespace nofrag {

// The order is the order of reports and metrics.
enum class Cause : unsigned char {
  kModelTooLarge,
  kBatchTooLarge,
  kKvCacheGrowth,
  kFragmentation,
  kLeak,
  kRefusedBelow,
  kOtherProcess,
  kLimit,
  kHostMemory,
  kUnknown,
};
inline constexpr std::size_t kCauseCount = 10;
// "model_too_large", ...
[[nodiscard]] std::string_view to_string(Cause cause);
// "the model is too large for the memory", ...
[[nodiscard]] std::string_view describe(Cause cause);

// Live blocks of one size.
struct Holder {
  Bytes size;
  std::uint64_t blocks = 0;
  Bytes total;
};

// What a text around the failure says about the moment: a function's name in a traceback, a log line.
enum class Moment : unsigned char {
  kUnknown,
  kLoading,
  kStep,
  kKvCache,
  kNoRoomForCache,  // a server starts: weights and one step leave nothing for its KV cache
  kCacheTooSmall,  // a server starts: its KV cache would not hold one request of the longest length
  kOptimizerState,  // made in the first step of an optimizer; its size goes by the model
};

// Memory of the machine, not of a card.
enum class HostMemory : unsigned char {
  kMachine,
  kContainer,  // the limit of a control group: a container's, a pod's, a batch job's
  kShared,     // /dev/shm
  kOpenFiles,  // blocks of shared memory are files, and a process may have only so many open
  kPinned,
  kProgram,  // of a program or language that limits or manages its own: Java's heap, a database
};

// Whose card it was. nofrag and its tools are for NVIDIA's.
enum class Vendor : unsigned char { kNvidia, kAmd, kIntel, kApple, kGoogle };

struct HostShortage {
  HostMemory which = HostMemory::kMachine;
  double confidence = 0;
  std::vector<std::string> evidence;  // most telling first
  std::vector<std::string> missing;
};

// The same allocations and frees that came again and again up to the failure. All 0: not seen, or not known.
struct Repeats {
  std::uint64_t times = 0;
  std::uint64_t allocations = 0;  // of each time
  std::uint64_t temporaries = 0;  // of those, the blocks that are freed again
  std::uint64_t waits = 0;        // pauses, over all times, as the later half has them
};

// What becomes of the blocks that the work has allocated and not freed: a history that goes on behind the failure, as
// it would have with more memory, shows it.
struct Fate {
  Bytes given_back;  // freed while the work goes on
  Bytes stay;        // freed at its end only, or never
  Bytes fall;        // by which live memory is lower than at the failure at the lowest of that work
};

struct Failure {
  std::string source;  // "nofrag", "PyTorch", "trace", ...
  Vendor vendor = Vendor::kNvidia;
  bool remapping = false;  // the allocator that failed can map free memory anywhere (nofrag)
  bool expandable_segments = false;  // PyTorch's, known to be on
  std::optional<Bytes> requested;
  std::optional<Bytes> capacity;  // the card's
  std::optional<Bytes> limit;     // a lower limit that the process has set itself
  bool limit_reached = false;     // that limit refused it, not the driver
  std::string limit_name;  // as the user wrote it ("limit:4GiB in NOFRAG_CONF"); empty: not known
  std::optional<Bytes> live;    // what the program holds
  std::optional<Bytes> cached;  // held from the driver and free in the allocator, usable or not
  std::optional<Bytes>
      reachable;  // of `cached`, what the allocator could have used; empty: unknown
  std::optional<Bytes>
      beside_live;  // under nofrag: free, but beside live blocks in the same handles
  std::optional<Bytes> stranded;
  std::optional<Bytes> pending;  // freed, waiting for streams
  std::optional<Bytes> private_pools;
  std::optional<Bytes> driver_free;
  std::optional<Bytes> process_in_use;  // by the driver's count, context and libraries included
  std::optional<Bytes> others;          // other processes', if they are named
  std::uint64_t other_processes = 0;
  std::string largest_other;  // of those the largest: "process 1234"; empty: none is named
  Bytes largest_other_size;
  bool host_memory = false;             // it was the machine's memory that ran out, not the card's
  HostShortage host;                    // then: which, and how it is known
  std::vector<std::string> impossible;  // numbers that a text states and that cannot be
  std::vector<std::string> wanted;      // what would tell more than such a text does
  std::vector<std::string> notes;       // how a text was read, where that is a conclusion
  Moment moment = Moment::kUnknown;
  std::uint64_t cache_tokens =
      0;  // the longest context that the KV cache has room for; 0: not known
  const Timeline* timeline = nullptr;  // what led there; may be null
  std::vector<Holder> holders;         // largest first
  // Of what the work allocated, without the step under way where there are steps, and is live: the size that most of it has.
  std::optional<Holder> grown;
  // How long ago live blocks of the growth since the base were allocated, by bytes, as a share of all
  // that was allocated since: 0 = just now, 0.5 = evenly since the base; empty: not known.
  std::optional<double> growth_age;
  // The pauses of the work since the base (a step ended, a result was waited for), by how many allocations had come
  // then, in order; empty: not known.
  std::optional<std::vector<std::uint64_t>> pauses;
  // Of what was held beside the base in the middle of the work, the share that was never freed; empty: not known.
  std::optional<double> growth_kept;
  bool growth_larger = false;  // the blocks of the growth are larger at the end than they were then
  bool rise_kept =
      false;  // what was held rose by what was never freed; what was replaced did not grow
  Repeats repeats;
  std::optional<Fate>
      fate;  // of the growth since the base; empty: nothing is known of what came then

  // Small blocks hold far more than themselves: what lies beside them would have served the request, and a good part
  // of all memory was not in use.
  [[nodiscard]] bool pinned_down() const {
    return remapping && beside_live && requested && live && reserved() &&
           *beside_live >= *requested && 4 * (*live + *requested) <= 3 * *reserved();
  }
  // Held from the driver.
  [[nodiscard]] std::optional<Bytes> reserved() const {
    return live && cached ? std::optional<Bytes>(*live + *cached) : std::nullopt;
  }
  // What the process holds beside this allocator: its context, libraries, other allocators.
  [[nodiscard]] Bytes outside() const {
    const Bytes ours = reserved().value_or(process_in_use.value_or(Bytes(0)));
    return process_in_use && *process_in_use > ours ? *process_in_use - ours : Bytes(0);
  }
  // What this process holds beside the allocator that failed is a good part of the card.
  [[nodiscard]] bool large_outside() const {
    constexpr std::uint64_t kGoodPart = 4;
    return capacity && outside().count() >= capacity->count() / kGoodPart;
  }
  // A single process holds a good part of the card.
  [[nodiscard]] bool large_neighbour() const {
    constexpr std::uint64_t kGoodPart = 4;
    return capacity && !largest_other.empty() &&
           largest_other_size.count() >= capacity->count() / kGoodPart;
  }
  // Would the card have served what the limit refused?
  [[nodiscard]] bool limit_is_why() const {
    return limit_reached && limit && capacity && *limit < *capacity && driver_free && requested &&
           *driver_free >= *requested;
  }
};

struct Diagnosis {
  Cause cause = Cause::kUnknown;
  double confidence = 0;              // 0 to 1
  std::vector<std::string> evidence;  // most telling first
  std::vector<std::string> advice;    // most useful first
  std::vector<std::string> missing;   // what would have told more
  bool recoverable_by_remapping = false;
  Bytes short_by;  // by how much memory falls short, wherever its free parts lie; 0: it does not
};

}  // namespace nofrag
