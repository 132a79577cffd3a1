// Driver: the seam to the GPU driver. Everything above it is tested against a simulated one.
//
// Owns: nothing of ours; it is the table of calls that the layers above may make, in our unit
// types. The real implementation (driver/real) forwards to libcuda.so.1 through the function
// pointers of driver_api.h; the simulated one (driver/simulated) is a product feature: replay runs
// on it. Layer: driver; it knows nothing of blocks, heaps or pools. Threads: every call may be made
// from any thread at any time. Callers hold their own locks. Failure: a failed call changes nothing
// (strong guarantee), so callers roll back only what they did themselves. kOutOfMemory is returned
// only for device memory. Rules that the driver enforces and the simulated one repeats (measured,
// docs/driver.md):
//   - sizes of handles and mappings, and addresses, are multiples of the device's granularity;
//   - a handle is mapped whole or not at all; it may be mapped at several addresses at once;
//   - a mapping may be touched only after set_access; unmap and set_access take whole mappings (a
//     range may cover several adjacent ones);
//   - unmap does NOT wait for kernels that use the range: waiting is the caller's duty;
//   - free (of malloc memory) waits for the device to go idle.
// Costs: every call is counted and timed in the ledger (measured on the real driver, modelled on
// the simulated one). Decision: docs/decisions/0001-driver-seam.md
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"

namespace nofrag {

// Physical memory as the driver names it (CUmemGenericAllocationHandle). 0 = none.
struct HandleId {
  std::uint64_t raw = 0;
  friend constexpr auto operator<=>(HandleId, HandleId) = default;
};

// CUevent by value. 0 = none.
struct EventId {
  std::uint64_t raw = 0;
  friend constexpr auto operator<=>(EventId, EventId) = default;
};

struct DeviceInfo {
  std::string name;               // "NVIDIA H100 80GB HBM3"
  Bytes total_memory;             // what the device has, used or not
  Bytes granularity;              // mapping unit; 0 where virtual memory is not supported
  bool virtual_memory = false;    // VMM calls work
  bool rdma_with_vmm = false;     // gpuDirectRDMACapable may be asked for
  bool rdma_in_use = false;       // and was accepted when tried (WSL2 refuses it later)
  bool shareable_fd = false;      // POSIX file descriptor handles
  bool shareable_fabric = false;  // fabric handles
  bool compression = false;       // generic compression
  bool host_numa_vmm = false;     // VMM on host memory
};

struct MemoryInfo {
  Bytes free;
  Bytes total;
};

enum class DriverCall : unsigned char {
  kCreate,
  kRelease,
  kReserve,
  kFreeRange,
  kMap,
  kUnmap,
  kSetAccess,
  kMalloc,
  kFree,
  kEventCreate,
  kEventDestroy,
  kEventRecord,
  kEventQuery,
  kEventSynchronize,
  kStreamWait,
  kStreamCaptureQuery,
  kStreamSynchronize,
  kDeviceSynchronize,
  kMemInfo,
};
inline constexpr std::size_t kDriverCallCount = 19;

// "create", "set_access", ... as used in fault scripts, cost files and reports.
const char* to_string(DriverCall call);
// The inverse; false if `name` is not a call.
bool driver_call_from_name(std::string_view name, DriverCall* out);

struct DriverLedger {
  std::array<std::uint64_t, kDriverCallCount> calls{};
  std::array<double, kDriverCallCount> microseconds{};

  [[nodiscard]] std::uint64_t count(DriverCall call) const {
    return calls[static_cast<std::size_t>(call)];
  }
  [[nodiscard]] double total_microseconds() const;
  [[nodiscard]] std::uint64_t total_calls() const;
  // What was added to an earlier snapshot of the same driver.
  [[nodiscard]] DriverLedger since(const DriverLedger& earlier) const;
};

class Driver {
 public:
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  // "cuda" or "sim:h100-80g".
  [[nodiscard]] virtual std::string name() const = 0;
  virtual Result<int> device_count() = 0;
  // pre: 0 <= device < device_count(), here and below.
  virtual Result<DeviceInfo> device_info(DeviceOrdinal device) = 0;
  virtual Result<MemoryInfo> memory_info(DeviceOrdinal device) = 0;

  // Physical memory. pre: size is a positive multiple of the granularity.
  virtual Result<HandleId> create(DeviceOrdinal device, Bytes size) = 0;
  // The memory itself goes back to the device when the last mapping is gone too.
  virtual Status release(HandleId handle) = 0;

  // Address space. alignment 0 = the granularity.
  virtual Result<VirtAddr> reserve(Bytes size, Bytes alignment) = 0;
  // pre: exactly what reserve returned, with nothing mapped in it.
  virtual Status free_range(VirtAddr address, Bytes size) = 0;

  // pre: size is the handle's whole size; the range lies in a reservation, nothing mapped in it.
  virtual Status map(VirtAddr address, Bytes size, HandleId handle) = 0;
  // pre: the range is covered exactly by whole mappings.
  virtual Status set_access(VirtAddr address, Bytes size, DeviceOrdinal device) = 0;
  virtual Status unmap(VirtAddr address, Bytes size) = 0;

  // A file descriptor by which another process (or this one) can have the same memory; the caller closes it.
  virtual Result<int> export_handle(HandleId handle);
  // One more handle of memory that was exported, to be released like any other. The descriptor stays the
  // caller's. Neither is in the ledger; kNotSupported where handles cannot be shared.
  virtual Result<HandleId> import_handle(DeviceOrdinal device, int descriptor);

  // Plain allocations, for devices without virtual memory and for the `driver` peer of replay.
  virtual Result<VirtAddr> malloc(DeviceOrdinal device, Bytes size) = 0;
  virtual Status free(DeviceOrdinal device, VirtAddr address) = 0;

  // Events carry no timing data. An event belongs to the device it was created for; record it only
  // on streams of that device.
  virtual Result<EventId> event_create(DeviceOrdinal device) = 0;
  virtual Status event_destroy(DeviceOrdinal device, EventId event) = 0;
  virtual Status event_record(DeviceOrdinal device, EventId event, StreamId stream) = 0;
  // ok = the work recorded before is done; kNotReady = still running.
  virtual Status event_query(DeviceOrdinal device, EventId event) = 0;
  virtual Status event_synchronize(DeviceOrdinal device, EventId event) = 0;
  // Work queued on `stream` after this call starts only when `event` is done. The host goes on.
  virtual Status stream_wait(DeviceOrdinal device, StreamId stream, EventId event) = 0;
  virtual Result<bool> stream_is_capturing(DeviceOrdinal device, StreamId stream) = 0;
  // A number that no other stream of this process ever has. The driver gives a destroyed stream's
  // handle to the next one made, while the old one's work may still run (measured): the handle alone
  // does not say which stream is meant. kNotSupported where the driver cannot tell (before CUDA 12).
  // Reads a field; not in the ledger. pre: the stream is not being captured (asking then invalidates
  // the capture, in every mode; measured).
  virtual Result<std::uint64_t> stream_identity(DeviceOrdinal device, StreamId stream) = 0;
  // Is this the stream of that identity, and may it be asked (it is not being captured)? Not in the ledger:
  // asked by every thread, without a lock, before it takes memory it kept for the stream.
  virtual bool stream_is(DeviceOrdinal device, StreamId stream, std::uint64_t identity);
  // Streams for those who run work (replay, tests); no allocator makes any. They do not wait for the
  // legacy stream. Not in the ledger.
  virtual Result<StreamId> stream_create(DeviceOrdinal device) = 0;
  // What is queued still runs; its handle goes to the next stream made. pre: stream_create made it, on
  // this device, and it is not being captured.
  virtual Status stream_destroy(DeviceOrdinal device, StreamId stream) = 0;
  virtual Status stream_synchronize(DeviceOrdinal device, StreamId stream) = 0;
  // Waits for all streams of the device's primary context (green contexts made from it included) and,
  // if the thread has another context of this device current, for that one's.
  virtual Status device_synchronize(DeviceOrdinal device) = 0;

  // Lets go of the device's primary context, which is about to be destroyed; the next call that needs one
  // takes it anew. Not in the ledger. pre: nothing of this context (events, streams) is left.
  virtual void release_context(DeviceOrdinal device);

  // A snapshot of all calls made so far through this object.
  [[nodiscard]] virtual DriverLedger ledger() const = 0;
};

}  // namespace nofrag
