// Units: bytes, granules, addresses, streams and devices as distinct types.
//
// Owns: nothing; plain values. Layer: base (includes nothing of ours).
// Units: Bytes counts bytes; VirtAddr is a device virtual address (a point: VirtAddr - VirtAddr is
// Bytes); StreamId is the driver's stream handle by value (0 = the legacy default stream);
// DeviceOrdinal is the driver's device index.
// Invariants: subtraction never underflows (checked at every level; a byte counter that wraps is a
// wrong answer everywhere after).
// Threads: values. Failure: NOFRAG_CHECK aborts on underflow. Cost: that of the integer.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/checks.h"

namespace nofrag {

class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::uint64_t count) : count_(count) {}

  [[nodiscard]] constexpr std::uint64_t count() const { return count_; }
  [[nodiscard]] constexpr bool is_zero() const { return count_ == 0; }
  [[nodiscard]] constexpr double mib() const { return static_cast<double>(count_) / 1048576.0; }

  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) {
    NOFRAG_CHECK(a.count_ >= b.count_, "byte count underflow");
    return Bytes(a.count_ - b.count_);
  }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) { return Bytes(a.count_ * n); }
  friend constexpr Bytes operator*(std::uint64_t n, Bytes a) { return a * n; }
  // How many whole `b` fit in `a`.
  friend constexpr std::uint64_t operator/(Bytes a, Bytes b) { return a.count_ / b.count_; }
  friend constexpr Bytes operator%(Bytes a, Bytes b) { return Bytes(a.count_ % b.count_); }
  constexpr Bytes& operator+=(Bytes b) { return *this = *this + b; }
  constexpr Bytes& operator-=(Bytes b) { return *this = *this - b; }

 private:
  std::uint64_t count_ = 0;
};

inline constexpr Bytes kKiB{std::uint64_t{1} << 10};
inline constexpr Bytes kMiB{std::uint64_t{1} << 20};
inline constexpr Bytes kGiB{std::uint64_t{1} << 30};
inline constexpr Bytes kNoLimit{UINT64_MAX};

// `unit` need not be a power of two (granularity is queried, never assumed).
constexpr Bytes round_down(Bytes value, Bytes unit) {
  return unit * (value / unit);
}
constexpr Bytes round_up(Bytes value, Bytes unit) {
  return unit * ((value + unit - Bytes(1)) / unit);
}

class VirtAddr {
 public:
  constexpr VirtAddr() = default;
  constexpr explicit VirtAddr(std::uint64_t value) : value_(value) {}
  explicit VirtAddr(const void* pointer) : value_(reinterpret_cast<std::uintptr_t>(pointer)) {}

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  [[nodiscard]] constexpr bool is_null() const { return value_ == 0; }
  [[nodiscard]] void* pointer() const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): device addresses come from the driver as integers
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(value_));
  }

  friend constexpr auto operator<=>(VirtAddr, VirtAddr) = default;
  friend constexpr VirtAddr operator+(VirtAddr a, Bytes b) {
    return VirtAddr(a.value_ + b.count());
  }
  friend constexpr VirtAddr operator-(VirtAddr a, Bytes b) {
    return VirtAddr(a.value_ - b.count());
  }
  friend constexpr Bytes operator-(VirtAddr a, VirtAddr b) {
    NOFRAG_CHECK(a.value_ >= b.value_, "address distance underflow");
    return Bytes(a.value_ - b.value_);
  }

 private:
  std::uint64_t value_ = 0;
};

// A driver stream handle by value. 0 is the legacy default stream; 1 and 2 are CU_STREAM_LEGACY
// and CU_STREAM_PER_THREAD (cuda.h).
class StreamId {
 public:
  constexpr StreamId() = default;
  constexpr explicit StreamId(std::uint64_t value) : value_(value) {}
  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  // One name for a different stream in every thread.
  [[nodiscard]] constexpr bool is_per_thread() const { return value_ == 2; }
  friend constexpr auto operator<=>(StreamId, StreamId) = default;

 private:
  std::uint64_t value_ = 0;
};

class DeviceOrdinal {
 public:
  constexpr DeviceOrdinal() = default;
  constexpr explicit DeviceOrdinal(int value) : value_(value) {}
  [[nodiscard]] constexpr int value() const { return value_; }
  friend constexpr auto operator<=>(DeviceOrdinal, DeviceOrdinal) = default;

 private:
  int value_ = 0;
};

}  // namespace nofrag

template <>
struct std::hash<nofrag::StreamId> {
  std::size_t operator()(nofrag::StreamId s) const noexcept { return s.value(); }
};
template <>
struct std::hash<nofrag::VirtAddr> {
  std::size_t operator()(nofrag::VirtAddr a) const noexcept { return a.value(); }
};
