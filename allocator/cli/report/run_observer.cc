#include "cli/report/run_observer.h"

#include <algorithm>

namespace nofrag {

RunObserver::RunObserver(const Trace& trace, std::uint64_t looks)
    : every_(std::max<std::uint64_t>(1, (trace.events.size() + looks - 1) / looks)),
      addresses_(trace.allocations) {}

void RunObserver::look(std::uint64_t events_done, const ReplayAllocator& allocator) {
  samples_.push_back({events_done, allocator.reserved(), allocator.pending()});
}

}  // namespace nofrag
