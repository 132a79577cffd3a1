// Any bytes as a csv (or gzip) trace: no crash, no hang; what is refused names a place or says the
// file is unreadable; what is accepted survives being written and read again, in both formats.
#include <cstdint>
#include <string>

#include "trace/csv_format.h"
#include "trace/load_trace.h"
#include "trace/packed_format.h"

namespace {

std::string to_csv(const nofrag::Trace& trace) {
  std::string text(nofrag::kCsvHeader);
  text += '\n';
  nofrag::append_csv(trace, 0, trace.events.size(), &text);
  return text;
}

nofrag::Trace read_again(std::string_view bytes) {
  nofrag::Trace trace;
  const auto error =
      nofrag::load_trace_from_memory(bytes, "again", nofrag::TraceFormat::kAuto, &trace);
  NOFRAG_CHECK(!error.has_value(), "an accepted trace is refused when written back");
  return trace;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  nofrag::Trace trace;
  const auto error =
      nofrag::load_trace_from_memory(bytes, "input", nofrag::TraceFormat::kAuto, &trace);
  if (error) {
    NOFRAG_CHECK(error->line.has_value() || error->offset.has_value(), "a refusal without a place");
    NOFRAG_CHECK(!error->found.empty() && trace.events.empty(), "a refusal that left something");
    return 0;
  }
  NOFRAG_CHECK(trace.allocations + trace.frees == trace.events.size(), "totals");
  const std::string text = to_csv(trace);
  NOFRAG_CHECK(to_csv(read_again(text)) == text, "csv does not round trip");
  std::string packed;
  nofrag::PackedOptions options;
  options.events_per_block = 40;
  options.zstd_level = 1;
  NOFRAG_CHECK(nofrag::write_packed(trace,
                                    options,
                                    [&](std::string_view piece) {
                                      packed += piece;
                                      return true;
                                    }),
               "write");
  NOFRAG_CHECK(to_csv(read_again(packed)) == text, "the packed format does not round trip");
  return 0;
}
