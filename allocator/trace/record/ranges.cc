#include "trace/record/ranges.h"

#include <algorithm>
#include <map>
#include <utility>

#include <nofrag/trace_format.h>

namespace nofrag {

std::vector<RecordedRange> ranges_of(const Recording& recording, std::uint64_t end_us) {
  std::vector<RecordedRange> ranges;
  // Those that are open, by thread and domain, or by number; innermost last.
  std::map<std::pair<std::uint16_t, std::uint64_t>, std::vector<std::size_t>> pushed;
  std::map<std::uint64_t, std::vector<std::size_t>> started;
  for (const Recording::RangeMoment& moment : recording.range_moments) {
    const bool of_thread =
        moment.kind == NOFRAG_TRACE_RANGE_PUSH || moment.kind == NOFRAG_TRACE_RANGE_POP;
    auto& open = of_thread ? pushed[{moment.thread, moment.key}] : started[moment.key];
    if (moment.kind == NOFRAG_TRACE_RANGE_PUSH || moment.kind == NOFRAG_TRACE_RANGE_START) {
      open.push_back(ranges.size());
      ranges.push_back({moment.time_us,
                        std::max(moment.time_us, end_us),
                        moment.thread,
                        of_thread,
                        moment.name});
    } else if (!open.empty()) {
      ranges[open.back()].end_us = moment.time_us;
      open.pop_back();
    }
  }
  return ranges;
}

}  // namespace nofrag
