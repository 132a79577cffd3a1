// SimulatedDriver's control surface: what tests and replay do to the machine, not calls of Driver.
#include <mutex>

#include "driver/simulated/simulated_driver.h"
#include "driver/simulated/simulated_errors.h"

namespace nofrag {
namespace {

using Guard = std::lock_guard<RankedMutex>;

constexpr std::size_t kViolationsKept = 100;
constexpr int kMaxDevices = 64;  // access is one bit a device

std::string describe(VirtAddr address, Bytes size) {
  return std::to_string(size.count()) + " bytes at " + std::to_string(address.value());
}

}  // namespace

SimulatedDriver::SimulatedDriver(std::vector<SimulatedDeviceSpec> devices, std::string name)
    : name_(std::move(name)), specs_(std::move(devices)) {
  NOFRAG_CHECK(!specs_.empty() && specs_.size() <= kMaxDevices, "1 to 64 simulated devices");
  for (const SimulatedDeviceSpec& spec : specs_) {
    const Bytes unit = spec.info.granularity.is_zero() ? 2 * kMiB : spec.info.granularity;
    memory_.add_device(spec.info.total_memory, unit);
  }
}

SimulatedDriver::SimulatedDriver(const SimulatedDeviceSpec& device, std::string name)
    : SimulatedDriver(std::vector<SimulatedDeviceSpec>{device}, std::move(name)) {}

SimulatedDriver::~SimulatedDriver() = default;

// ---- memory of the device

void SimulatedDriver::set_physical_memory(DeviceOrdinal device, Bytes size) {
  const Guard lock(mutex_);
  NOFRAG_CHECK(valid(device), "no such simulated device");
  memory_.set_physical(device.value(), size);
}

void SimulatedDriver::set_memory_of_others(DeviceOrdinal device, Bytes size) {
  const Guard lock(mutex_);
  NOFRAG_CHECK(valid(device), "no such simulated device");
  memory_.set_others(device.value(), size);
}

Bytes SimulatedDriver::physical_in_use(DeviceOrdinal device) const {
  const Guard lock(mutex_);
  NOFRAG_CHECK(valid(device), "no such simulated device");
  return memory_.in_use(device.value());
}

// ---- clock and completion

void SimulatedDriver::set_completion(Completion mode) {
  const Guard lock(mutex_);
  streams_.mode = mode;
}

void SimulatedDriver::set_time_us(double time) {
  double now = streams_.clock_us.load(std::memory_order_relaxed);
  while (time > now &&
         !streams_.clock_us.compare_exchange_weak(now, time, std::memory_order_relaxed)) {
  }
}

void SimulatedDriver::advance_us(double by) {
  set_time_us(time_us() + by);
}

void SimulatedDriver::move_with_calls(double between_us) {
  const Guard lock(mutex_);
  between_calls_us_ = between_us;
}

double SimulatedDriver::time_us() const {
  return streams_.clock_us.load(std::memory_order_relaxed);
}

void SimulatedDriver::set_stream_lag_us(double lag) {
  const Guard lock(mutex_);
  streams_.lag_us = lag;
}

void SimulatedDriver::set_streams_busy(bool busy) {
  const Guard lock(mutex_);
  streams_.always_busy = busy;
}

void SimulatedDriver::complete_stream(StreamId stream, DeviceOrdinal device) {
  const Guard lock(mutex_);
  streams_.allow_stream(device.value(), stream);
}

void SimulatedDriver::complete_all() {
  const Guard lock(mutex_);
  streams_.allow_all();
}

void SimulatedDriver::destroy_stream(StreamId stream, DeviceOrdinal device) {
  const Guard lock(mutex_);
  streams_.destroy_stream(device.value(), stream);
}

// ---- graph capture

void SimulatedDriver::begin_capture(StreamId stream, DeviceOrdinal device) {
  const Guard lock(mutex_);
  streams_.begin_capture(device.value(), stream);
}

bool SimulatedDriver::end_capture(StreamId stream, DeviceOrdinal device) {
  const Guard lock(mutex_);
  return streams_.end_capture(device.value(), stream);
}

bool SimulatedDriver::capture_invalidated(StreamId stream, DeviceOrdinal device) const {
  const Guard lock(mutex_);
  return streams_.capture_invalidated(device.value(), stream);
}

// ---- kernels and contents

Status SimulatedDriver::use_bytes(StreamId stream,
                                  VirtAddr address,
                                  Bytes size,
                                  std::uint64_t owner,
                                  DeviceOrdinal device,
                                  bool fill) {
  const Guard lock(mutex_);
  SimulatedStreams::Kernel kernel{
      .position = {}, .address = address, .size = size, .owner = owner, .pieces = {}};
  if (!valid(device) || !memory_.resolve(address, size, device.value(), &kernel.pieces)) {
    return violation("a kernel uses memory that is not mapped and accessible: " +
                     describe(address, size));
  }
  if (streams_.capturing(device.value(), stream)) {
    return {};  // becomes part of the graph, runs nothing now
  }
  if (owner != 0) {
    const auto* other = streams_.conflict(device.value(), stream, owner, kernel.pieces);
    if (other != nullptr) {
      return violation("a kernel of owner " + std::to_string(owner) + " uses " +
                       describe(address, size) + " while a kernel of owner " +
                       std::to_string(other->owner) + " may still run on the same memory");
    }
  }
  if (fill) {
    for (const PhysicalPiece& piece : kernel.pieces) {
      memory_.fill(piece, owner);
    }
  }
  streams_.launch(device.value(), stream, std::move(kernel));
  return {};
}

Status SimulatedDriver::launch(
    StreamId stream, VirtAddr address, Bytes size, std::uint64_t owner, DeviceOrdinal device) {
  return use_bytes(stream, address, size, owner, device, false);
}

Status SimulatedDriver::write(
    StreamId stream, VirtAddr address, Bytes size, std::uint64_t tag, DeviceOrdinal device) {
  return use_bytes(stream, address, size, tag, device, true);
}

Status SimulatedDriver::check_contents(VirtAddr address,
                                       Bytes size,
                                       std::uint64_t tag,
                                       DeviceOrdinal device) {
  const Guard lock(mutex_);
  std::vector<PhysicalPiece> pieces;
  if (!valid(device) || !memory_.resolve(address, size, device.value(), &pieces)) {
    return violation("read of memory that is not mapped and accessible: " +
                     describe(address, size));
  }
  for (const PhysicalPiece& piece : pieces) {
    const std::optional<std::uint64_t> found = memory_.tag_of(piece);
    if (found != tag) {
      return violation("corrupt contents in " + describe(address, size) + ": expected " +
                       std::to_string(tag) + ", found " +
                       (found ? std::to_string(*found) : std::string("several")));
    }
  }
  return {};
}

Result<std::uint64_t> SimulatedDriver::read_tag(VirtAddr address, DeviceOrdinal device) {
  const Guard lock(mutex_);
  std::vector<PhysicalPiece> pieces;
  if (!valid(device) || !memory_.resolve(address, Bytes(1), device.value(), &pieces)) {
    const Status status = violation("read of memory that is not mapped and accessible: " +
                                    describe(address, Bytes(1)));
    return status ? Error{Errc::kDriverFailure, kIllegalAddress} : status.error();
  }
  return *memory_.tag_of(pieces.front());
}

// ---- faults

void SimulatedDriver::fail_call(DriverCall call, std::uint64_t nth, Errc code, bool from_then_on) {
  const Guard lock(mutex_);
  faults_.add({.call = call, .nth = nth, .code = code, .from_then_on = from_then_on});
}

void SimulatedDriver::fail_any_call(std::uint64_t nth, Errc code, bool from_then_on) {
  const Guard lock(mutex_);
  faults_.add({.call = std::nullopt, .nth = nth, .code = code, .from_then_on = from_then_on});
}

bool SimulatedDriver::add_faults(std::string_view script, std::string* error) {
  const Guard lock(mutex_);
  return faults_.parse(script, error);
}

void SimulatedDriver::clear_faults() {
  const Guard lock(mutex_);
  faults_.clear();
}

// ---- findings

Status SimulatedDriver::violation(std::string what) {
  ++violation_count_;
  if (violations_.size() < kViolationsKept) {
    violations_.push_back(std::move(what));
  }
  return violations_fail_ ? Status(Error{Errc::kDriverFailure, kIllegalAddress}) : Status();
}

std::uint64_t SimulatedDriver::violation_count() const {
  const Guard lock(mutex_);
  return violation_count_;
}

std::vector<std::string> SimulatedDriver::violations() const {
  const Guard lock(mutex_);
  return violations_;
}

void SimulatedDriver::set_violations_fail(bool fail) {
  const Guard lock(mutex_);
  violations_fail_ = fail;
}

SimulatedLeaks SimulatedDriver::leaks() const {
  const Guard lock(mutex_);
  SimulatedLeaks leaks;
  memory_.count_leaks(&leaks);
  leaks.events = streams_.live_events();
  leaks.streams = streams_.created_streams();
  return leaks;
}

void SimulatedDriver::reset_ledger() {
  const Guard lock(mutex_);
  ledger_ = {};
}

void SimulatedDriver::check() const {
  const Guard lock(mutex_);
  memory_.check();
  streams_.check();
}

}  // namespace nofrag
