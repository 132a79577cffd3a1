// replay_trace: plays one trace through one allocator and says what it cost.
//
// Layer: cli. Owns nothing beyond the run. Units: bytes, modelled or measured driver microseconds,
// nanoseconds of this thread's CPU time. On a simulated device the driver's clock follows the
// trace's, so frees of other streams mature as they did when recorded. Invariants: the quarters add
// up to driver_us, and so do the ledger's microseconds. Threads: none. Failure: running out of memory
// is a result (run.oom), not an error; anything else that an allocator reports ends in run.fault. Cost:
// one virtual call an event; the driver's ledger is read a few times a run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/peers/replay_allocator.h"
#include "driver/driver.h"
#include "trace/trace.h"

namespace nofrag {

class SimulatedDriver;

// How a run ended that could not serve a request.
struct ReplayOom {
  std::uint64_t event = 0;  // 0-based, in the file
  Bytes requested;
  Bytes live;  // before the request
  Bytes reserved;
  Bytes free_granules;
  std::string cause;             // "fragmentation", "capacity" or "limit"
  std::optional<Bytes> limit{};  // the allocator's own, where that refused it
};

struct ReplayRun {
  std::string allocator;
  std::string device;
  std::optional<std::string> conf;  // nofrag's options that were set
  bool is_model = false;            // a peer's policy by our own code, not the peer itself
  std::optional<Bytes> capacity;    // as asked for; none: the device's own memory
  bool completed = false;
  std::optional<ReplayOom> oom;
  std::string fault;         // neither completed nor out of memory: what went wrong
  std::string fault_reason;  // and why the allocator itself would end so (ReplayAllocator::trouble)
  Bytes peak_reserved;
  std::uint64_t events_replayed = 0;
  double host_ns = 0;  // CPU time of the whole loop
  // Not known where a peer's own process made the calls.
  std::optional<double> driver_us;
  std::array<double, 4> driver_us_quarters{};   // by trace time
  std::optional<DriverLedger> ledger;           // of the loop alone
  std::optional<std::uint64_t> driver_mallocs;  // known of a peer's own process instead
  std::optional<std::uint64_t> driver_frees;
};

// Host time of an event, in nanoseconds. Not known of so few events that it is the time of the first ones.
std::optional<double> host_ns_per_event(const ReplayRun& run);

// Called now and then with the number of events done.
using ReplayProgress = std::function<void(std::uint64_t events_done)>;

// Looks on while a trace is played, for pictures.
class ReplayObserver {
 public:
  ReplayObserver() = default;
  ReplayObserver(const ReplayObserver&) = delete;
  ReplayObserver& operator=(const ReplayObserver&) = delete;
  virtual ~ReplayObserver() = default;

  // How many events to play between two looks.
  [[nodiscard]] virtual std::uint64_t every() const = 0;
  virtual void look(std::uint64_t events_done, const ReplayAllocator& allocator) = 0;
  virtual void allocated(std::uint32_t block, VirtAddr address) = 0;
};

struct ReplayTarget {
  ReplayAllocator* allocator = nullptr;
  Driver* driver = nullptr;
  SimulatedDriver* simulated = nullptr;  // the same driver where it is simulated
  DeviceOrdinal device;
  bool with_threads = false;      // each thread of a recording by a thread of its own
  Bytes capacity;                 // what could be held at most, for the verdict at the end
  std::vector<StreamId> streams;  // by the trace's stream numbers
  ReplayObserver* observer = nullptr;
  double speed = 0;  // on real devices: times as fast as recorded; 0 = as fast as it goes
};

// Fills the outcome fields of `run`.
void replay_trace(const Trace& trace,
                  const ReplayTarget& target,
                  const ReplayProgress& progress,
                  ReplayRun* run);

// "fragmentation" if the memory for the request was there, in pieces; else "capacity". Where nothing is live,
// nothing lies in the way: never fragmentation.
std::string oom_cause(Bytes capacity, Bytes live, Bytes requested);

}  // namespace nofrag
