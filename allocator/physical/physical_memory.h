// PhysicalMemory: the handles of one device, created, released and counted against a limit.
//
// Owns: every physical byte held from the driver, mapped or not, until release. Layer: physical; it
// knows no addresses and no blocks.
// Units: handle sizes are multiples of the granularity.
// Invariants: reserved() == the sizes of all handles created and not released, those the driver
// refused to take back included; reserved() <= limit() whenever create() succeeds.
// Threads: none; the device lock. Failure: create() is kLimit (ours) or kOutOfMemory (the driver's)
// and changes nothing. release() cannot fail for the caller: a handle that the driver will not take
// back is kept as a spare and handed out by the next create of its size.
// Cost: one driver call each; create() asks the driver now and then how much of the device others hold.
#pragma once

#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "driver/driver.h"

namespace nofrag {

struct PhysicalHandle {
  HandleId id;
  Bytes size;
};

class PhysicalMemory {
 public:
  PhysicalMemory(Driver& driver, DeviceOrdinal device, Bytes granularity);
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  Result<PhysicalHandle> create(Bytes size);
  void release(PhysicalHandle handle);
  // Offers refused handles to the driver once more; what it still refuses stays spare.
  void release_spares();

  // Plain driver allocations count against the same limit, once they are made. pre: fits_limit(size); `size` was
  // charged before.
  void charge(Bytes size);
  void uncharge(Bytes size);

  void set_limit(Bytes limit) { limit_ = limit; }
  [[nodiscard]] Bytes limit() const { return limit_; }
  [[nodiscard]] bool fits_limit(Bytes size) const {
    return reserved_ <= limit_ && size <= limit_ - reserved_;
  }
  [[nodiscard]] Bytes reserved() const { return reserved_; }
  [[nodiscard]] Bytes peak_reserved() const { return peak_reserved_; }
  void reset_peak() { peak_reserved_ = reserved_; }
  [[nodiscard]] Bytes granularity() const { return granularity_; }
  // What others held of the device when the driver was last asked: by look(), at the first create, after every
  // further 64th of the device, and when it had no more. For how to lay memory out; never a reason to refuse a request.
  [[nodiscard]] Bytes others() const { return others_; }
  Result<MemoryInfo> look();
  [[nodiscard]] Bytes spare_bytes() const;

 private:
  Bytes limit_ = kNoLimit;
  Bytes reserved_;
  Bytes others_;
  Driver& driver_;
  DeviceOrdinal device_;
  Bytes granularity_;
  Bytes peak_reserved_;
  Bytes next_look_;  // when this much is reserved
  Bytes step_;       // from one look to the next
  std::vector<PhysicalHandle> spares_;
};

}  // namespace nofrag
