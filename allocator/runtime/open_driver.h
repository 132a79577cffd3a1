// open_driver: the Driver that the options ask for.
//
// Owns: nothing; the caller owns the driver. Layer: runtime. Threads: any. Failure: null, and a
// sentence in *error that says what was tried. Cost: loads libcuda.so.1 or reads a device file.
#pragma once

#include <memory>
#include <string>

#include "config/options.h"
#include "driver/driver.h"

namespace nofrag {

// options.driver is "cuda", "sim:NAME" or "sim:FILE.json".
std::unique_ptr<Driver> open_driver(const Options& options, std::string* error);

}  // namespace nofrag
