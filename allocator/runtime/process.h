// Process: nofrag in this process: the driver, one DeviceAllocator a device, options, callbacks.
//
// Owns: everything that lives as long as the process. It is made on first use and never destroyed:
// at exit the driver may be gone before us, so nothing is torn down. Layer: runtime, with log and
// last_error the only place of mutable globals and of getenv.
// Invariants: a device's allocator, once made, stays at its address until drop_device; options never
// change after the start. Threads: any; the start and the making of a device are done once under LockRank::kRuntime,
// everything else reads atomics.
// Failure: calls that fail also set the thread's last error. A failed start may be tried again: by
// an explicit init, or by nothing else (implicit starts repeat the first answer).
// Fork: in a child of a process that had started, every call fails with kForked.
// Exit: when exit handlers run, `stats:exit` is printed, and later calls fail with kExiting.
// Cost: after the start, two atomic loads a call: that it is started, and the device's allocator.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <nofrag/nofrag.h>

#include "base/ranked_mutex.h"
#include "config/option_table.h"
#include "device/device_allocator.h"
#include "runtime/callback_list.h"
#include "runtime/observe/observer.h"
#include "runtime/tracing.h"
#include "stats/stats_report.h"

namespace nofrag {

class Process {
 public:
  static constexpr int kMostDevices = 64;

  static Process& instance();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Before the start: options from a source weaker than NOFRAG_CONF, named in reports. The text must have
  // been checked; a later call replaces it. kAlreadyInitialized after the start.
  Status prefer(const char* source, const std::string& conf);
  // The explicit start; `conf` (may be null) is stronger than the environment.
  Status init(const char* conf);
  // The implicit one. Cheap once started.
  Status start();
  // What the preload needs otherwise than others. No effect after the start.
  struct StartChanges {
    void* (*lookup)(void* library, const char* symbol) = nullptr;  // the loader's own dlsym
    bool shareable = false;  // handles can be exported, unless the configuration says what they are
  };
  void change_start(const StartChanges& changes);
  // Called before the lock of the start is taken, in every thread that may be the first: what settles change_start must
  // not be left to what the start itself does (it loads the driver, and the preload hears of that).
  static void before_start(void (*settle)()) { settle_.store(settle, std::memory_order_release); }
  // Before the start: handles can be exported, unless the configuration says what they are. kAlreadyInitialized
  // after a start with others.
  Status prefer_shareable();
  // The child of a process that had started. Never starts, sets no last error; so exiting().
  [[nodiscard]] bool forked() const { return phase_.load(std::memory_order_acquire) == kForked; }
  [[nodiscard]] bool exiting() const { return phase_.load(std::memory_order_acquire) == kExiting; }

  Result<int> device_count();
  // Starts, and makes the device's allocator on its first use.
  Result<DeviceAllocator*> device(int ordinal);
  // The same where nothing is left to be made or checked; null means: ask device().
  [[nodiscard]] static DeviceAllocator* ready_device(int ordinal) {
    const Process* const ready = ready_.load(std::memory_order_acquire);
    const bool known = ready != nullptr && static_cast<unsigned>(ordinal) < kMostDevices;
    return known ? ready->used_device(ordinal) : nullptr;
  }
  // The device's primary context is about to be destroyed: everything goes back to the driver, live blocks
  // included, and the device is as if never used. pre: no other thread is inside a call for this device, or
  // begins one before this has returned; nor may any look at what an earlier call gave it, the allocator
  // included. Nothing here could wait for them: calls find the allocator without a lock. It is no more than CUDA
  // demands of who resets a device (cudaDeviceReset, cuDevicePrimaryCtxReset): that no other thread uses it.
  // kKept: its addresses stay reserved for good, for blocks that may still be named by them. Allocators made later
  // take fewer, since those of a process are not without end.
  enum class Addresses : unsigned char { kGivenBack, kKept };
  void drop_device(int ordinal, Addresses addresses = Addresses::kGivenBack);
  // Address ranges kept so, of all devices, and the bytes of addresses in them.
  [[nodiscard]] int kept_ranges() const { return kept_ranges_.load(std::memory_order_acquire); }
  [[nodiscard]] Bytes kept_addresses() const {
    return Bytes(kept_addresses_.load(std::memory_order_relaxed));
  }
  // Starts and checks the ordinal; null if the device has not been used.
  Result<DeviceAllocator*> device_if_used(int ordinal);
  // The used device whose address range holds `address`; null if there is none. Never starts.
  [[nodiscard]] static DeviceAllocator* owner(VirtAddr address) {
    const Process* const ready = ready_.load(std::memory_order_acquire);
    if (ready == nullptr) [[unlikely]] {
      return nullptr;
    }
    DeviceAllocator* const first = ready->used_device(0);
    return first != nullptr && first->owns(address) ? first : ready->other_owner(address);
  }
  // Null if it has not been used. pre: 0 <= ordinal < kMostDevices.
  [[nodiscard]] DeviceAllocator* used_device(int ordinal) const {
    return devices_[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
  }

  // pre: started.
  [[nodiscard]] std::string driver_name() const { return driver_->name(); }
  [[nodiscard]] bool exportable() const {
    return options_.shareable_handles != ShareableHandles::kNone;
  }
  [[nodiscard]] StatsReport stats_report() const;

  // Records the process from now on, as NOFRAG_TRACE would have it (runtime/tracing.h), and ends it.
  Status start_trace(const char* spec);
  Status stop_trace();
  // nullptr if nothing is recorded, or in a forked child.
  [[nodiscard]] Recorder* recorder() const {
    return phase_.load(std::memory_order_acquire) == kReady ? tracing_.recorder() : nullptr;
  }

  // Told of the memory of every device, those made later too. One at a time; an empty one ends it.
  void set_watch(const MemoryWatch::Listener& listener);

  CallbackList<nofrag_oom_callback>& oom_callbacks() { return oom_callbacks_; }
  CallbackList<nofrag_pressure_callback>& pressure_callbacks() { return pressure_callbacks_; }
  Observer& observer() { return observer_; }

 private:
  // In this order: everything above kReady has ended.
  enum Phase : unsigned char { kCold, kReady, kForked, kExiting };

  Process() = default;
  ~Process() = default;

  Status refuse(Phase phase) const;
  // Of devices but the first. pre: started.
  [[nodiscard]] DeviceAllocator* other_owner(VirtAddr address) const;
  [[nodiscard]] std::vector<DeviceAllocator*> used_devices() const;
  Status start_locked(const char* conf);
  Status read_options(const char* conf, Options* options);
  Result<DeviceAllocator*> make_device(int ordinal);
  bool call_pressure_callbacks(DeviceOrdinal device, Bytes needed);
  static void at_fork_child();
  static void at_exit();

  void enter(Phase phase) {
    phase_.store(phase, std::memory_order_release);
    ready_.store(phase == kReady ? this : nullptr, std::memory_order_release);
  }

  static void settle() {
    if (void (*const settle)() = settle_.load(std::memory_order_acquire); settle != nullptr) {
      settle();
    }
  }

  static inline constinit std::atomic<void (*)()> settle_{nullptr};
  static std::atomic<Process*> ready_;  // the one and only while it is kReady
  std::atomic<Phase> phase_{kCold};
  RankedMutex mutex_{LockRank::kRuntime};
  bool handlers_registered_ = false;  // Sync: mutex_
  bool start_failed_ = false;         // Sync: mutex_
  Error start_error_;                 // Sync: mutex_
  std::string start_problem_;         // Sync: mutex_
  std::string preferred_source_;      // Sync: mutex_
  std::string preferred_;             // Sync: mutex_
  // Written before phase_ becomes kReady, constant after.
  Options options_;
  StartChanges changes_;  // Sync: mutex_
  // The last numbers of devices that were dropped.
  mutable std::mutex dropped_mutex_;
  std::vector<DeviceReport> dropped_;  // Sync: dropped_mutex_
  std::unique_ptr<Driver> driver_;
  int device_count_ = 0;
  std::array<std::atomic<DeviceAllocator*>, kMostDevices> devices_{};
  std::atomic<int> kept_ranges_{0};
  std::atomic<std::uint64_t> kept_addresses_{0};
  MemoryWatch::Listener watch_;  // Sync: mutex_
  Tracing tracing_;              // Sync: mutex_, but for its recorder
  CallbackList<nofrag_oom_callback> oom_callbacks_;
  CallbackList<nofrag_pressure_callback> pressure_callbacks_;
  Observer observer_;
};

}  // namespace nofrag
