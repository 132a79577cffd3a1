// Memory of the machine that ran out: the Linux kernel's OOM killer, what container and batch systems make of it, and
// PyTorch's allocator for the CPU. Nothing of it is about a GPU.
#include <algorithm>

#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

struct Sign {
  std::string_view text;
  std::string_view source;
};
constexpr Sign kHostSigns[] = {
    {"Out of memory: Kill", "Linux"},  // "Kill process" until 5.0, "Killed process" since
    {"out of memory: Kill", "Linux"},  // "Memory cgroup out of memory: Killed process"
    {"oom-kill:", "Linux"},
    {"invoked oom-killer", "Linux"},
    {"oom_reaper: reaped process", "Linux"},
    {"by the OOM killer", "Linux"},
    {"oom_kill event", "Slurm"},
    {"oom-kill event", "Slurm"},
    {"OOMKilled", "Kubernetes"},
    {"DefaultCPUAllocator: can't allocate memory", "PyTorch"},
    {"DefaultCPUAllocator: not enough memory", "PyTorch"},
};
// Words of messages about a GPU: the later of both is the failure.
constexpr std::string_view kDeviceSigns[] = {"CUDA out of memory",
                                             "HIP out of memory",
                                             "Tried to allocate",
                                             "CUDA error: out of memory",
                                             "cudaErrorMemoryAllocation",
                                             "CUDA_ERROR_OUT_OF_MEMORY",
                                             "cudaMalloc failed: out of memory",
                                             "RESOURCE_EXHAUSTED",
                                             "nofrag holds ",
                                             "Out of memory allocating ",
                                             "RMM failure at"};

}  // namespace

bool read_host_message(std::string_view text, OomMessage* message) {
  std::size_t latest = std::string_view::npos;
  std::string_view source;
  for (const Sign& sign : kHostSigns) {
    const std::size_t at = last_of(text, sign.text);
    if (at != std::string_view::npos && (latest == std::string_view::npos || at > latest)) {
      latest = at;
      source = sign.source;
    }
  }
  if (latest == std::string_view::npos ||
      std::any_of(std::begin(kDeviceSigns), std::end(kDeviceSigns), [&](std::string_view sign) {
        return holds(text.substr(latest), sign);
      })) {
    return false;
  }
  Failure f;
  f.source = source;
  f.host_memory = true;
  constexpr std::size_t kLine = 400;
  f.requested = size_after(text.substr(latest, kLine), "tried to allocate ");
  message->failure = std::move(f);
  return true;
}

}  // namespace nofrag::detail
