// listen_to_nvtx: a program's own NVTX ranges and marks, on their way into the recording of this process.
//
// NVTX asks the library that NVTX_INJECTION64_PATH names for functions to call (InitializeInjectionNvtx2 in
// api/c_nvtx.cc), once for each module that uses NVTX.
// Owns: the names of domains and the texts that were registered, for ever: NVTX's handles point to them.
// Layer: runtime. Invariants: does not start nofrag; a process that is not being recorded hears nothing. Ranges of
// nofrag's own (option `nvtx`) are left out.
// Threads: any. Failure: 0, and NVTX does nothing from then on. Fork, exit: nothing is recorded then.
// Cost: a beginning or an end takes 0.1 us while recording, 15 ns without.
#pragma once

#include <cstdint>

namespace nofrag {

// NVTX's own function, by which it tells where its functions can be replaced. What NVTX is to be told: 1 if it worked.
int listen_to_nvtx(const void* (*export_table)(std::uint32_t id));

}  // namespace nofrag
