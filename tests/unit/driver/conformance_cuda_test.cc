#include "driver/real/real_driver.h"
#include "driver_conformance.h"

namespace nofrag {

std::unique_ptr<Driver> conformance_driver(std::string* why_not) {
  Result<std::unique_ptr<RealDriver>> driver = RealDriver::open({}, why_not);
  if (!driver) {
    return nullptr;
  }
  return std::move(driver.value());
}

}  // namespace nofrag
