// Reports of a failed allocation for people: three lines for an error's text, and a page.
//
// Layer: diagnose. Owns: nothing. Units: bytes as people read them. Threads: pure functions.
// Failure: none; what is not known is left out. Cost: host only.
#pragma once

#include <string>

#include "device/device_stats.h"
#include "diagnose/failure.h"

namespace nofrag {

// "cause: leak (85 %): a leak: ...\nwhy: ...\ndo: ...": what is appended to an error's text. `nofrag explain`
// reads it back.
[[nodiscard]] std::string short_report(const Diagnosis& diagnosis);

struct ReportContext {
  int device = 0;
  long pid = 0;
  std::string message;                 // the error's own text
  const DeviceStats* stats = nullptr;  // null: another allocator's failure
  std::string replay;                  // the command that plays it again; empty: none
};
[[nodiscard]] std::string full_report(const Failure& failure,
                                      const Diagnosis& diagnosis,
                                      const ReportContext& context);
// Of a run in which nothing failed: what is known of it.
[[nodiscard]] std::string unfailed_report(const Diagnosis& diagnosis);

}  // namespace nofrag
