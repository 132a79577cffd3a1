// ReplayStreams: a driver stream for each stream of a trace.
//
// Owns: the streams that it made. The recorder's stream 0 is the legacy default stream and is nobody's
// to make or destroy. Layer: cli. Invariant: ids() is in the order of Trace::streams. Threads: none.
// Failure: create makes all or none; the driver's error. Cost: a driver call a stream, not in the
// ledger.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "driver/driver.h"
#include "trace/trace.h"

namespace nofrag {

class ReplayAllocator;

class ReplayStreams {
 public:
  // `driver` outlives the object.
  static Result<std::unique_ptr<ReplayStreams>> create(const Trace& trace,
                                                       Driver& driver,
                                                       DeviceOrdinal device);
  ReplayStreams(const ReplayStreams&) = delete;
  ReplayStreams& operator=(const ReplayStreams&) = delete;
  // Destroys what close() has not.
  ~ReplayStreams();

  [[nodiscard]] const std::vector<StreamId>& ids() const { return ids_; }
  // As a program must do it: the allocator is told of each stream's end, then the stream is destroyed.
  // The first error; all streams are destroyed in any case.
  Status close(ReplayAllocator& allocator);

 private:
  ReplayStreams(Driver& driver, DeviceOrdinal device) : driver_(driver), device_(device) {}

  Driver& driver_;
  DeviceOrdinal device_;
  std::vector<StreamId> ids_;
  std::vector<StreamId> made_;
};

}  // namespace nofrag
