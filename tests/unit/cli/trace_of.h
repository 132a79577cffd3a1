// A trace from lines of the text format, for the tests of replay. Owns: nothing. Layer: tests. Threads: any.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "trace/load_trace.h"

namespace nofrag {

inline Trace trace_of(const std::string& body) {
  Trace trace;
  const auto error = load_trace_from_memory(
      "time_us,op,id,size,stream\n" + body, "t.csv", TraceFormat::kAuto, &trace);
  EXPECT_FALSE(error.has_value()) << error->message();
  return trace;
}

}  // namespace nofrag
