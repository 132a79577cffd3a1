// Samples: the small foreign files (tests/fuzz/make_seeds.py writes them), read and compared.
//
// Owns: nothing. Layer: tests. Threads: none. Failure: a test failure that names the file.
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trace/csv_format.h"
#include "trace/load_traces.h"

namespace nofrag {

// "rmm_fuzz/rmm.csv"
inline std::string sample_bytes(const std::string& name) {
  std::ifstream file(std::string(NOFRAG_SEEDS) + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<Trace> import_good(const std::string& bytes,
                                      const std::string& name,
                                      TraceFormat format = TraceFormat::kAuto) {
  std::vector<Trace> traces;
  const auto error = load_traces_from_memory(bytes, name, format, &traces);
  EXPECT_FALSE(error.has_value()) << error->message();
  return traces;
}

inline Trace import_sample(const std::string& name) {
  std::vector<Trace> traces = import_good(sample_bytes(name), name);
  EXPECT_EQ(traces.size(), 1U) << name;
  return traces.empty() ? Trace() : std::move(traces.front());
}

// The events as csv lines, times counted from the first.
inline std::string lines_of(Trace trace) {
  const std::uint64_t start = trace.events.empty() ? 0 : trace.events.front().time_us;
  for (TraceEvent& event : trace.events) {
    event.time_us -= start;
  }
  std::string text;
  append_csv(trace, 0, trace.events.size(), &text);
  return text;
}

inline bool has_note(const Trace& trace, const std::string& part) {
  for (const std::string& note : trace.notes) {
    if (note.find(part) != std::string::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace nofrag
