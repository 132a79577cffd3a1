// Memory of the machine that ran out, in words that leave no doubt: the Linux kernel's OOM killer, what container and
// batch systems make of it, shared memory, and allocators of the host's memory. Nothing of it is about a GPU.
#include <algorithm>
#include <array>

#include "config/human_bytes.h"
#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

// A message's sentence, and a kernel's report, with a line for each process of the machine.
constexpr std::size_t kLine = 400;
constexpr std::size_t kReport = 200'000;

constexpr double kSaid = 0.95;
constexpr double kLikely = 0.8;

struct HostSign {
  std::string_view text;
  std::string_view source;
  HostMemory which;
  double confidence;
  std::string_view evidence;
};
constexpr std::string_view kKilled = "Linux's OOM killer ended a process for want of memory";
constexpr std::string_view kJobLimit =
    "a process was ended because its job reached the memory that it was given";
constexpr std::string_view kShmFull =
    "shared memory (/dev/shm), through which data loader workers pass their batches, is full";
constexpr std::string_view kRefused = "the operating system refused memory of the machine";
constexpr auto kHostSigns = std::to_array<HostSign>({
    // "Kill process" until Linux 5.0, "Killed process" since.
    {"Out of memory: Kill", "Linux", HostMemory::kMachine, kSaid, kKilled},
    {"emory cgroup out of memory: Kill", "Linux", HostMemory::kContainer, kSaid, kKilled},
    {"oom-kill:", "Linux", HostMemory::kMachine, kSaid, kKilled},
    {"oom-kill:constraint=CONSTRAINT_MEMCG", "Linux", HostMemory::kContainer, kSaid, kKilled},
    {"invoked oom-killer", "Linux", HostMemory::kMachine, kSaid, kKilled},
    {"oom_reaper: reaped process", "Linux", HostMemory::kMachine, kSaid, kKilled},
    {"by the OOM killer", "systemd", HostMemory::kMachine, kSaid, kKilled},
    {"Failed with result 'oom-kill'", "systemd", HostMemory::kMachine, kSaid, kKilled},
    {"systemd-oomd killed", "systemd", HostMemory::kMachine, kSaid, "systemd-oomd ended processes"},
    {"due to memory pressure for /",
     "systemd",
     HostMemory::kMachine,
     kSaid,
     "systemd-oomd ended processes"},
    {"oom_kill event", "Slurm", HostMemory::kContainer, kSaid, kJobLimit},
    {"oom-kill event", "Slurm", HostMemory::kContainer, kSaid, kJobLimit},
    {"cgroup out-of-memory handler", "Slurm", HostMemory::kContainer, kSaid, kJobLimit},
    {"OOMKilled",
     "Kubernetes",
     HostMemory::kContainer,
     kSaid,
     "the container was ended because it reached its memory limit"},
    {"The node was low on resource: memory",
     "Kubernetes",
     HostMemory::kMachine,
     kSaid,
     "the pod was evicted: its node ran low on memory"},
    {"due to the node running low on memory",
     "Ray",
     HostMemory::kMachine,
     kSaid,
     "Ray ended a worker because its node ran low on memory"},
    {"killed due to memory pressure (OOM)",
     "Ray",
     HostMemory::kMachine,
     kSaid,
     "Ray ended workers because their node ran low on memory"},
    {"DefaultCPUAllocator: can't allocate memory",
     "PyTorch",
     HostMemory::kMachine,
     kSaid,
     "a tensor in the machine's memory (on the CPU) could not be had"},
    {"DefaultCPUAllocator: not enough memory",
     "PyTorch",
     HostMemory::kMachine,
     kSaid,
     "a tensor in the machine's memory (on the CPU) could not be had"},
    {"is killed by signal: Killed",
     "PyTorch",
     HostMemory::kMachine,
     kLikely,
     "a data loader worker was ended by SIGKILL, which is what the OOM killer sends"},
    {"is killed by signal: Bus error", "PyTorch", HostMemory::kShared, kSaid, kShmFull},
    {"Unexpected bus error encountered in worker", "PyTorch", HostMemory::kShared, kSaid, kShmFull},
    {"unable to write to file </torch_", "PyTorch", HostMemory::kShared, kSaid, kShmFull},
    {"unable to allocate shared memory(shm) for file",
     "PyTorch",
     HostMemory::kShared,
     kSaid,
     kShmFull},
    {"unable to open shared memory object",
     "PyTorch",
     HostMemory::kOpenFiles,
     kLikely,
     "a block of shared memory could not be opened"},
    {"unable to mmap ", "PyTorch", HostMemory::kMachine, kSaid, kRefused},
    {"Error while creating shared memory segment",
     "NCCL",
     HostMemory::kShared,
     kLikely,
     "NCCL could not make a segment of shared memory (/dev/shm)"},
    {"could not allocate pinned host memory of size",
     "TensorFlow",
     HostMemory::kPinned,
     kSaid,
     "pinned memory of the machine could not be had"},
    {"bytes on host: CUDA_ERROR_OUT_OF_MEMORY",
     "TensorFlow",
     HostMemory::kPinned,
     kSaid,
     "pinned memory of the machine could not be had"},
    {"[Errno 12] Cannot allocate memory", "Python", HostMemory::kMachine, kSaid, kRefused},
    {"fork: Cannot allocate memory", "Linux", HostMemory::kMachine, kSaid, kRefused},
    {" for an array with shape (",
     "NumPy",
     HostMemory::kMachine,
     kSaid,
     "an array in the machine's memory could not be had"},
    {"OOM when allocating tensor with shape",
     "TensorFlow",
     HostMemory::kMachine,
     kSaid,
     "a tensor on TensorFlow's device CPU, which is the machine's memory, could not be had"},
    {"requires more system memory (",
     "Ollama",
     HostMemory::kMachine,
     kSaid,
     "Ollama does not load a model for which the machine has too little memory free"},
    {"ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size ",
     "llama.cpp",
     HostMemory::kMachine,
     kSaid,
     "llama.cpp got no memory of the machine for the part of the model that is not on a GPU"},
    {"failed to allocate CPU buffer of size ",
     "llama.cpp",
     HostMemory::kMachine,
     kSaid,
     "llama.cpp got no memory of the machine for the part of the model that is not on a GPU"},
    {"unable to allocate CPU buffer",
     "llama.cpp",
     HostMemory::kMachine,
     kSaid,
     "llama.cpp got no memory of the machine for the part of the model that is not on a GPU"},
    {"Unable to allocate array with shape",
     "NumPy",
     HostMemory::kMachine,
     kSaid,
     "an array in the machine's memory could not be had"},
});

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
                                             "RMM failure at",
                                             "CUBLAS_STATUS_ALLOC_FAILED",
                                             "cublasStatusAllocFailed",
                                             "cuda runtime error (2)",
                                             "CUDA error 2",
                                             "CUDA driver error: out of memory",
                                             "Cuda failure 'out of memory'",
                                             "Cuda failure 2 'out of memory'",
                                             "Triton Error [CUDA]: out of memory",
                                             "cuMemAlloc failed",
                                             "aximum pool size exceeded",
                                             "Available memory of",
                                             "No available memory for the cache blocks",
                                             "OOM when allocating",
                                             "Memory allocation error on worker",
                                             "StandardGpuResources: alloc fail",
                                             "ailed to cudaMalloc ",
                                             "Out of memory error on GPU",
                                             "Insufficient VRAM",
                                             "System is out of GPU",
                                             "Ran out of memory in memory space",
                                             "Requested amount of GPU memory",
                                             "Not enough memory to handle "};

// Terminals break lines anywhere, and PyTorch's own behind "signal:". A run of blanks is one.
std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (!blank || (!line.empty() && line.back() != ' ')) {
      line.push_back(blank ? ' ' : c);
    }
  }
  return line;
}

// Docker and Kubernetes also write that it was not, and metrics of every reason that there could be have a 0. (In a
// table of pods the number behind it counts starts.)
bool is_denied(std::string_view after) {
  for (const std::string_view none : {"\"} 0", "=0", "=\"0\""}) {
    if (after.starts_with(none) && after.substr(none.size()).find_first_of(".123456789") != 0) {
      return true;
    }
  }
  const std::size_t word = after.find_first_not_of("\"': =");
  return word != kNowhere && word > 0 && after.substr(word, 5) == "false";
}

// These words tell of memory only with an errno behind them. False: they do not.
bool settle_by_errno(std::string_view line, HostMemory* which) {
  if (line.starts_with("unable to mmap ")) {
    return holds(line, "Cannot allocate memory");
  }
  if (line.starts_with("unable to open shared memory object")) {
    if (holds(line, "No space left on device") || holds(line, "Cannot allocate memory")) {
      *which = HostMemory::kShared;
      return true;
    }
    return !holds(line, "Permission denied") && !holds(line, "No such file");
  }
  if (line.starts_with("Error while creating shared memory segment")) {
    return !holds(line, "Permission denied") && !holds(line, "No such file");
  }
  return true;
}

// Is the sign meant where it stands, and of which memory?
bool is_meant(std::string_view text, std::size_t at, const HostSign& sign, HostMemory* which) {
  *which = sign.which;
  if (sign.source == "TensorFlow" && sign.text.starts_with("OOM") &&
      !is_tensor_on_cpu(text.substr(at, kLine))) {
    return false;
  }
  return !(sign.text == "OOMKilled" && is_denied(text.substr(at + sign.text.size(), 16))) &&
         settle_by_errno(text.substr(at, kLine), which);
}

bool is_plain_name(std::string_view name) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/+@ ";
  return !name.empty() && name.find_first_not_of(kPlain) == kNowhere;
}

// "Killed process 4242 (python) total-vm:131072000kB, anon-rss:126976000kB, ...": who, and what it held.
void read_victim(std::string_view report, HostShortage* host) {
  std::size_t at = last_of(report, "Killed process ");
  at = at == kNowhere ? last_of(report, "Kill process ") : at;
  if (at == kNowhere) {
    return;
  }
  const std::string_view line = report.substr(at, kLine);
  const std::size_t number = line.find("process ") + 8;
  const std::size_t behind = line.find_first_not_of("0123456789", number);
  std::string who = "process " + std::string(line.substr(number, behind - number));
  const std::size_t close = line.find(')');
  if (behind != kNowhere && line.substr(behind, 2) == " (" && close != kNowhere) {
    const std::string_view name = line.substr(behind + 2, close - behind - 2);
    who += is_plain_name(name) ? " (" + std::string(name) + ")" : "";
  }
  const std::optional<Bytes> held = size_after(line, "anon-rss:");
  host->evidence.push_back(who +
                           (held ? " was ended, which held " + human_bytes(*held) : " was ended"));
}

// "memory: usage 6291456kB, limit 6291456kB, failcnt 21": of the control group, above the verdict.
void read_group(std::string_view report, HostShortage* host) {
  const std::size_t at = last_of(report, "memory: usage ");
  const std::optional<Bytes> limit =
      at == kNowhere ? std::nullopt : size_after(report.substr(at, kLine), "limit ");
  constexpr Bytes kNoLimit = Bytes(std::uint64_t{1} << 50);
  if (limit && *limit < kNoLimit) {
    host->evidence.push_back("its control group's limit is " + human_bytes(*limit) +
                             " (memory.max)");
  }
}

// What was asked for, where the message says it: nearly each puts it elsewhere.
std::optional<Bytes> requested_of(std::string_view text, std::size_t at, const HostSign& sign) {
  const std::string_view line = text.substr(at, kLine);
  const std::string_view before = text.substr(at > 60 ? at - 60 : 0, at > 60 ? 60 : at);
  if (sign.text.starts_with("DefaultCPUAllocator")) {
    return size_after(line, "tried to allocate ");
  }
  if (sign.text == " for an array with shape (") {
    const std::size_t unable = last_of(before, "Unable to allocate ");
    return unable == kNowhere ? std::nullopt : size_after(before.substr(unable), "allocate ");
  }
  if (sign.text.starts_with("bytes on host")) {
    const std::size_t alloc = last_of(before, "alloc ");
    return alloc == kNowhere ? std::nullopt : size_after(before.substr(alloc), "alloc ");
  }
  if (sign.text.starts_with("could not allocate pinned")) {
    return size_after(line, "of size: ");
  }
  if (sign.source == "TensorFlow") {
    return tensor_size(line);
  }
  if (sign.source == "Ollama") {
    return size_after(line, "memory (");
  }
  if (sign.text.ends_with("buffer of size ")) {
    return size_after(line, "buffer of size ");
  }
  if (sign.text.starts_with("unable to allocate CPU")) {
    const std::string_view above =
        text.substr(at > kLine ? at - kLine : 0, at > kLine ? kLine : at);
    return size_after(above.substr(std::min(last_of(above, "buffer of size "), above.size())),
                      "of size ");
  }
  if (sign.text.starts_with("unable to mmap")) {
    return size_after(line, "mmap ");
  }
  return sign.source == "NCCL" ? size_after(line, "(size ") : std::nullopt;
}

// The kernel's report is many lines, and any of them may be the last sign.
void read_kernel(std::string_view text, std::size_t at, Failure* f) {
  const std::string_view report =
      text.substr(at > kReport ? at - kReport : 0, (at > kReport ? kReport : at) + kLine);
  const std::size_t constraint = last_of(report, "oom-kill:constraint=");
  const bool group = constraint == kNowhere
                         ? holds(report, "emory cgroup out of memory")
                         : holds(report.substr(constraint, 40), "CONSTRAINT_MEMCG");
  f->host.which = group ? HostMemory::kContainer : HostMemory::kMachine;
  read_victim(report, &f->host);
  if (f->host.which == HostMemory::kContainer) {
    read_group(report, &f->host);
  }
}

std::string evidence_of(const HostSign& sign, HostMemory which, std::string_view line) {
  std::string text(sign.evidence);
  if (sign.text == "unable to open shared memory object") {
    if (which == HostMemory::kShared) {
      return std::string(kShmFull);
    }
    text += holds(line, "Too many open files")
                ? ": the process has too many files open, and each block is one"
                : ", which is mostly for want of open files: each block is one";
  }
  return text;
}

}  // namespace

bool read_host_message(std::string_view text, OomMessage* message) {
  const std::string line = one_line(text);
  text = line;
  std::size_t latest = kNowhere;
  const HostSign* found = nullptr;
  HostMemory which = HostMemory::kMachine;
  for (const HostSign& sign : kHostSigns) {
    HostMemory meant = sign.which;
    const std::size_t at = last_meant(
        text, sign.text, [&](std::size_t place) { return is_meant(text, place, sign, &meant); });
    // Of two that begin at one place the longer says more, and stands behind the shorter.
    if (at != kNowhere && (found == nullptr || at >= latest)) {
      latest = at;
      found = &sign;
      which = meant;
    }
  }
  if (found == nullptr ||
      std::any_of(std::begin(kDeviceSigns), std::end(kDeviceSigns), [&](std::string_view sign) {
        return holds(text.substr(latest + found->text.size()), sign);
      })) {
    return false;
  }
  Failure f;
  f.source = found->source;
  f.host_memory = true;
  f.host.which = which;
  f.host.confidence = found->confidence;
  if (found->evidence == kKilled) {
    read_kernel(text, latest, &f);
  }
  f.host.evidence.insert(f.host.evidence.begin(),
                         evidence_of(*found, which, text.substr(latest, kLine)));
  f.requested = requested_of(text, latest, *found);
  if (const auto free = size_after(text.substr(latest, kLine), "than is available (");
      free && f.requested) {
    f.host.evidence.push_back("it takes " + human_bytes(*f.requested) + ", and " +
                              human_bytes(*free) + " are available");
  }
  message->failure = std::move(f);
  return true;
}

}  // namespace nofrag::detail
