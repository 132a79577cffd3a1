// Any bytes as an out-of-memory message: read, judged, reported.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "diagnose/classify.h"
#include "diagnose/message/oom_message.h"
#include "diagnose/report.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const nofrag::Failure failure = nofrag::read_oom_message(nofrag::plain_text(bytes)).failure;
  const nofrag::Diagnosis diagnosis = nofrag::classify(failure);
  const bool sound = diagnosis.confidence >= 0 && diagnosis.confidence <= 1 &&
                     !(diagnosis.recoverable_by_remapping && diagnosis.short_by > nofrag::Bytes(0));
  if (!sound || nofrag::full_report(failure, diagnosis, {}).empty()) {
    std::abort();
  }
  return 0;
}
