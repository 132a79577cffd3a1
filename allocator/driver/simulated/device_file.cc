// Reads device files. The one file of this layer that is built with exceptions: the JSON library
// reports by them; load and parse turn them into messages.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "base/json_reason.h"
#include "driver/simulated/builtin_devices.h"
#include "driver/simulated/device_spec.h"

namespace nofrag {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "nofrag.device/1";
constexpr double kMaxMicroseconds = 1e9;

// Carries "KEY: expected WHAT" up to parse_simulated_device.
[[noreturn]] void reject(const std::string& key, const std::string& expectation) {
  throw std::runtime_error(key + ": expected " + expectation);
}

void reject_unknown_keys(const Json& object,
                         const std::string& where,
                         std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      std::string list;
      for (const std::string_view name : known) {
        list += std::string(list.empty() ? "" : ", ").append(name);
      }
      reject(where + key, "one of " + list + " here");
    }
  }
}

const Json& member(const Json& object, const std::string& where, const std::string& key) {
  const auto it = object.find(key);
  if (it == object.end()) {
    reject(where + key, "this key to be present");
  }
  return *it;
}

std::string read_text(const Json& object, const std::string& key) {
  const Json& value = member(object, "", key);
  if (!value.is_string() || value.get<std::string>().empty()) {
    reject(key, "a non-empty string");
  }
  return value.get<std::string>();
}

Bytes read_bytes(const Json& object, const std::string& key) {
  const Json& value = member(object, "", key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::uint64_t{1} << 44) {
    reject(key, "a whole number of bytes, at most 16 TiB");
  }
  return Bytes(value.get<std::uint64_t>());
}

double read_microseconds(const Json& value, const std::string& key) {
  if (!value.is_number()) {
    reject(key, "a number of microseconds");
  }
  const double us = value.get<double>();
  if (!(us >= 0 && us <= kMaxMicroseconds)) {
    reject(key, "microseconds from 0 to 1e9");
  }
  return us;
}

std::vector<CostPoint> read_points(const Json& value, const std::string& key) {
  if (!value.is_array() || value.empty()) {
    reject(key, "a list of [MiB, microseconds] pairs");
  }
  std::vector<CostPoint> points;
  for (const Json& pair : value) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number()) {
      reject(key, "[MiB, microseconds] pairs of numbers");
    }
    const double mib = pair[0].get<double>();
    if (!(mib >= 0 && mib <= static_cast<double>(std::uint64_t{1} << 30))) {
      reject(key, "sizes from 0 to 2^30 MiB");
    }
    const Bytes size(static_cast<std::uint64_t>(mib * 1048576.0));
    if (!points.empty() && size <= points.back().bytes) {
      reject(key, "sizes that ascend");
    }
    points.push_back({size, read_microseconds(pair[1], key)});
  }
  return points;
}

CallCost read_call_cost(const Json& value, const std::string& key) {
  CallCost cost;
  if (value.is_number()) {
    cost.points.push_back({Bytes(0), read_microseconds(value, key)});
    return cost;
  }
  if (!value.is_object()) {
    reject(key, "a number of microseconds or an object with points_mib");
  }
  reject_unknown_keys(value, key + ".", {"points_mib", "failure", "call_overhead", "peer_mapping"});
  cost.points = read_points(member(value, key + ".", "points_mib"), key + ".points_mib");
  const auto optional = [&](const char* name) {
    return value.contains(name) ? read_microseconds(value[name], key + "." + name) : 0.0;
  };
  cost.failure_us = optional("failure");
  cost.call_overhead_us = optional("call_overhead");
  cost.peer_mapping_us = optional("peer_mapping");
  return cost;
}

CostTable read_costs(const Json& object) {
  const Json& costs = member(object, "", "costs_us");
  if (!costs.is_object()) {
    reject("costs_us", "an object with one entry for each driver call");
  }
  for (const auto& [key, value] : costs.items()) {
    DriverCall call{};
    if (!driver_call_from_name(key, &call)) {
      reject(std::string("costs_us.").append(key), "the name of a driver call");
    }
  }
  CostTable table;
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    const auto call = static_cast<DriverCall>(i);
    const std::string name = to_string(call);
    table[call] =
        read_call_cost(member(costs, "costs_us.", name), std::string("costs_us.").append(name));
  }
  return table;
}

void read_capabilities(const Json& object, DeviceInfo* info) {
  const Json& capabilities = member(object, "", "capabilities");
  if (!capabilities.is_object()) {
    reject("capabilities", "an object of true and false");
  }
  reject_unknown_keys(capabilities,
                      "capabilities.",
                      {"virtual_memory",
                       "rdma_with_vmm",
                       "shareable_fd",
                       "shareable_fabric",
                       "compression",
                       "host_numa_vmm"});
  const auto flag = [&](const char* name) {
    if (!capabilities.contains(name)) {
      return false;
    }
    if (!capabilities[name].is_boolean()) {
      reject(std::string("capabilities.") + name, "true or false");
    }
    return capabilities[name].get<bool>();
  };
  info->virtual_memory = flag("virtual_memory");
  info->rdma_with_vmm = flag("rdma_with_vmm");
  info->rdma_in_use = info->rdma_with_vmm;
  info->shareable_fd = flag("shareable_fd");
  info->shareable_fabric = flag("shareable_fabric");
  info->compression = flag("compression");
  info->host_numa_vmm = flag("host_numa_vmm");
}

SimulatedDeviceFile read_device(const Json& root) {
  if (!root.is_object()) {
    reject("the file", "a JSON object");
  }
  reject_unknown_keys(
      root,
      "",
      {"format", "name", "source", "total_memory", "granularity", "capabilities", "costs_us"});
  if (read_text(root, "format") != kFormat) {
    reject("format", std::string("the text ") + kFormat);
  }
  SimulatedDeviceFile file;
  DeviceInfo& info = file.spec.info;
  info.name = read_text(root, "name");
  file.source = read_text(root, "source");
  info.total_memory = read_bytes(root, "total_memory");
  info.granularity = read_bytes(root, "granularity");
  read_capabilities(root, &info);
  const std::uint64_t unit = info.granularity.count();
  if (info.virtual_memory && (unit < 4096 || (unit & (unit - 1)) != 0)) {
    reject("granularity", "a power of two of at least 4096");
  }
  if (info.total_memory.is_zero()) {
    reject("total_memory", "more than 0 bytes");
  }
  file.spec.costs = read_costs(root);
  return file;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool load_file(std::string_view path, SimulatedDeviceFile* out, std::string* error) {
  std::ifstream stream{std::string(path)};
  std::ostringstream text;
  if (!stream || !(text << stream.rdbuf())) {
    *error = std::string(path) + ": cannot be read; expected a simulated device file";
    return false;
  }
  return parse_simulated_device(text.str(), path, out, error);
}

}  // namespace

bool parse_simulated_device(std::string_view text,
                            std::string_view file,
                            SimulatedDeviceFile* out,
                            std::string* error) {
  try {
    *out = read_device(Json::parse(text));
    return true;
  } catch (const Json::parse_error& failure) {
    *error = std::string(file) + ": byte " + std::to_string(failure.byte) + ": expected JSON (" +
             json_reason(failure.what()) + ")";
  } catch (const Json::exception& failure) {
    *error = std::string(file) + ": " + json_reason(failure.what());
  } catch (const std::exception& failure) {
    *error = std::string(file) + ": " + failure.what();
  }
  return false;
}

bool load_simulated_device(std::string_view name, SimulatedDeviceFile* out, std::string* error) {
  for (const BuiltinDevice& device : builtin_device_files()) {
    if (device.name == name) {
      return parse_simulated_device(device.text, std::string("sim:").append(name), out, error);
    }
  }
  if (ends_with(name, ".json")) {
    return load_file(name, out, error);
  }
  *error = "no simulated device '" + std::string(name) + "'; expected a file ending in .json or";
  for (const BuiltinDevice& device : builtin_device_files()) {
    error->append(" ").append(device.name);
  }
  return false;
}

std::vector<std::string_view> builtin_simulated_devices() {
  std::vector<std::string_view> names;
  for (const BuiltinDevice& device : builtin_device_files()) {
    names.push_back(device.name);
  }
  return names;
}

}  // namespace nofrag
