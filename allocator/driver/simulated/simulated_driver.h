// SimulatedDriver: a GPU driver in software: memory, address space, streams, clock and prices.
//
// Owns: the simulated devices' physical memory, mappings, contents, streams and events. A product
// feature (replay and doctor run on it) and the ground of the tests: it refuses what the real
// driver refuses (driver/driver.h) and reports as a *violation* what the real one would let corrupt
// memory: touching bytes that are not mapped or not accessible, unmapping under a running kernel,
// two blocks' kernels on the same physical bytes at once, and contents that are not what was
// written there.
// Layer: driver. Units: Bytes, microseconds. Contents are tags: a byte range holds one
// 64-bit tag, kUninitialised if nobody wrote it since the handle was created.
// Time: the clock stands still until set_time_us or advance_us; calls cost modelled microseconds in
// the ledger but do not move it, unless move_with_calls says so (for live processes, where nobody else
// moves it). Either way runs are deterministic. Invariants: physical_in_use = sum of
// handles that are unreleased or mapped + live mallocs; check() walks them.
// Threads: any, one lock (LockRank::kDriver). Failure: strong; a violation is recorded and, unless
// set_violations_fail(false), also returned as kDriverFailure with driver code 700 from the call.
// Cost: O(log mappings) a memory call, O(1) an event call.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "base/ranked_mutex.h"
#include "driver/driver.h"
#include "driver/simulated/device_spec.h"
#include "driver/simulated/fault_script.h"
#include "driver/simulated/simulated_memory.h"
#include "driver/simulated/simulated_streams.h"

namespace nofrag {

// What is alive: a test that ends with anything here has leaked.
struct SimulatedLeaks {
  std::uint64_t handles = 0;  // created and not released
  std::uint64_t mappings = 0;
  std::uint64_t reservations = 0;
  std::uint64_t mallocs = 0;
  std::uint64_t events = 0;
  std::uint64_t streams = 0;  // made by stream_create
  Bytes handle_bytes;
  Bytes mapped_bytes;
  Bytes reserved_bytes;  // address space
  Bytes malloc_bytes;    // as asked for

  [[nodiscard]] bool none() const {
    return handles == 0 && mappings == 0 && reservations == 0 && mallocs == 0 && events == 0 &&
           streams == 0;
  }
};

class SimulatedDriver final : public Driver {
 public:
  static constexpr std::uint64_t kUninitialised = 0;

  // One device for each spec, in order. `name` is what name() answers, e.g. "sim:h100-80g".
  explicit SimulatedDriver(std::vector<SimulatedDeviceSpec> devices, std::string name = "sim");
  explicit SimulatedDriver(const SimulatedDeviceSpec& device, std::string name = "sim");
  ~SimulatedDriver() override;

  // ---- Driver
  [[nodiscard]] std::string name() const override { return name_; }
  Result<int> device_count() override;
  Result<DeviceInfo> device_info(DeviceOrdinal device) override;
  Result<MemoryInfo> memory_info(DeviceOrdinal device) override;
  Result<HandleId> create(DeviceOrdinal device, Bytes size) override;
  Status release(HandleId handle) override;
  // Descriptors mean something to this object only: there is no other process to share with.
  Result<int> export_handle(HandleId handle) override;
  Result<HandleId> import_handle(DeviceOrdinal device, int descriptor) override;
  Result<VirtAddr> reserve(Bytes size, Bytes alignment) override;
  Status free_range(VirtAddr address, Bytes size) override;
  Status map(VirtAddr address, Bytes size, HandleId handle) override;
  Status set_access(VirtAddr address, Bytes size, DeviceOrdinal device) override;
  Status unmap(VirtAddr address, Bytes size) override;
  Result<VirtAddr> malloc(DeviceOrdinal device, Bytes size) override;
  Status free(DeviceOrdinal device, VirtAddr address) override;
  Result<EventId> event_create(DeviceOrdinal device) override;
  Status event_destroy(DeviceOrdinal device, EventId event) override;
  Status event_record(DeviceOrdinal device, EventId event, StreamId stream) override;
  Status event_query(DeviceOrdinal device, EventId event) override;
  Status event_synchronize(DeviceOrdinal device, EventId event) override;
  Status stream_wait(DeviceOrdinal device, StreamId stream, EventId event) override;
  Result<bool> stream_is_capturing(DeviceOrdinal device, StreamId stream) override;
  Result<std::uint64_t> stream_identity(DeviceOrdinal device, StreamId stream) override;
  Result<StreamId> stream_create(DeviceOrdinal device) override;
  Status stream_destroy(DeviceOrdinal device, StreamId stream) override;
  Status stream_synchronize(DeviceOrdinal device, StreamId stream) override;
  Status device_synchronize(DeviceOrdinal device) override;
  [[nodiscard]] DriverLedger ledger() const override;

  // ---- Memory of the device
  // What the device has (device_info and memory_info follow). May be below what is in use: then
  // nothing more can be had.
  void set_physical_memory(DeviceOrdinal device, Bytes size);
  // Held by other processes: counts against the device, not against us.
  void set_memory_of_others(DeviceOrdinal device, Bytes size);
  // Ours: handles unreleased or mapped, and mallocs (rounded up to the granularity).
  [[nodiscard]] Bytes physical_in_use(DeviceOrdinal device) const;

  // ---- Clock and completion (Completion: simulated_streams.h). Default: kClock, lag 500.
  void set_completion(Completion mode);
  // The clock never goes back: an earlier time is ignored. Safe to call once per replayed event.
  void set_time_us(double time);
  void advance_us(double by);
  [[nodiscard]] double time_us() const;
  // From now on every call moves the clock by `between_us`, and nothing else may. 0: no call does.
  void move_with_calls(double between_us);
  void set_stream_lag_us(double lag);
  // kClock: waiting for a stream or device assumes work queued up to now, recorded or not (a replay
  // sees no kernels). Default false: only what was queued here counts.
  void set_streams_busy(bool busy);
  // kByHand: what is queued so far may run; it is done when the events that it waits for are, too.
  void complete_stream(StreamId stream, DeviceOrdinal device = DeviceOrdinal(0));
  void complete_all();

  // Of a stream that a test just named. As the driver does it: queued work still runs, and from now on
  // the handle means a new, empty stream.
  void destroy_stream(StreamId stream, DeviceOrdinal device = DeviceOrdinal(0));

  // ---- Graph capture
  void begin_capture(StreamId stream, DeviceOrdinal device = DeviceOrdinal(0));
  // Ends it for every stream that joined. False if a forbidden call had invalidated the capture.
  bool end_capture(StreamId stream, DeviceOrdinal device = DeviceOrdinal(0));
  [[nodiscard]] bool capture_invalidated(StreamId stream,
                                         DeviceOrdinal device = DeviceOrdinal(0)) const;

  // ---- Kernels and contents
  // A kernel of `stream` uses the bytes until the work queued so far is done. With an `owner` (any
  // non-zero number, one for each live block), unordered use of the same physical bytes by a kernel
  // of another owner is a violation.
  Status launch(StreamId stream,
                VirtAddr address,
                Bytes size,
                std::uint64_t owner = 0,
                DeviceOrdinal device = DeviceOrdinal(0));
  // A launch that fills the bytes with `tag` (also its owner). Readers see it at once.
  Status write(StreamId stream,
               VirtAddr address,
               Bytes size,
               std::uint64_t tag,
               DeviceOrdinal device = DeviceOrdinal(0));
  // ok = every byte holds `tag`; anything else is a violation.
  Status check_contents(VirtAddr address,
                        Bytes size,
                        std::uint64_t tag,
                        DeviceOrdinal device = DeviceOrdinal(0));
  Result<std::uint64_t> read_tag(VirtAddr address, DeviceOrdinal device = DeviceOrdinal(0));

  // ---- Faults (FaultScript): n-th call from now, 1 = the next
  void fail_call(DriverCall call, std::uint64_t nth, Errc code, bool from_then_on = false);
  void fail_any_call(std::uint64_t nth, Errc code, bool from_then_on = false);
  bool add_faults(std::string_view script, std::string* error);
  void clear_faults();

  // ---- Findings
  [[nodiscard]] std::uint64_t violation_count() const;
  // The first hundred, in words.
  [[nodiscard]] std::vector<std::string> violations() const;
  void set_violations_fail(bool fail);
  [[nodiscard]] SimulatedLeaks leaks() const;
  void reset_ledger();
  // Walks every structure; aborts where an invariant does not hold.
  void check() const;

 private:
  // Counts the call and asks the fault script; an error here means that the call must do nothing.
  Status begin(DriverCall call);
  // Adds the price of a call that was made, or of one that was refused.
  void charge(DriverCall call, double microseconds);
  void charge_refusal(const CallCost& cost, DriverCall call, Bytes size);
  // A call with one price: begin, check the device, do, charge.
  template <typename Action>
  Status fixed_price_call(DriverCall call, DeviceOrdinal device, Action action);
  Status violation(std::string what);
  Status use_bytes(StreamId stream,
                   VirtAddr address,
                   Bytes size,
                   std::uint64_t owner,
                   DeviceOrdinal device,
                   bool fill);
  [[nodiscard]] bool valid(DeviceOrdinal device) const;
  [[nodiscard]] bool has_virtual_memory() const;
  // Of a call whose device is not in use: device 0's.
  [[nodiscard]] const CallCost& cost(int device, DriverCall call) const;

  mutable RankedMutex mutex_{LockRank::kDriver};
  const std::string name_;
  const std::vector<SimulatedDeviceSpec> specs_;
  SimulatedMemory memory_;    // Sync: mutex_
  SimulatedStreams streams_;  // Sync: mutex_
  FaultScript faults_;        // Sync: mutex_
  DriverLedger ledger_;       // Sync: mutex_
  std::vector<std::string> violations_;
  std::uint64_t violation_count_ = 0;
  bool violations_fail_ = true;
  double between_calls_us_ = 0;  // Sync: mutex_
};

}  // namespace nofrag
