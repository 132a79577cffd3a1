#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"
#include "driver_conformance.h"

namespace nofrag {

std::unique_ptr<Driver> conformance_driver(std::string* why_not) {
  SimulatedDeviceFile file;
  const bool loaded = load_simulated_device("h100-80g", &file, why_not);
  EXPECT_TRUE(loaded) << *why_not;
  return std::make_unique<SimulatedDriver>(file.spec, "sim:h100-80g");
}

}  // namespace nofrag
