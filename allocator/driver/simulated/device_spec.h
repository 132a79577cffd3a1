// SimulatedDeviceSpec: what a simulated GPU is: size, granularity, abilities, prices.
//
// Owns: nothing; a value, read from a device file (JSON, format in docs/driver.md). The files of
// the top-level folder sim/ are built into the program, so `sim:h100-80g` works anywhere.
// Layer: driver. Units: Bytes. Threads: values. Failure: the loader returns a message that names
// the file, the key and what was expected there; nothing throws. Cost: one file read and parse.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "driver/simulated/cost_table.h"

namespace nofrag {

struct SimulatedDeviceSpec {
  // As a Driver reports it. Defaults: a small card with every ability, for tests.
  DeviceInfo info{.name = "simulated device",
                  .total_memory = 1 * kGiB,
                  .granularity = 2 * kMiB,
                  .virtual_memory = true,
                  .rdma_with_vmm = true,
                  .rdma_in_use = false,
                  .shareable_fd = true,
                  .shareable_fabric = false,
                  .compression = false,
                  .host_numa_vmm = false};
  CostTable costs;
};

struct SimulatedDeviceFile {
  SimulatedDeviceSpec spec;
  std::string source;  // the file's own words: card, driver version, date
};

// `name` is a built-in name ("h100-80g") or a path that ends in .json. False: `*error` says why,
// and `*out` is untouched.
bool load_simulated_device(std::string_view name, SimulatedDeviceFile* out, std::string* error);

// The same from text; `file` is the name used in messages.
bool parse_simulated_device(std::string_view text,
                            std::string_view file,
                            SimulatedDeviceFile* out,
                            std::string* error);

// In alphabetical order.
std::vector<std::string_view> builtin_simulated_devices();

}  // namespace nofrag
