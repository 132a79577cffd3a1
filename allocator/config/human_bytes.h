// human_bytes: a size as people read it in messages and tables.
//
// Layer: config (depends on base only), the lowest from which the device, the statistics, the program and
// the PyTorch plugin may all take it. Units: binary. What options are written in is format_bytes
// (config/option_table.h).
// Threads: pure function. Failure: none. Cost: one short string.
#pragma once

#include <string>

#include "base/units.h"

namespace nofrag {

// "0 B", "1023 B", "1.00 KiB", "20.00 MiB", "24.00 GiB", "1.50 TiB". Exact bytes belong in JSON.
std::string human_bytes(Bytes bytes);

// The same with GiB as the largest, "1536.00 GiB": as in PyTorch's out-of-memory messages, which tools read.
std::string torch_bytes(Bytes bytes);

}  // namespace nofrag
