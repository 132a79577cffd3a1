// advise: what to do about a failure, most useful first.
//
// Layer: diagnose. Nothing is advised that is on already (remapping under nofrag, expandable segments
// where they are known to be on) and nothing that cannot help this cause. Threads: pure function.
// Failure: none. Cost: host only. Each cause's advice at length: docs/oom-guide.md.
#pragma once

#include <string>
#include <vector>

#include "diagnose/failure.h"

namespace nofrag {

[[nodiscard]] std::vector<std::string> advise(const Failure& failure, const Diagnosis& diagnosis);
// Of advise: where the machine's memory ran out.
void advise_on_host(const Failure& failure, std::vector<std::string>* out);

}  // namespace nofrag
