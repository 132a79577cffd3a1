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

// options.driver is "cuda", "sim:NAME" or "sim:FILE.json". `lookup` finds the entries of the CUDA driver;
// null = dlsym.
std::unique_ptr<Driver> open_driver(const Options& options,
                                    void* (*lookup)(void* library, const char* symbol),
                                    std::string* error);

}  // namespace nofrag
