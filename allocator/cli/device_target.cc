#include "cli/device_target.h"

#include <charconv>
#include <vector>

#include "base/nearest_name.h"
#include "cli/errors.h"
#include "driver/real/real_driver.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr std::string_view kSimulated = "sim:";
constexpr std::string_view kCuda = "cuda:";

std::string known_devices() {
  std::string text = "expected sim:NAME with NAME one of";
  for (const std::string_view name : builtin_simulated_devices()) {
    text += " " + std::string(name);
  }
  return text + ", sim:FILE.json, or cuda:N";
}

std::string did_you_mean(std::string_view text) {
  std::vector<std::string> full;
  for (const std::string_view name : builtin_simulated_devices()) {
    full.push_back(std::string(kSimulated) + std::string(name));
  }
  full.emplace_back("cuda:0");
  const std::vector<std::string_view> views(full.begin(), full.end());
  const std::string_view nearest = nearest_name(text, views);
  return nearest.empty() ? "" : "; did you mean '" + std::string(nearest) + "'?";
}

DeviceSession open_cuda(int ordinal, const std::string& text) {
  std::string why;
  Result<std::unique_ptr<RealDriver>> driver = RealDriver::open({}, &why);
  if (!driver.ok()) {
    throw UsageError("--device " + text + ": " + why +
                     "; --device sim:h100-80g is a simulated one, and needs none");
  }
  const Result<int> count = driver.value()->device_count();
  if (!count.ok() || ordinal >= count.value()) {
    throw UsageError("--device " + text + ": this machine has " +
                     std::to_string(count.ok() ? count.value() : 0) + " CUDA device(s)");
  }
  const Result<DeviceInfo> info = driver.value()->device_info(DeviceOrdinal(ordinal));
  if (!info.ok()) {
    throw RunError("--device " + text + ": the driver gives no information on it");
  }
  DeviceSession session;
  session.info = info.value();
  session.device = DeviceOrdinal(ordinal);
  session.driver = std::move(driver.value());
  return session;
}

}  // namespace

DeviceTarget DeviceTarget::parse(std::string_view text) {
  DeviceTarget target;
  target.text_ = std::string(text);
  if (text.substr(0, kSimulated.size()) == kSimulated) {
    const std::string_view name = text.substr(kSimulated.size());
    SimulatedDeviceFile file;
    std::string error;
    if (!load_simulated_device(name, &file, &error)) {
      throw UsageError("--device " + target.text_ + ": " + error + did_you_mean(text));
    }
    target.simulated_ = std::move(file);
    return target;
  }
  if (text.substr(0, kCuda.size()) == kCuda) {
    const std::string_view number = text.substr(kCuda.size());
    const auto [stop, code] =
        std::from_chars(number.data(), number.data() + number.size(), target.ordinal_);
    if (code == std::errc() && stop == number.data() + number.size() && target.ordinal_ >= 0) {
      return target;
    }
  }
  throw UsageError("--device '" + target.text_ + "': " + known_devices() + did_you_mean(text));
}

DeviceSession DeviceTarget::open(const SimulationSettings& settings) const {
  if (!simulated_) {
    return open_cuda(ordinal_, text_);
  }
  auto driver = std::make_unique<SimulatedDriver>(simulated_->spec, text_);
  DeviceSession session;
  session.simulated = driver.get();
  if (settings.physical_memory) {
    driver->set_physical_memory(session.device, *settings.physical_memory);
  }
  driver->set_stream_lag_us(settings.stream_lag_us);
  driver->set_streams_busy(true);  // a trace shows no kernels, but they were there
  session.info = driver->device_info(session.device).value();
  session.driver = std::move(driver);
  return session;
}

}  // namespace nofrag
