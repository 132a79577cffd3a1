#include "import_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return nofrag::fuzz_import(data, size, nofrag::TraceFormat::kTimeline);
}
