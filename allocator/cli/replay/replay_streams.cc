#include "cli/replay/replay_streams.h"

#include "cli/peers/replay_allocator.h"

namespace nofrag {

Result<std::unique_ptr<ReplayStreams>> ReplayStreams::create(const Trace& trace,
                                                             Driver& driver,
                                                             DeviceOrdinal device) {
  std::unique_ptr<ReplayStreams> streams(new ReplayStreams(driver, device));
  for (const std::uint64_t recorded : trace.streams) {
    if (recorded == 0) {
      streams->ids_.emplace_back(0);
      continue;
    }
    const Result<StreamId> made = driver.stream_create(device);
    if (!made.ok()) {
      return made.error();
    }
    streams->ids_.push_back(made.value());
    streams->made_.push_back(made.value());
  }
  return streams;
}

ReplayStreams::~ReplayStreams() {
  for (const StreamId stream : made_) {
    driver_.stream_destroy(device_, stream).ignore();
  }
}

Status ReplayStreams::close(ReplayAllocator& allocator) {
  Status first;
  for (const StreamId stream : made_) {
    const Status retired = allocator.retire(stream);
    const Status destroyed = driver_.stream_destroy(device_, stream);
    for (const Status& status : {retired, destroyed}) {
      if (first.ok()) {
        first = status;
      }
    }
  }
  made_.clear();
  return first;
}

}  // namespace nofrag
