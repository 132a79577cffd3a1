// RealDriver: Driver over libcuda.so.1, loaded when first wanted.
//
// Owns: the table of entries, one reference to the primary context of each device it had to make
// current, and the ledger. Layer: driver/real; cuda.h stays in driver_api.h.
// Contexts: calls on handles, mappings and address space need none. Every other call runs in the
// caller's current context if that belongs to the device, else in the device's primary context,
// pushed for the call and popped after it. open() and device_info() create no context. Events and
// streams must belong to that same context.
// Capture: calls that a thread which captures in global mode may not make run with the thread's
// capture mode set to relaxed for their duration; event_record, stream_wait and
// stream_is_capturing are legal anyway and belong to the capture.
// RDMA: with options.rdma, the first create() on a device tries one granule with the flag through
// to set_access (some systems refuse only there); what it learnt is in device_info().rdma_in_use.
// Threads: any. Failure: strong; Error::driver_code is the CUresult. Errors from earlier kernels
// can come back from any call (kDriverFailure), as CUDA has it. Cost: the call's own and
// 0.1 to 0.2 us (two clock reads, context and capture-mode look-ups; stream_is_capturing is not
// timed). Decision: docs/decisions/0001-driver-seam.md
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "driver/driver.h"

namespace nofrag {

struct DriverApi;

struct RealDriverOptions {
  const char* library = "libcuda.so.1";
  // How symbols are found in it; nullptr = dlsym. For interposers and tests.
  void* (*lookup)(void* library, const char* symbol) = nullptr;
  bool rdma = true;           // ask for GPUDirect RDMA capable memory where the device offers it
  bool shareable_fd = false;  // make handles exportable as file descriptors, where offered
};

class RealDriver final : public Driver {
 public:
  // Fails with kNotInitialized (no library, no device) or kNotSupported (too old); *error says what
  // was missing, in words.
  static Result<std::unique_ptr<RealDriver>> open(const RealDriverOptions& options,
                                                  std::string* error);
  // Processes that are ending do not call it: the driver may be gone already.
  ~RealDriver() override;

  [[nodiscard]] std::string name() const override { return "cuda"; }
  // CUDA version that the driver supports, as CUDA counts: 13000 is 13.0.
  [[nodiscard]] int cuda_version() const { return cuda_version_; }

  Result<int> device_count() override;
  Result<DeviceInfo> device_info(DeviceOrdinal device) override;
  Result<MemoryInfo> memory_info(DeviceOrdinal device) override;
  Result<HandleId> create(DeviceOrdinal device, Bytes size) override;
  Status release(HandleId handle) override;
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
  bool stream_is(DeviceOrdinal device, StreamId stream, std::uint64_t identity) override;
  Result<StreamId> stream_create(DeviceOrdinal device) override;
  Status stream_destroy(DeviceOrdinal device, StreamId stream) override;
  Status stream_synchronize(DeviceOrdinal device, StreamId stream) override;
  Status device_synchronize(DeviceOrdinal device) override;
  void release_context(DeviceOrdinal device) override;
  [[nodiscard]] DriverLedger ledger() const override;

 private:
  enum class Rdma : unsigned char { kUntried, kOn, kOff };

  struct Device {
    DeviceInfo info;
    std::atomic<void*> primary{nullptr};  // CUcontext, retained at first need
    std::atomic<Rdma> rdma{Rdma::kOff};
  };
  class ContextScope;
  class CaptureScope;

  RealDriver();
  Error start(const RealDriverOptions& options, std::string* error);
  Error probe(int ordinal, std::string* error);
  [[nodiscard]] bool valid(DeviceOrdinal device) const;
  Device& at(DeviceOrdinal device) { return devices_[static_cast<std::size_t>(device.value())]; }
  // The primary context; nullptr and *code if it cannot be had.
  void* primary_context(int ordinal, int* code);
  int create_handle(int ordinal, Bytes size, bool rdma, unsigned long long* handle);
  // Whether to ask for the RDMA flag; finds out at the first call for a device.
  bool settle_rdma(DeviceOrdinal ordinal);
  Rdma try_rdma(int ordinal);
  // Runs `action` (which returns a CUresult as int) in the device's context, counted and timed.
  template <typename Action>
  Status call(DriverCall kind, DeviceOrdinal device, bool relax_capture, Action action);
  // The same for kNoContext or a device known to be valid.
  template <typename Action>
  Status timed(DriverCall kind, int ordinal, bool relax_capture, Action action);
  // Runs `action` in the device's context and, if wanted, in relaxed capture mode; the CUresult.
  template <typename Action>
  int within(int ordinal, bool relax_capture, Action action);

  std::unique_ptr<DriverApi> api_;
  RealDriverOptions options_;
  int cuda_version_ = 0;
  std::vector<Device> devices_;           // sized once, in start()
  RankedMutex mutex_{LockRank::kDriver};  // retaining contexts, trying RDMA
  std::array<std::atomic<std::uint64_t>, kDriverCallCount> calls_{};
  std::array<std::atomic<std::uint64_t>, kDriverCallCount> nanoseconds_{};
};

}  // namespace nofrag
