#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <nofrag/version.h>

#include "base/json_text.h"
#include "cli/commands.h"
#include "cli/printable.h"
#include "cli/run/variables.h"
#include "config/human_bytes.h"
#include "config/option_table.h"
#include "device/tuning.h"
#include "driver/real/real_driver.h"
#include "driver/simulated/device_spec.h"
#include "runtime/implied_options.h"

namespace nofrag {
namespace {

struct DeviceFinding {
  std::string label;  // "cuda:0"
  DeviceInfo info;
  std::optional<MemoryInfo> memory;
  bool usable = true;
  std::string would_use;  // what nofrag would do on it, and why
  std::string warning;    // what is wrong with the options, and what to write instead
};

struct Findings {
  bool library_found = false;
  std::string problem;  // why there is no CUDA device
  int cuda_version = 0;
  std::string chosen_by;  // what narrows the devices to one where --device does not
  std::vector<DeviceFinding> devices;
  std::vector<Variable> variables;
};

std::string version_text(int cuda_version) {
  return fmt::format("{}.{}", cuda_version / 1000, cuda_version % 1000 / 10);
}

DeviceFinding examine(Driver& driver,
                      DeviceOrdinal device,
                      std::string label,
                      const Options& options) {
  DeviceFinding finding;
  finding.label = std::move(label);
  const Result<DeviceInfo> info = driver.device_info(device);
  if (!info.ok()) {
    finding.usable = false;
    finding.would_use =
        fmt::format("nothing: the driver gives no information on it ({})", to_string(info.code()));
    return finding;
  }
  finding.info = info.value();
  if (const Result<MemoryInfo> memory = driver.memory_info(device); memory.ok()) {
    finding.memory = memory.value();
  }
  const DeviceInfo& found = finding.info;
  const Tuning tuning = tuning_of(options, found.granularity);
  if (options.backend == Backend::kPlain) {
    finding.would_use = options.nvtx == NvtxMode::kMemory
                            ? "plain driver allocations, because nvtx:memory brings them"
                            : "plain driver allocations, because backend:plain says so";
  } else if (found.virtual_memory) {
    finding.would_use = fmt::format(
        "virtual memory in handles of {} to {} (in units of {}); RDMA capable: {}; shareable: {}",
        human_bytes(tuning.handle),
        human_bytes(tuning.largest),
        human_bytes(found.granularity),
        !options.rdma          ? "no, rdma:false"
        : !found.rdma_with_vmm ? "no, the device does not offer it"
                               : "asked for, dropped if the driver refuses",
        options.shareable_handles == ShareableHandles::kNone ? "no, as by default"
        : found.shareable_fd                                 ? "file descriptors"
                                                             : "no, the device does not offer it");
  } else if (options.backend == Backend::kVmm) {
    finding.usable = false;
    finding.would_use = "nothing: backend:vmm demands virtual memory, and the device has none";
    finding.warning = "write backend:auto or backend:plain to use it";
    return finding;
  } else {
    finding.would_use = "plain driver allocations, because the device has no virtual memory calls";
  }
  finding.warning = limit_warning(options, found);
  if (!finding.warning.empty()) {
    finding.usable = false;
    finding.would_use = "nothing: every allocation would fail";
  }
  return finding;
}

Findings examine_cuda(const Options& options) {
  Findings findings;
  std::string why;
  RealDriverOptions driver_options;
  driver_options.rdma = options.rdma;
  Result<std::unique_ptr<RealDriver>> driver = RealDriver::open(driver_options, &why);
  if (!driver.ok()) {
    findings.problem = why;
    return findings;
  }
  findings.library_found = true;
  findings.cuda_version = driver.value()->cuda_version();
  const Result<int> count = driver.value()->device_count();
  for (int i = 0; count.ok() && i < count.value(); ++i) {
    findings.devices.push_back(
        examine(*driver.value(), DeviceOrdinal(i), fmt::format("cuda:{}", i), options));
  }
  return findings;
}

Findings examine_one(const DeviceTarget& target, const Options& options) {
  const DeviceSession session = target.open({});
  Findings findings;
  findings.library_found = !target.is_simulated();
  findings.devices.push_back(examine(*session.driver, session.device, target.text(), options));
  return findings;
}

Findings examine(const std::optional<std::string>& device, GivenOptions given) {
  add_implied(&given.options);
  // `driver:cuda` means all of its devices here, as it does in a process that uses nofrag.
  if (!device && given.options.driver == Options{}.driver) {
    return examine_cuda(given.options);
  }
  Findings findings = examine_one(choose_device(device, given), given.options);
  if (!device) {
    findings.chosen_by =
        fmt::format("{} says driver:{}", given.driver_source, given.options.driver);
  }
  return findings;
}

const char* yes_no(bool value) {
  return value ? "yes" : "no";
}

nlohmann::ordered_json device_json(const DeviceFinding& device) {
  const DeviceInfo& info = device.info;
  nlohmann::ordered_json out = {{"device", device.label},
                                {"name", info.name},
                                {"total_bytes", info.total_memory.count()},
                                {"free_bytes", nullptr},
                                {"virtual_memory", info.virtual_memory},
                                {"granularity_bytes", info.granularity.count()},
                                {"rdma_with_virtual_memory", info.rdma_with_vmm},
                                {"shareable_fd", info.shareable_fd},
                                {"shareable_fabric", info.shareable_fabric},
                                {"compression", info.compression},
                                {"host_virtual_memory", info.host_numa_vmm},
                                {"usable", device.usable},
                                {"nofrag_would_use", device.would_use},
                                {"warning", nullptr}};
  if (device.memory) {
    out["free_bytes"] = device.memory->free.count();
  }
  if (!device.warning.empty()) {
    out["warning"] = device.warning;
  }
  return out;
}

nlohmann::ordered_json findings_json(const Findings& findings) {
  nlohmann::ordered_json out = {{"schema", "nofrag.doctor/1"},
                                {"nofrag_version", NOFRAG_VERSION_STRING},
                                {"cuda_driver_found", findings.library_found},
                                {"cuda_problem", nullptr},
                                {"cuda_version", nullptr},
                                {"devices", nlohmann::ordered_json::array()},
                                {"simulated_devices", nlohmann::ordered_json::array()},
                                {"environment", nlohmann::ordered_json::array()}};
  if (!findings.problem.empty()) {
    out["cuda_problem"] = findings.problem;
  }
  if (findings.cuda_version > 0) {
    out["cuda_version"] = version_text(findings.cuda_version);
  }
  for (const DeviceFinding& device : findings.devices) {
    out["devices"].push_back(device_json(device));
  }
  for (const std::string_view name : builtin_simulated_devices()) {
    out["simulated_devices"].push_back("sim:" + std::string(name));
  }
  for (const Variable& one : findings.variables) {
    nlohmann::ordered_json variable = {
        {"name", one.name}, {"value", one.value}, {"problem", nullptr}};
    if (!one.problem.empty()) {
      variable["problem"] = one.problem;
    }
    out["environment"].push_back(variable);
  }
  return out;
}

std::string device_text(const DeviceFinding& device) {
  const DeviceInfo& info = device.info;
  std::string text = fmt::format("{}  {}\n", printable(device.label), printable(info.name));
  const std::string free =
      device.memory ? human_bytes(device.memory->free) : std::string("unknown");
  text += fmt::format("  memory            {} free of {}\n", free, human_bytes(info.total_memory));
  text += fmt::format("  virtual memory    {}", yes_no(info.virtual_memory));
  if (info.virtual_memory) {
    text += fmt::format(", in units of {}", human_bytes(info.granularity));
  }
  text += fmt::format("\n  RDMA capable      {}\n", yes_no(info.rdma_with_vmm));
  text += fmt::format("  shareable         file descriptor {}, fabric {}\n",
                      yes_no(info.shareable_fd),
                      yes_no(info.shareable_fabric));
  text += fmt::format("  nofrag would use  {}\n", device.would_use);
  if (!device.warning.empty()) {
    text += fmt::format("  WARNING           {}\n", device.warning);
  }
  return text + "\n";
}

// What a process that is started from here would read.
std::string variables_text(const std::vector<Variable>& variables) {
  std::string text = variables.empty() ? "" : "Environment\n";
  for (const Variable& one : variables) {
    text += fmt::format("  {}={}\n", printable(one.name), printable(one.value));
    if (!one.problem.empty()) {
      text += fmt::format("    WARNING: {}\n", printable(one.problem));
    }
  }
  return text + (variables.empty() ? "" : "\n");
}

std::string findings_text(const Findings& findings) {
  std::string text = "nofrag " NOFRAG_VERSION_STRING "\n";
  if (!findings.problem.empty()) {
    text += fmt::format(
        "CUDA driver: none usable here ({}).\n"
        "Nothing on this machine can allocate GPU memory; replays on simulated devices work.\n",
        findings.problem);
  } else if (findings.cuda_version > 0) {
    text += fmt::format("CUDA driver: found, supports CUDA {}; {} device(s).\n",
                        version_text(findings.cuda_version),
                        findings.devices.size());
  }
  if (!findings.chosen_by.empty()) {
    text += fmt::format("Only the device below was looked at, because {}.\n", findings.chosen_by);
  }
  text += '\n';
  for (const DeviceFinding& device : findings.devices) {
    text += device_text(device);
  }
  text += variables_text(findings.variables);
  text += "Simulated devices (--device):";
  for (const std::string_view name : builtin_simulated_devices()) {
    text += fmt::format(" sim:{}", name);
  }
  return text + "\n";
}

}  // namespace

ExitCode run_doctor(const DoctorArguments& arguments) {
  const DeviceTarget device =
      arguments.device ? DeviceTarget::parse(*arguments.device) : DeviceTarget();
  refuse_overwriting({device.file()}, {{"--json", arguments.json}});
  const GivenOptions given = nofrag_options(arguments.conf);
  confirm_options(given);
  Findings findings = examine(arguments.device, given);
  findings.variables = own_variables();
  if (!arguments.json.empty()) {
    write_output(arguments.json, json_text(findings_json(findings)));
  }
  if (arguments.json != "-") {
    write_output("-", findings_text(findings));
  }
  return ExitCode::kOk;
}

}  // namespace nofrag
