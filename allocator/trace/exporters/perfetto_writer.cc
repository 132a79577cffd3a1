#include <algorithm>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "trace/exporters/exporter.h"
#include "trace/record/ranges.h"
#include "trace/record/recording.h"

namespace nofrag {
namespace {

// A program's text as one of JSON's, which must be UTF-8: bytes that are no character's are replaced.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (; !text.empty(); text.remove_prefix(std::max<std::size_t>(utf8_length(text), 1))) {
    const char c = text.front();
    const std::size_t length = utf8_length(text);
    if (length != 1) {
      out += length == 0 ? std::string_view("\\ufffd") : text.substr(0, length);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += "01"[c >> 4 & 1];
      out += "0123456789abcdef"[c & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

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
    begin("M", "\"process_name\"", 0, false);
    out_ += ",\"args\":{\"name\":\"GPU " + process_ + "\"}}";
    if (trace.recording != nullptr && !write_program(trace)) {
      return false;
    }
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

  // What the program said of itself.
  bool write_program(const Trace& trace) {
    for (const auto& [number, thread] : trace.recording->threads) {
      begin("M", "\"thread_name\"", 0, false);
      out_ += ",\"tid\":" + std::to_string(number) + ",\"args\":{\"name\":" + quoted(thread.name) +
              "}}";
    }
    for (const Recording::Mark& mark : trace.recording->marks) {
      begin("i", quoted(mark.text), mark.time_us, true);
      out_ += ",\"tid\":" + std::to_string(mark.thread) + ",\"s\":\"p\"}";
    }
    const std::uint64_t end = trace.events.empty() ? 0 : trace.events.back().time_us;
    std::uint64_t number = 0;
    for (const RecordedRange& range : ranges_of(*trace.recording, end)) {
      const std::string thread = ",\"tid\":" + std::to_string(range.thread);
      if (range.of_thread) {
        begin("X", quoted(range.name), range.begin_us, true);
        out_ += thread + ",\"dur\":" +
                std::to_string(range.end_us - std::min(range.begin_us, range.end_us)) + "}";
      } else {
        const std::string id = ",\"cat\":\"range\",\"id\":" + std::to_string(++number) + "}";
        begin("b", quoted(range.name), range.begin_us, true);
        out_ += thread + id;
        begin("e", quoted(range.name), range.end_us, true);
        out_ += thread + id;
      }
      if (out_.size() >= kExportPiece) {
        if (!sink_(out_)) {
          return false;
        }
        out_.clear();
      }
    }
    return true;
  }

  // `name` as it stands in the file.
  void begin(const char* phase, std::string_view name, std::uint64_t time, bool timed) {
    out_ += first_ ? "" : ",\n";
    first_ = false;
    out_ += "{\"ph\":\"";
    out_ += phase;
    out_ += "\",\"name\":";
    out_ += name;
    out_ += ",\"pid\":";
    out_ += process_;
    if (timed) {
      out_ += ",\"ts\":";
      out_ += std::to_string(time);
    }
  }
  void counter(const char* name, std::uint64_t time, std::uint64_t value) {
    begin("C", quoted(name), time, true);
    out_ += ",\"args\":{\"";
    out_ += name;
    out_ += "\":";
    out_ += std::to_string(value);
    out_ += "}}";
  }
  void write_mark(const TraceMark& mark) {
    begin("i", quoted("out of memory"), mark.time_us, true);
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
