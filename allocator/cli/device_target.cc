#include "cli/device_target.h"

#include <charconv>
#include <filesystem>
#include <vector>

#include "base/nearest_name.h"
#include "cli/errors.h"
#include "driver/real/real_driver.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr std::string_view kSimulated = "sim:";
constexpr std::string_view kCuda = "cuda:";

std::string known_devices(bool as_driver) {
  std::string text = as_driver ? "expected cuda, sim:NAME with NAME one of"
                               : "expected cuda:N, sim:NAME with NAME one of";
  for (const std::string_view name : builtin_simulated_devices()) {
    text += " " + std::string(name);
  }
  return text + ", or sim:FILE.json";
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

DeviceSession open_cuda(int ordinal, const std::string& said) {
  std::string why;
  Result<std::unique_ptr<RealDriver>> driver = RealDriver::open({}, &why);
  if (!driver.ok()) {
    throw UsageError(said + ": " + why +
                     "; --device sim:h100-80g is a simulated one, and needs none");
  }
  const Result<int> count = driver.value()->device_count();
  if (!count.ok() || ordinal >= count.value()) {
    throw UsageError(said + ": this machine has " + std::to_string(count.ok() ? count.value() : 0) +
                     " CUDA device(s)");
  }
  const Result<DeviceInfo> info = driver.value()->device_info(DeviceOrdinal(ordinal));
  if (!info.ok()) {
    throw RunError(said + ": the driver gives no information on it");
  }
  // The first call that needs the context makes it, which takes 120 ms on an H200 and is no allocator's doing.
  static_cast<void>(driver.value()->memory_info(DeviceOrdinal(ordinal)));
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
  target.said_ = "--device " + target.text_;
  if (text.starts_with(kSimulated)) {
    target.load_simulated();
    return target;
  }
  if (text.starts_with(kCuda)) {
    const std::string_view number = text.substr(kCuda.size());
    const auto [stop, code] =
        std::from_chars(number.data(), number.data() + number.size(), target.ordinal_);
    if (code == std::errc() && stop == number.data() + number.size() && target.ordinal_ >= 0) {
      return target;
    }
  }
  throw UsageError("--device '" + target.text_ + "': " + known_devices(false) + did_you_mean(text));
}

DeviceTarget DeviceTarget::of_driver(std::string_view value, std::string_view source) {
  DeviceTarget target;
  target.text_ = value == "cuda" ? "cuda:0" : std::string(value);
  target.said_ = std::string(source) + ": driver:" + std::string(value);
  if (value.starts_with(kSimulated)) {
    target.load_simulated();
  } else if (value != "cuda") {
    throw UsageError(target.said_ + ": " + known_devices(true));
  }
  return target;
}

std::string DeviceTarget::file() const {
  const std::string name = text_.starts_with(kSimulated) ? text_.substr(kSimulated.size()) : "";
  std::error_code failed;
  return std::filesystem::is_regular_file(name, failed) ? name : std::string();
}

void DeviceTarget::load_simulated() {
  SimulatedDeviceFile file;
  std::string error;
  if (!load_simulated_device(std::string_view(text_).substr(kSimulated.size()), &file, &error)) {
    throw UsageError(said_ + ": " + error + did_you_mean(text_));
  }
  simulated_ = std::move(file);
}

DeviceSession DeviceTarget::open(const SimulationSettings& settings) const {
  if (!simulated_) {
    return open_cuda(ordinal_, said_);
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
