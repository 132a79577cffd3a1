// fuzz_import: any bytes as a file of one foreign format.
//
// Owns: nothing. Layer: tests. What must hold: no crash, no hang; what is refused names a place and what was
// expected, and leaves nothing; what is accepted is a trace like any other: its totals add up, and it survives
// being written in our own formats, and as a PyTorch snapshot, and read again. Failure: NOFRAG_CHECK aborts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/csv_format.h"
#include "trace/exporters/exporter.h"
#include "trace/load_traces.h"

namespace nofrag {

inline std::string fuzz_csv_of(const Trace& trace) {
  std::string text(kCsvHeader);
  text += '\n';
  append_csv(trace, 0, trace.events.size(), &text);
  return text;
}

inline std::vector<Trace> fuzz_read_again(std::string_view bytes) {
  std::vector<Trace> traces;
  const auto error = load_traces_from_memory(bytes, "again", TraceFormat::kAuto, &traces);
  NOFRAG_CHECK(!error.has_value(), "an imported trace is refused when written back");
  return traces;
}

inline int fuzz_import(const std::uint8_t* data, std::size_t size, TraceFormat format) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<Trace> traces;
  const auto error = load_traces_from_memory(bytes, "input", format, &traces);
  if (error) {
    NOFRAG_CHECK(error->line || error->offset || error->row, "a refusal without a place");
    NOFRAG_CHECK(!error->found.empty() && !error->expected.empty(), "a refusal without a reason");
    NOFRAG_CHECK(traces.empty(), "a refusal that left something");
    return 0;
  }
  NOFRAG_CHECK(!traces.empty(), "accepted, and nothing in it");
  for (const Trace& trace : traces) {
    NOFRAG_CHECK(!trace.events.empty(), "an empty trace");
    NOFRAG_CHECK(trace.allocations + trace.frees == trace.events.size(), "totals");
    NOFRAG_CHECK(trace.sites.empty() || trace.sites.size() == trace.allocations, "sites");
    const std::string text = fuzz_csv_of(trace);
    const std::vector<Trace> back = fuzz_read_again(text);
    NOFRAG_CHECK(back.size() == 1 && fuzz_csv_of(back[0]) == text, "csv does not round trip");
    NOFRAG_CHECK(back[0].peak_live == trace.peak_live, "peak");
  }
  std::string pickle;
  NOFRAG_CHECK(export_torch_snapshot(traces,
                                     [&](std::string_view piece) {
                                       pickle += piece;
                                       return true;
                                     }),
               "write");
  const std::vector<Trace> back = fuzz_read_again(pickle);
  NOFRAG_CHECK(back.size() == traces.size(), "a snapshot does not round trip");
  for (std::size_t i = 0; i < back.size(); ++i) {
    NOFRAG_CHECK(back[i].peak_live == traces[i].peak_live, "the peak of a snapshot");
    NOFRAG_CHECK(back[i].events.size() == traces[i].events.size(), "the events of a snapshot");
  }
  return 0;
}

}  // namespace nofrag
