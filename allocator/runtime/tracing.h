// Tracing: what records this process: the recorder, and which of its options the user gave how.
//
// Owns: the recorders, which are never destroyed (threads may still be inside one that has ended).
// Layer: runtime. Invariants: at most one recorder is active; every used device's events go to it.
// Threads: any; start, stop and attach under the process's lock. flush and mark take none.
// Failure: start sets the thread's last error. Fork: see process.h; the child's calls do nothing.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/option_table.h"
#include "device/device_allocator.h"
#include "trace/nvtx/nvtx_sink.h"
#include "trace/record/recorder.h"

namespace nofrag {

// "[flight:]FILE[,max=SIZE][,keep=SIZE][,stacks=N][,stacks_from=SIZE][,signal]", as NOFRAG_TRACE has it. False if there was a problem.
bool parse_trace_spec(std::string_view text,
                      Options* options,
                      std::vector<std::string>* problems,
                      OptionSet* given = nullptr);

class Tracing {
 public:
  Tracing();
  ~Tracing();
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

  // What options.nvtx asks for, from now on.
  void start_nvtx(const Options& options);
  // A recording; nothing if `options` ask for none.
  Status start(const Options& options, const std::string& driver);
  // Of a device that is made, or that was before start().
  void attach(DeviceAllocator& device);
  // The recording is complete. `devices`: those that are attached.
  void stop(const std::vector<DeviceAllocator*>& devices);
  // The same when the process ends: devices may be in use.
  void stop_at_exit();

  // nullptr if nothing was ever recorded.
  [[nodiscard]] Recorder* recorder() const { return recorder_.load(std::memory_order_acquire); }

 private:
  // One device's events for both.
  class Both;

  [[nodiscard]] EventSink* sink();

  std::unique_ptr<NvtxSink> nvtx_;
  std::vector<std::unique_ptr<Both>> both_;  // one a recorder, if there is NVTX
  std::vector<std::unique_ptr<Recorder>> all_;
  std::atomic<Recorder*> recorder_{nullptr};
};

}  // namespace nofrag
