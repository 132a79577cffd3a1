// ReplaySession: runs of one trace on one device, by allocator name and capacity.
//
// Owns: the child processes of real peers (cuda devices), kept from run to run. Layer: cli. Units:
// bytes. Threads: none. Failure: throws CliError; out of memory is a result. Cost: a fresh driver
// and allocator a run.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/device_target.h"
#include "cli/replay/replay_run.h"
#include "config/options.h"
#include "trace/trace.h"

namespace nofrag {

class TorchProcess;

// The allocators that replay knows, in the order of the documentation.
const std::vector<std::string_view>& replay_allocators();

bool is_nofrag(const ReplayRun& run);

// Does it map memory itself, and cannot run on a device without virtual memory?
bool needs_virtual_memory(std::string_view allocator);

struct ReplaySettings {
  Options options;   // nofrag's
  std::string conf;  // those of them that were set, as text
  double stream_lag_us = 500;
  double speed = 0;  // cuda devices: ReplayTarget::speed
};

class ReplaySession {
 public:
  ReplaySession(const Trace& trace, const DeviceTarget& target, const ReplaySettings& settings);
  ReplaySession(const ReplaySession&) = delete;
  ReplaySession& operator=(const ReplaySession&) = delete;
  ~ReplaySession();

  ReplayRun run(std::string_view allocator,
                std::optional<Bytes> capacity,
                const ReplayProgress& progress,
                ReplayObserver* observer = nullptr);
  // `free_run` is the run without a limit, if there was one. Nothing: no capacity found.
  std::optional<Bytes> min_capacity(std::string_view allocator,
                                    const ReplayRun* free_run,
                                    const ReplayProgress& progress);
  // Ends the allocator's own process, if it has one, and with it what that holds of the device.
  void finish(std::string_view allocator);
  [[nodiscard]] Bytes granule() const { return granule_; }
  [[nodiscard]] Bytes device_memory() const { return device_.total_memory; }
  [[nodiscard]] const DeviceInfo& device() const { return device_; }
  // What the user should know about how the runs were made; each once.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  ReplayRun run_here(std::string_view allocator,
                     std::optional<Bytes> capacity,
                     const ReplayProgress& progress,
                     ReplayObserver* observer);
  // The real PyTorch on a cuda device; nullptr where there is none.
  TorchProcess* torch(std::string_view allocator);
  void note(const std::string& text);

  const Trace& trace_;
  const DeviceTarget& target_;
  ReplaySettings settings_;
  Bytes granule_;
  DeviceInfo device_;
  std::map<std::string, std::unique_ptr<TorchProcess>, std::less<>> torch_;
  std::vector<std::string> notes_;
};

}  // namespace nofrag
