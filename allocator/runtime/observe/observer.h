// Observer: looks at the used devices once a second, for metrics, `nofrag top` and headroom callbacks; and
// explains failed allocations.
//
// Owns: one thread, made with the first used device if anything is on, and what it serves. Layer: runtime.
// Threads: explain and headroom may be called from any; the rest by Process. The thread blocks all signals
// and takes each device's lock for microseconds. Fork: the child has no thread and touches nothing.
// Exit: stop() waits a moment for the thread to be idle; it is not joined, since a callback may hang.
// Failure: what cannot be opened is said in one line on stderr and left out.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nofrag/headroom.h>

#include "config/options.h"
#include "device/device_allocator.h"
#include "diagnose/failure.h"
#include "diagnose/forecast.h"
#include "driver/driver.h"
#include "runtime/observe/metrics_server.h"
#include "runtime/observe/status_file.h"
#include "stats/metrics_text.h"

namespace nofrag {

class Observer {
 public:
  static constexpr std::size_t kMostDevices = 64;

  Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  ~Observer() = default;

  // Before the first device_made.
  void configure(const Options& options, Driver* driver);
  void device_made(DeviceAllocator* device);
  // Looks at it no more. False: a look at it, or a callback, is still under way.
  bool device_gone(DeviceOrdinal device);
  void stop();
  void after_fork();

  // The failure that `device` has just reported: three lines for the error's text. Counts its cause, and
  // writes the full report where oom_report says.
  std::string explain(DeviceAllocator* device, const std::string& message);
  [[nodiscard]] Headroom headroom(const DeviceAllocator& device);  // by what the driver last had
  [[nodiscard]] Headroom headroom_now(const DeviceAllocator& device);  // asks it
  // `callback` null: none. Low: fewer bytes or a forecast of fewer seconds than these.
  void set_headroom_callback(nofrag_headroom_callback callback,
                             void* user,
                             std::uint64_t below_bytes,
                             double below_seconds);

 private:
  struct Watched {
    std::atomic<DeviceAllocator*> device{nullptr};
    std::array<std::atomic<std::uint64_t>, kCauseCount> failures{};
    std::atomic<int> last_cause{-1};
    bool was_low = false;  // the thread's
    std::uint64_t said_low_us = 0;
  };
  struct Wish {
    nofrag_headroom_callback callback = nullptr;
    void* user = nullptr;
    std::uint64_t below_bytes = 0;
    double below_seconds = 0;
  };

  // "0" is what people write for no in a variable.
  [[nodiscard]] bool serves_metrics() const {
    return options_.metrics != "off" && options_.metrics != "0";
  }
  void start_thread();
  static void* run(void* self);
  void loop();
  void look();
  void tell(Watched& watched, int ordinal, const Headroom& headroom);
  [[nodiscard]] std::string page();
  [[nodiscard]] ProcessStatus status();
  void write_textfile();
  void write_report(const std::string& text);
  [[nodiscard]] std::optional<Bytes> ask_driver_free(DeviceOrdinal device);
  [[nodiscard]] Watched* watched(DeviceOrdinal device) {
    return &watched_[static_cast<std::size_t>(device.value())];
  }

  Options options_;
  Driver* driver_ = nullptr;
  bool real_driver_ = false;
  std::array<Watched, kMostDevices> watched_{};
  std::array<std::atomic<std::uint64_t>, kMostDevices> driver_free_{};  // kUnknown: not asked
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> busy_{false};
  std::atomic<int> reports_written_{0};
  std::mutex mutex_;
  Wish wish_;  // Sync: mutex_
  MetricsServer server_;
  StatusFile status_file_;
  std::string textfile_;
};

[[nodiscard]] nofrag_headroom to_c_headroom(int device, const Headroom& headroom);

}  // namespace nofrag
