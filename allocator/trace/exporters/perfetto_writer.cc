#include <algorithm>
#include <string>

#include "trace/exporters/exporter.h"

namespace nofrag {
namespace {

class PerfettoWriter {
 public:
  explicit PerfettoWriter(const ExportSink& sink) : sink_(sink) {}

  bool write(const std::vector<Trace>& traces) {
    out_ = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"source\":\"nofrag\"},\"traceEvents\":[\n";
    for (const Trace& trace : traces) {
      if (!write_device(trace)) {
        return false;
      }
    }
    out_ += "\n]}\n";
    return sink_(out_);
  }

 private:
  bool write_device(const Trace& trace) {
    process_ = std::to_string(trace.device);
    begin("M", "process_name", 0, false);
    out_ += ",\"args\":{\"name\":\"GPU " + process_ + "\"}}";
    std::uint64_t live = 0;
    std::uint64_t blocks = 0;
    std::size_t mark = 0;
    std::size_t i = 0;
    while (i < trace.events.size()) {
      // Counters hold one value a moment: the highest first, where it differs from the last.
      const std::uint64_t time = trace.events[i].time_us;
      for (; mark < trace.marks.size() && trace.marks[mark].event <= i; ++mark) {
        write_mark(trace.marks[mark]);
      }
      std::uint64_t highest = live;
      for (; i < trace.events.size() && trace.events[i].time_us == time; ++i) {
        const TraceEvent& event = trace.events[i];
        const std::uint64_t size = round_up(Bytes(event.size), kTraceRounding).count();
        live = event.is_free() ? live - size : live + size;
        blocks = event.is_free() ? blocks - 1 : blocks + 1;
        highest = std::max(highest, live);
      }
      if (highest != live) {
        counter("live", time, highest);
      }
      counter("live", time, live);
      counter("blocks", time, blocks);
      if (out_.size() >= kExportPiece) {
        if (!sink_(out_)) {
          return false;
        }
        out_.clear();
      }
    }
    for (; mark < trace.marks.size(); ++mark) {
      write_mark(trace.marks[mark]);
    }
    return true;
  }

  void begin(const char* phase, const char* name, std::uint64_t time, bool timed) {
    out_ += first_ ? "" : ",\n";
    first_ = false;
    out_ += "{\"ph\":\"";
    out_ += phase;
    out_ += "\",\"name\":\"";
    out_ += name;
    out_ += "\",\"pid\":";
    out_ += process_;
    if (timed) {
      out_ += ",\"ts\":";
      out_ += std::to_string(time);
    }
  }
  void counter(const char* name, std::uint64_t time, std::uint64_t value) {
    begin("C", name, time, true);
    out_ += ",\"args\":{\"";
    out_ += name;
    out_ += "\":";
    out_ += std::to_string(value);
    out_ += "}}";
  }
  void write_mark(const TraceMark& mark) {
    begin("i", "out of memory", mark.time_us, true);
    out_ += ",\"tid\":0,\"s\":\"p\",\"args\":{\"requested\":";
    out_ += std::to_string(mark.requested);
    if (mark.free_bytes) {
      out_ += ",\"free\":";
      out_ += std::to_string(*mark.free_bytes);
    }
    out_ += "}}";
  }

  const ExportSink& sink_;
  std::string out_;
  std::string process_;
  bool first_ = true;
};

}  // namespace

bool export_perfetto(const std::vector<Trace>& traces, const ExportSink& sink) {
  return PerfettoWriter(sink).write(traces);
}

}  // namespace nofrag
