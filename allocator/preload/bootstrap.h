// Bootstrap: the loader's own dlsym and dlopen, and finding the driver with them.
//
// Owns: our exported `dlsym` and `dlopen` (bootstrap.cc), which jump to the loader's with the caller's return
// address in place, so that RTLD_NEXT, RTLD_DEFAULT and the caller's RUNPATH mean what the caller means.
// Layer: preload. Threads: any. Failure: without a loader that we know, dlsym answers null.
// Cost: a name that does not begin with "cu": two compares.
#pragma once

namespace nofrag::preload {

// The loader's, never our own. Null if the symbol is not there.
[[nodiscard]] void* real_dlsym(void* handle, const char* name);

// Finds the driver once it is in the process, fills the entries and decides whether we act. False: no driver
// is loaded. `load`: load it if it is not.
bool find_driver(bool load);

}  // namespace nofrag::preload
