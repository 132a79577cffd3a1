#include <string>

#include "trace/exporters/exporter.h"

namespace nofrag {
bool times_order_events(const Trace& trace) {
  for (std::size_t i = 1; i < trace.events.size(); ++i) {
    // At one moment, what ends there ends first.
    if (trace.events[i].time_us == trace.events[i - 1].time_us && trace.events[i].is_free() &&
        !trace.events[i - 1].is_free()) {
      return false;
    }
  }
  return true;
}

bool export_minimalloc(const Trace& trace, const ExportSink& sink) {
  const bool by_time = times_order_events(trace);
  const std::uint64_t end = (by_time ? trace.events.back().time_us : trace.events.size() - 1) + 1;
  std::vector<std::uint64_t> upper(trace.allocations, end);
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].is_free()) {
      upper[trace.events[i].block] = by_time ? trace.events[i].time_us : i;
    }
  }
  std::string out = "id,lower,upper,size\n";
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    if (event.is_free()) {
      continue;
    }
    out += std::to_string(trace.id_of(event.block)) + ',' +
           std::to_string(by_time ? event.time_us : i) + ',' + std::to_string(upper[event.block]) +
           ',' + std::to_string(event.size) + '\n';
    if (out.size() >= kExportPiece) {
      if (!sink(out)) {
        return false;
      }
      out.clear();
    }
  }
  return sink(out);
}

}  // namespace nofrag
