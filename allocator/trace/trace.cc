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
  }
  return "unknown";
}

std::string TraceError::message() const {
  std::string text = path;
  if (line) {
    text += ":";
    text += std::to_string(*line);
  } else if (offset) {
    text += ": byte ";
    text += std::to_string(*offset);
  }
  text += ": found " + found;
  if (!expected.empty()) {
    text += "; expected " + expected;
  }
  return text;
}

}  // namespace nofrag
