#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "cli/explain/explain.h"
#include "cli/printable.h"
#include "diagnose/report.h"

namespace nofrag {
namespace {

using Json = nlohmann::ordered_json;

Json optional_bytes(const std::optional<Bytes>& bytes) {
  return bytes ? Json(bytes->count()) : Json(nullptr);
}

}  // namespace

Json explain_json(const Explained& explained) {
  const Diagnosis& d = explained.diagnosis;
  const Failure& f = explained.failure;
  return {{"schema", "nofrag.explain/1"},
          {"cause", std::string(to_string(d.cause))},
          {"confidence", std::round(d.confidence * 100) / 100},
          {"evidence", d.evidence},
          {"advice", d.advice},
          {"recoverable_by_remapping", d.recoverable_by_remapping},
          {"short_by_bytes", d.short_by.count()},
          {"missing", d.missing},
          {"source", explained.kind == "nothing" ? Json(nullptr) : Json(f.source)},
          {"numbers",
           {{"requested_bytes", optional_bytes(f.requested)},
            {"capacity_bytes", optional_bytes(f.capacity)},
            {"limit_bytes", optional_bytes(f.limit)},
            {"live_bytes", optional_bytes(f.live)},
            {"cached_bytes", optional_bytes(f.cached)},
            {"driver_free_bytes", optional_bytes(f.driver_free)},
            {"other_processes_bytes", optional_bytes(f.others)}}}};
}

std::string explain_page(const Explained& explained) {
  ReportContext context;
  if (explained.kind == "nothing") {
    return "unknown: " + printable(explained.found) +
           ".\nGive it the message whole, with the lines around it, or a trace.\n";
  }
  Diagnosis shown = explained.diagnosis;
  for (std::vector<std::string>* texts : {&shown.evidence, &shown.missing}) {
    std::transform(texts->begin(), texts->end(), texts->begin(), printable);
  }
  return explained.kind == "unfailed" ? unfailed_report(shown)
                                      : full_report(explained.failure, shown, context);
}

}  // namespace nofrag
