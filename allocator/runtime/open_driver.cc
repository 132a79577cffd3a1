#include "runtime/open_driver.h"

#include <string_view>

#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr std::string_view kSimulated = "sim:";

std::unique_ptr<Driver> open_simulated(const std::string& name, std::string* error) {
  SimulatedDeviceFile file;
  if (!load_simulated_device(std::string_view(name).substr(kSimulated.size()), &file, error)) {
    return nullptr;
  }
  return std::make_unique<SimulatedDriver>(file.spec, name);
}

}  // namespace

std::unique_ptr<Driver> open_driver(const std::string& name, std::string* error) {
  if (name.starts_with(kSimulated)) {
    return open_simulated(name, error);
  }
  *error = "there is no driver \"" + name + "\" (write cuda, sim:NAME or sim:FILE.json)";
  return nullptr;
}

}  // namespace nofrag
