#include "cli/replay/replay_session.h"

#include <algorithm>

#include "cli/errors.h"
#include "cli/peers/nofrag_adapter.h"
#include "cli/replay/capacity.h"
#include "cli/replay/replay_streams.h"
#include "cli/replay/torch_process.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr std::string_view kNofrag = "nofrag";
constexpr std::string_view kTorchNative = "torch-native";
constexpr std::string_view kTorchExpandable = "torch-expandable";
constexpr std::string_view kCubCaching = "cub-caching";
constexpr std::string_view kDriver = "driver";
constexpr std::string_view kDriverAsync = "driver-async";

bool is_torch(std::string_view allocator) {
  return allocator == kTorchNative || allocator == kTorchExpandable;
}

std::unique_ptr<ReplayAllocator> make_allocator(std::string_view name,
                                                const PeerConfig& config,
                                                const Options& options) {
  if (name == kTorchNative) {
    return make_torch_native_model(config);
  }
  if (needs_virtual_memory(name) && !config.info.virtual_memory) {
    throw UsageError(std::string(name) + ": this device has no virtual memory management");
  }
  if (name == kTorchExpandable) {
    return make_torch_expandable_model(config);
  }
  if (name == kCubCaching) {
    return make_cub_caching_model(config);
  }
  if (name == kDriverAsync) {
    return make_driver_async_model(config);
  }
  if (name == kDriver) {
    return make_driver_peer(config);
  }
  Result<std::unique_ptr<ReplayAllocator>> made = make_nofrag(config, options);
  if (!made.ok()) {
    throw RunError(std::string("nofrag cannot run on this device: ") + to_string(made.code()));
  }
  return std::move(made.value());
}

}  // namespace

const std::vector<std::string_view>& replay_allocators() {
  static const std::vector<std::string_view> names = {
      kNofrag, kTorchNative, kTorchExpandable, kCubCaching, kDriver, kDriverAsync};
  return names;
}

bool is_nofrag(const ReplayRun& run) {
  return run.allocator == kNofrag;
}

bool needs_virtual_memory(std::string_view allocator) {
  return allocator == kTorchExpandable;
}

ReplaySession::ReplaySession(const Trace& trace,
                             const DeviceTarget& target,
                             const ReplaySettings& settings)
    : trace_(trace), target_(target), settings_(settings) {
  const DeviceSession session = target.open({std::nullopt, settings.stream_lag_us});
  granule_ = session.granule();
  device_ = session.info;
}

ReplaySession::~ReplaySession() = default;

void ReplaySession::note(const std::string& text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) {
    notes_.push_back(text);
  }
}

TorchProcess* ReplaySession::torch(std::string_view allocator) {
  if (target_.is_simulated() || !is_torch(allocator)) {
    return nullptr;
  }
  auto at = torch_.find(allocator);
  if (at == torch_.end()) {
    std::string why;
    std::unique_ptr<TorchProcess> process =
        TorchProcess::start(trace_, target_.ordinal(), allocator == kTorchExpandable, &why);
    if (process == nullptr) {
      note(std::string(allocator) + " is our model on this device, not PyTorch itself: " + why);
    }
    at = torch_.emplace(std::string(allocator), std::move(process)).first;
  }
  return at->second.get();
}

void ReplaySession::finish(std::string_view allocator) {
  if (const auto at = torch_.find(allocator); at != torch_.end()) {
    torch_.erase(at);
  }
}

ReplayRun ReplaySession::run(std::string_view allocator,
                             std::optional<Bytes> capacity,
                             const ReplayProgress& progress,
                             ReplayObserver* observer) {
  ReplayRun run;
  if (TorchProcess* process = torch(allocator); process != nullptr) {
    run = process->run(capacity, capacity.value_or(device_.total_memory));
  } else {
    run = run_here(allocator, capacity, progress, observer);
  }
  run.allocator = std::string(allocator);
  run.device = target_.text();
  run.capacity = capacity;
  if (allocator == kNofrag) {
    run.conf = settings_.conf;
  }
  return run;
}

ReplayRun ReplaySession::run_here(std::string_view allocator,
                                  std::optional<Bytes> capacity,
                                  const ReplayProgress& progress,
                                  ReplayObserver* observer) {
  const DeviceSession session = target_.open({capacity, settings_.stream_lag_us});
  PeerConfig config;
  config.driver = session.driver.get();
  config.device = session.device;
  config.info = session.info;
  config.blocks = static_cast<std::uint32_t>(trace_.allocations);
  config.recording = trace_.recording.get();
  ReplayTarget target;
  target.driver = session.driver.get();
  target.simulated = session.simulated;
  target.device = session.device;
  target.capacity = capacity.value_or(session.info.total_memory);
  if (!target_.is_simulated()) {
    config.limit = capacity.value_or(kNoLimit);
  }
  const Result<std::unique_ptr<ReplayStreams>> streams =
      ReplayStreams::create(trace_, *session.driver, session.device);
  if (!streams.ok()) {
    throw RunError("the trace's " + std::to_string(trace_.streams.size()) +
                   " streams cannot be made on " + target_.text() + ": " +
                   to_string(streams.code()));
  }
  target.streams = streams.value()->ids();
  ReplayRun run;
  run.is_model = is_torch(allocator) || allocator == kCubCaching || allocator == kDriverAsync;
  const std::unique_ptr<ReplayAllocator> made =
      make_allocator(allocator, config, settings_.options);
  target.allocator = made.get();
  target.observer = observer;
  target.speed = target_.is_simulated() ? 0 : settings_.speed;
  target.with_threads = allocator == kNofrag;
  replay_trace(trace_, target, progress, &run);
  const Status closed = streams.value()->close(*made);
  if (!closed.ok() && run.fault.empty()) {
    run.fault = std::string("a stream cannot be retired: ") + to_string(closed.code());
  }
  if (session.simulated != nullptr && session.simulated->violation_count() > 0) {
    run.fault = "the simulated driver found a misuse: " + session.simulated->violations().front();
    run.fault_reason.clear();
  }
  return run;
}

std::optional<Bytes> ReplaySession::min_capacity(std::string_view allocator,
                                                 const ReplayRun* free_run,
                                                 const ReplayProgress& progress) {
  // A simulated device can be larger than the card it is named after.
  constexpr std::uint64_t kMostTimesPeak = 64;
  CapacitySearch search;
  search.peak_live = trace_.peak_live;
  search.granule = granule_;
  search.most = target_.is_simulated()
                    ? std::min(trace_.peak_live * kMostTimesPeak + kGiB, Capacity::kMost)
                    : device_.total_memory;
  if (free_run != nullptr && free_run->completed) {
    search.known_enough = free_run->peak_reserved;
  } else {
    search.known_enough = trace_.peak_live + Bytes(trace_.peak_live.count() / 4);
  }
  // A fault comes whatever the capacity, but for those that have their reason in the device's size.
  if (free_run != nullptr && !free_run->fault.empty() && free_run->fault_reason.empty()) {
    return std::nullopt;
  }
  return find_min_capacity(
      search, [&](Bytes capacity) { return run(allocator, capacity, progress).completed; });
}

}  // namespace nofrag
