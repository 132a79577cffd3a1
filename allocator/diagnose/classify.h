// classify: the root cause of a failed allocation, from what is known about it.
//
// Layer: diagnose. The order of the questions is the order of certainty: does the request fit the card
// at all; did the driver refuse with memory free; were the bytes there, in pieces; would they be there
// without other processes; and only then, from the history, which kind of true shortage it is. What was
// truly short is never called fragmentation. Rules, thresholds and what each confidence means are in
// docs/oom-guide.md. Threads: pure function. Failure: kUnknown, with `missing` filled.
// Cost: that of signals_of.
#pragma once

#include "diagnose/failure.h"

namespace nofrag {

[[nodiscard]] Diagnosis classify(const Failure& failure);

// Of a failure with a history: where the process's own limit refused what the card had, and no growth would have
// run into any limit, that limit is the cause. (classify keeps to the history; what it found is the evidence behind
// the limit: a job under a limit that stands for the card's memory wants to know why it needs so much.) The error's
// own text and the recording of the same failure both come through here, so they agree.
void blame_limit(const Failure& failure, Diagnosis* diagnosis);

}  // namespace nofrag
