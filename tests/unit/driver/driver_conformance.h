// The same questions for every Driver: what it must permit and refuse.
//
// driver_conformance.cc holds the tests; each program that links it defines conformance_driver():
// conformance_sim_test asks the simulated driver, conformance_cuda_test a real one (label gpu). An
// answer that differs between the two is a bug in the simulated driver.
#pragma once

#include <memory>
#include <string>

#include "driver/driver.h"

namespace nofrag {

// nullptr with the reason in *why_not: the tests are skipped.
std::unique_ptr<Driver> conformance_driver(std::string* why_not);

}  // namespace nofrag
