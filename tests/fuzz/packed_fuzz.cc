// Any bytes as a packed trace: no crash, no unbounded memory; what is accepted can be written back.
// Checksums would stop nearly every mutation at the door, so the input is also tried as the payload
// of a block whose header and checksum are right.
#include <cstdint>
#include <string>

#include <nofrag/trace_format.h>

#include "trace/load_trace.h"
#include "trace/packed_codec.h"

namespace {

void load(std::string_view bytes) {
  nofrag::Trace trace;
  const auto error =
      nofrag::load_trace_from_memory(bytes, "input", nofrag::TraceFormat::kNofrag, &trace);
  if (error) {
    NOFRAG_CHECK(error->offset.has_value() && trace.events.empty(), "a refusal without a place");
  } else {
    NOFRAG_CHECK(trace.allocations + trace.frees == trace.events.size(), "totals");
  }
}

std::string block(std::uint16_t kind, std::string_view payload, std::uint32_t items) {
  std::string bytes;
  nofrag::append_little_endian<std::uint32_t>(NOFRAG_TRACE_BLOCK_MAGIC, &bytes);
  nofrag::append_little_endian(kind, &bytes);
  nofrag::append_little_endian<std::uint16_t>(0, &bytes);
  nofrag::append_little_endian(static_cast<std::uint32_t>(payload.size()), &bytes);
  nofrag::append_little_endian(static_cast<std::uint32_t>(payload.size()), &bytes);
  nofrag::append_little_endian(items, &bytes);
  nofrag::append_little_endian(nofrag::crc32_of(bytes), &bytes);
  return bytes + std::string(payload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  load(bytes);
  if (size < 1) {
    return 0;
  }
  std::string file(NOFRAG_TRACE_MAGIC, NOFRAG_TRACE_MAGIC_BYTES);
  nofrag::append_little_endian<std::uint16_t>(NOFRAG_TRACE_VERSION, &file);
  nofrag::append_little_endian<std::uint16_t>(16, &file);
  nofrag::append_little_endian<std::uint32_t>(0, &file);
  // The first byte says how many events the block claims.
  file += block(NOFRAG_TRACE_BLOCK_EVENTS, bytes.substr(1), data[0]);
  std::string totals;
  nofrag::append_little_endian<std::uint64_t>(data[0], &totals);
  totals.resize(40, '\0');
  load(file + block(NOFRAG_TRACE_BLOCK_END, totals, 0));
  // The same as a recording's block, and as one of its texts; a file that ends there is that of a killed process.
  file.resize(16);
  const auto texts = static_cast<std::uint16_t>(NOFRAG_TRACE_BLOCK_INFO +
                                                data[0] % (NOFRAG_TRACE_BLOCK_STACKS - 2));
  load(file + block(NOFRAG_TRACE_BLOCK_RECORD, bytes.substr(1), data[0]));
  file +=
      block(NOFRAG_TRACE_BLOCK_MODULES, std::string_view("\x01\x02/a\0", 5), 1);  // for call stacks
  load(file + block(texts, bytes.substr(1), data[0]) +
       block(NOFRAG_TRACE_BLOCK_RECORD, bytes.substr(1), data[0]));
  return 0;
}
