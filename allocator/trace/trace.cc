#include "trace/trace.h"

namespace nofrag {

std::string_view to_string(TraceFormat format) {
  switch (format) {
    case TraceFormat::kAuto:
      return "auto";
    case TraceFormat::kCsv:
      return "csv";
    case TraceFormat::kNofrag:
      return "nofrag";
    case TraceFormat::kTorch:
      return "torch";
    case TraceFormat::kKineto:
      return "kineto";
    case TraceFormat::kTimeline:
      return "torch-timeline";
    case TraceFormat::kRmm:
      return "rmm";
    case TraceFormat::kNsys:
      return "nsys";
    case TraceFormat::kUmpire:
      return "umpire";
    case TraceFormat::kMinimalloc:
      return "minimalloc";
    case TraceFormat::kPerfetto:
      return "perfetto";
  }
  return "unknown";
}

std::string TraceError::message() const {
  std::string text = path;
  if (line) {
    text += ':';
    text += std::to_string(*line);
  } else if (offset) {
    text += ": byte ";
    text += std::to_string(*offset);
  } else if (row) {
    text += ": row ";
    text += std::to_string(*row);
  }
  text += ": found " + found;
  if (!expected.empty()) {
    text += "; expected " + expected;
  }
  return text;
}

}  // namespace nofrag
