// shortage: which kind of true shortage it was, from the history and the moment of the failure.
//
// Layer: diagnose (part of classify). Growth that goes on is told from what one step needs by the lows of
// live memory: after equal work they are level, or they rise. What rises is a cache of contexts where
// requests grow too, or the same blocks grow; else a leak. Thresholds: docs/oom-guide.md.
// Threads: pure functions. Failure: the likeliest cause with a low confidence, or kUnknown.
// Cost: that of signals_of.
#pragma once

#include "diagnose/failure.h"

namespace nofrag {

// pre: memory was truly short, and this process is why.
void name_shortage(const Failure& failure, Diagnosis* diagnosis);
// Numbers are missing: what the text around the failure says, or nothing.
void guess_from_moment(const Failure& failure, Diagnosis* diagnosis);

}  // namespace nofrag
