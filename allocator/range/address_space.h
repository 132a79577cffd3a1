// AddressSpace: one device's reserved addresses, cut into regions for heaps.
//
// Owns: one driver reservation, made at the first region and kept until destruction (or, where it
// is told so, for good): one contiguous range makes "is this address ours" two compares.
// Layer: range.
// Units: regions are whole granules. The reservation is kSpan times the device's memory
// (address space is not memory: reservations up to 2^46 bytes cost nothing, docs/driver.md),
// halved until the driver accepts it, and never less than four times. Who needs several in one
// process starts lower: all its addresses together are about 2^47, and the driver needs some, too.
// Invariants: free spans are sorted, disjoint and never adjacent; free + handed out ==
// reservation.
// Threads: none (the device lock), except contains(), which is lock-free.
// Failure: take_region is kOutOfMemory when addresses run out and the driver's error when it
// refuses.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "driver/driver.h"

namespace nofrag {

struct AddressRange {
  VirtAddr address;
  Bytes size;
  [[nodiscard]] VirtAddr end() const { return address + size; }
  [[nodiscard]] bool contains(VirtAddr a) const { return a >= address && a < end(); }
};

class AddressSpace {
 public:
  static constexpr std::uint64_t kSpan = 256;
  static constexpr std::uint64_t kFrugalSpan = 16;
  static constexpr std::uint64_t kSmallestSpan = 4;

  AddressSpace(Driver& driver, Bytes device_memory, Bytes granularity);
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;
  // pre: every region was returned with nothing mapped in it.
  ~AddressSpace();

  // The reservation outlives this object and is never given back: nobody in this process is given one of its
  // addresses again. How large it is (0: none yet).
  Bytes keep() {
    kept_ = true;
    return Bytes(size_.load(std::memory_order_relaxed));
  }
  // One of so many in this process: starts at its share of kSpan, at kFrugalSpan at least. No effect after the first
  // region.
  void be_one_of(unsigned count) { span_ = std::max(kSpan / std::bit_ceil(count), kFrugalSpan); }

  Result<AddressRange> take_region(Bytes size);
  void return_region(AddressRange region);
  [[nodiscard]] bool contains(VirtAddr address) const {
    const std::uint64_t size = size_.load(std::memory_order_acquire);
    return address.value() - base_.load(std::memory_order_relaxed) < size;
  }
  // Addresses not handed out; before the first region, what there will be at best.
  [[nodiscard]] Bytes free_bytes() const;

 private:
  Status reserve();

  Driver& driver_;
  Bytes device_memory_;
  Bytes granularity_;
  std::uint64_t span_ = kSpan;  // where reserving starts
  bool kept_ = false;
  std::vector<AddressRange> free_;
  // Written once under the device lock, size last; read without it.
  std::atomic<std::uint64_t> base_{0};
  std::atomic<std::uint64_t> size_{0};
};

}  // namespace nofrag
