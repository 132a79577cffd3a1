// What an option brings with it for others: nvtx:memory a guard behind each block, and the plain backend.
//
// Owns: nothing. Layer: runtime; for the process's start and for the commands that say what a process would do.
// Threads: pure function. Failure: none.
#pragma once

#include "config/options.h"

namespace nofrag {

// True if it is nvtx:memory that made the backend plain: compute-sanitizer takes whole allocations of the driver for
// heaps, and no mapped memory (measured, docs/not-supported.md). An explicit backend:vmm stays.
bool add_implied(Options* options);

}  // namespace nofrag
