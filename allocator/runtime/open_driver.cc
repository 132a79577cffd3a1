#include "runtime/open_driver.h"

#include <string_view>

#include "driver/real/real_driver.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr std::string_view kSimulated = "sim:";

std::unique_ptr<Driver> open_simulated(const std::string& name, std::string* error) {
  SimulatedDeviceFile file;
  if (!load_simulated_device(std::string_view(name).substr(kSimulated.size()), &file, error)) {
    return nullptr;
  }
  auto driver = std::make_unique<SimulatedDriver>(file.spec, name);
  // Nobody moves the clock of a live process: what was queued would never be done, and what was freed never free.
  // By calls and not by the host's time, so that the same program does the same each time.
  constexpr double kBetweenCallsUs = 20;
  driver->move_with_calls(kBetweenCallsUs);
  return driver;
}

using Lookup = void* (*)(void* library, const char* symbol);

std::unique_ptr<Driver> open_real(const Options& options, Lookup lookup, std::string* error) {
  RealDriverOptions real;
  real.lookup = lookup;
  real.rdma = options.rdma;
  real.shareable_fd = options.shareable_handles == ShareableHandles::kFd;
  Result<std::unique_ptr<RealDriver>> opened = RealDriver::open(real, error);
  if (!opened.ok()) {
    *error += "; without a GPU, NOFRAG_CONF=driver:sim:h100-80g runs on a simulated one";
    return nullptr;
  }
  return std::move(opened.value());
}

}  // namespace

std::unique_ptr<Driver> open_driver(const Options& options, Lookup lookup, std::string* error) {
  if (options.driver == "cuda") {
    return open_real(options, lookup, error);
  }
  if (options.driver.starts_with(kSimulated)) {
    return open_simulated(options.driver, error);
  }
  *error = "there is no driver \"" + options.driver + "\" (write cuda, sim:NAME or sim:FILE.json)";
  return nullptr;
}

}  // namespace nofrag
