// open_driver: a Driver from its name in the `driver` option.
//
// Owns: nothing; the caller owns the driver. Layer: runtime. Threads: any. Failure: null, and a
// sentence in *error that says what was tried. Cost: loads libcuda.so.1 or reads a device file.
#pragma once

#include <memory>
#include <string>

#include "driver/driver.h"

namespace nofrag {

// "cuda", "sim:NAME" or "sim:FILE.json".
std::unique_ptr<Driver> open_driver(const std::string& name, std::string* error);

}  // namespace nofrag
