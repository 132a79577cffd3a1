// DeviceTarget: the device of a command, and the drivers opened on it.
//
// Layer: cli. What names it is `--device` or, without that, the option `driver:`. A target is parsed once; every run opens its own session, so that a simulated device
// starts fresh (clock, memory, ledger) each time. Units: bytes, microseconds. Threads: none.
// Failure: parse and open throw UsageError (no such device, nearest name given) or RunError.
// Cost: a simulated device file is read once; a session is a driver object.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "driver/driver.h"
#include "driver/simulated/device_spec.h"

namespace nofrag {

class SimulatedDriver;

struct DeviceSession {
  std::unique_ptr<Driver> driver;
  SimulatedDriver* simulated = nullptr;  // the same object, if it is simulated
  DeviceOrdinal device;
  DeviceInfo info;

  // Mapping unit; where there is none, what plain allocations are rounded to.
  [[nodiscard]] Bytes granule() const {
    return info.granularity.is_zero() ? 2 * kMiB : info.granularity;
  }
};

class DeviceTarget {
 public:
  // "sim:NAME", "sim:FILE.json" or "cuda:N".
  static DeviceTarget parse(std::string_view text);
  // The value of the option `driver:` as given in `source` (NOFRAG_CONF, --conf): "cuda" (the first
  // device), "sim:NAME" or "sim:FILE.json".
  static DeviceTarget of_driver(std::string_view value, std::string_view source);

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] bool is_simulated() const { return simulated_.has_value(); }
  [[nodiscard]] int ordinal() const { return ordinal_; }
  // The device file, if it is one of the user's; else empty.
  [[nodiscard]] std::string file() const;

  struct SimulationSettings {
    std::optional<Bytes> physical_memory;  // none: what the device file says
    double stream_lag_us = 500;
  };
  // The settings matter to simulated devices only.
  [[nodiscard]] DeviceSession open(const SimulationSettings& settings) const;

 private:
  void load_simulated();

  std::string text_;
  std::string said_;  // how messages begin: "--device sim:x", "NOFRAG_CONF: driver:sim:x"
  std::optional<SimulatedDeviceFile> simulated_;
  int ordinal_ = 0;
};

}  // namespace nofrag
