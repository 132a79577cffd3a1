#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/top/top.h"
#include "config/human_bytes.h"
#include "device/device_stats.h"

namespace nofrag {
namespace {

using Json = nlohmann::ordered_json;

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Requests that needed more than a free run or new memory.
std::uint64_t high_rungs(const DeviceStatus& device) {
  std::uint64_t sum = 0;
  for (const Rung rung :
       {Rung::kOtherPools, Rung::kDeviceWait, Rung::kPressureCallbacks, Rung::kFailed}) {
    sum += device.rungs[static_cast<std::size_t>(rung)];
  }
  return sum;
}

std::string left(const DeviceStatus& device) {
  if (device.has_forecast == 0) {
    return human_bytes(Bytes(device.headroom));
  }
  constexpr double kLongest = 99 * 3600.0;
  const double seconds = std::min(device.headroom_seconds, kLongest);
  return fmt::format("{} {:.0f} s", human_bytes(Bytes(device.headroom)), seconds);
}

// The beginning of a line, in columns: all characters are taken for one wide.
std::string cut(std::string_view line, std::size_t columns) {
  std::size_t end = 0;
  for (std::size_t letters = 0; end < line.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(line[end]) & 0xc0U) != 0x80U;
    if (begins && letters++ == columns) {
      break;
    }
  }
  return std::string(line.substr(0, end));
}

Json device_json(const DeviceStatus& device) {
  Json out = {{"device", device.device},
              {"live_bytes", device.live},
              {"reserved_bytes", device.reserved},
              {"pending_bytes", device.pending},
              {"limit_bytes", device.limit},
              {"fragmentation_ratio", ratio(device.fragmented, device.reserved)},
              {"headroom_bytes", device.headroom},
              {"headroom_seconds", nullptr},
              {"allocations", device.allocations},
              {"failed_allocations", device.failed},
              {"rungs", device.rungs},
              {"last_oom_cause", nullptr}};
  if (device.has_forecast != 0) {
    out["headroom_seconds"] = device.headroom_seconds;
  }
  if (device.last_cause[0] != '\0') {
    out["last_oom_cause"] = device.last_cause.data();
  }
  return out;
}

// Without the folder of the program, which is the same for all jobs of an interpreter: what differs comes behind it.
std::string_view shown_command(std::string_view command) {
  const std::string_view program = command.substr(0, command.find(' '));
  const std::size_t slash = program.rfind('/');
  return slash == std::string_view::npos ? command : command.substr(slash + 1);
}

}  // namespace

std::string top_table(const std::vector<SeenProcess>& processes) {
  std::string out = fmt::format("{:>8} {:>3} {:>11} {:>11} {:>6} {:>18} {:>10} {:>6}  {:15} {}\n",
                                "pid",
                                "dev",
                                "live",
                                "reserved",
                                "frag",
                                "headroom",
                                "high rungs",
                                "failed",
                                "last cause",
                                "command");
  for (const SeenProcess& process : processes) {
    const ProcessStatus& s = process.status;
    for (std::uint32_t i = 0; i < s.device_count; ++i) {
      const DeviceStatus& d = s.devices[i];
      out += fmt::format("{:>8} {:>3} {:>11} {:>11} {:>5.1f}% {:>18} {:>10} {:>6}  {:15} {:.60}\n",
                         s.pid,
                         d.device,
                         human_bytes(Bytes(d.live)),
                         human_bytes(Bytes(d.reserved)),
                         100 * ratio(d.fragmented, d.reserved),
                         left(d),
                         high_rungs(d),
                         d.failed,
                         d.last_cause[0] != '\0' ? d.last_cause.data() : "-",
                         shown_command(s.command.data()));
    }
  }
  if (processes.empty()) {
    out += "no process of this user runs nofrag here (or share_status:false)\n";
  }
  return out;
}

std::string top_json(const std::vector<SeenProcess>& processes) {
  Json out = {{"schema", "nofrag.top/1"}, {"processes", Json::array()}};
  for (const SeenProcess& process : processes) {
    const ProcessStatus& s = process.status;
    Json devices = Json::array();
    for (std::uint32_t i = 0; i < s.device_count; ++i) {
      devices.push_back(device_json(s.devices[i]));
    }
    out["processes"].push_back({{"pid", s.pid},
                                {"command", s.command.data()},
                                {"age_seconds", static_cast<double>(process.age_ms) / 1000},
                                {"devices", std::move(devices)}});
  }
  return json_text(out);
}

std::string fit_to_screen(std::string_view table, std::size_t columns, std::size_t rows) {
  std::string out;
  std::size_t shown = 0;
  while (!table.empty()) {
    const std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(std::min(table.size(), line.size() + 1));
    // The last row is left free: a line feed in it would scroll.
    if (shown + 2 == rows && !table.empty()) {
      const auto more = 1 + std::count(table.begin(), table.end(), '\n');
      out += cut(fmt::format("... and {} more", more), columns) + "\n";
      break;
    }
    out += cut(line, columns) + "\n";
    ++shown;
  }
  return out;
}

}  // namespace nofrag
