// name_call_sites: the call stacks of a recording as names that people read.
//
// A frame of Python's is "file.py:12 function", as in PyTorch's snapshots; a native one "module!function", or
// "module+0x1234" where the module's file is not there or is another build. The frames of a stack that has both
// are the native ones down to the interpreter, then Python's. A site's one name is that of the innermost frame that is the
// user's own: Python's outside of PyTorch, else native code that is no allocator, runtime or framework.
// Owns: nothing. Layer: trace. Invariants: of a trace without call sites nothing is changed; else every block has one,
// "(not sampled)" where its stack was not recorded.
// Threads: none. Failure: a name with less in it. Cost: a pass over the symbols of each module that has frames.
#pragma once

#include <vector>

#include "trace/trace.h"

namespace nofrag {

// Of one recording, a trace a device.
void name_call_sites(std::vector<Trace>* traces);

}  // namespace nofrag
