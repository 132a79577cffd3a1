// CuPy, JAX and TensorFlow, RMM, ONNX Runtime, llama.cpp, vLLM, and plain CUDA errors.
#include <algorithm>
#include <string>

#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

constexpr std::size_t kLongest = 6000;
constexpr std::size_t kSentence = 600;

constexpr std::string_view kNotAllocated = "failed to allocate ";
// Of a message that does not say whose it is.
constexpr const char* kNobodys = "CUDA";

std::string_view from_last(std::string_view text, std::string_view phrase) {
  const std::size_t at = last_of(text, phrase);
  return at == std::string_view::npos ? std::string_view() : text.substr(at, kLongest);
}

// Where "Limit:" and, in the next line, "InUse:" are: other programs print a "Stats:" or a limit of theirs.
std::string_view bfc_stats(std::string_view text) {
  constexpr std::string_view kFirst = "Limit:";
  for (std::size_t at = last_of(text, kFirst); at != kNowhere;
       at = last_of(text.substr(0, at + kFirst.size() - 1), kFirst)) {
    const std::string_view block = text.substr(at, kSentence);
    if (holds(block, "InUse:")) {
      return block;
    }
  }
  return {};
}

// The statistics block of the BFC allocator; the pool's Limit is taken from the driver as a whole.
void read_bfc_stats(std::string_view text, Failure* f) {
  const std::string_view block = bfc_stats(text);
  const std::optional<Bytes> limit = size_after(block, "Limit:");
  const std::optional<Bytes> in_use = size_after(block, "InUse:");
  if (!limit || !in_use || limit->is_zero()) {
    return;
  }
  f->capacity = limit;
  f->live = in_use;
  f->cached = *limit > *in_use ? *limit - *in_use : Bytes(0);
  f->driver_free = Bytes(0);
}

bool read_cupy(std::string_view text, Failure* f) {
  std::string_view one = from_last(text, "Out of memory allocating ");
  const bool newer = !one.empty() && holds(one.substr(0, 200), "allocated so far");
  if (!newer) {
    one = from_last(text, "out of memory to allocate ");
    if (one.empty()) {
      return false;
    }
  }
  f->source = "CuPy";
  refuse_unclear(one.substr(0, 300), f);
  f->requested = size_after(one, newer ? "allocating " : "to allocate ");
  f->limit = size_after(one.substr(0, 300), newer ? "limit set to: " : "limit set to ");
  const std::optional<Bytes> held = size_after(one, newer ? "allocated so far: " : "(total ");
  if (newer) {
    f->live = held;
  }
  f->limit_reached =
      f->limit && f->requested && held && (newer ? *held + *f->requested : *held) > *f->limit;
  return true;
}

bool read_onnx(std::string_view text, Failure* f) {
  std::string_view one = from_last(text, "Failed to allocate memory for requested buffer of size ");
  if (!one.empty()) {
    f->requested = size_after(one, "of size ");
  } else {
    one = from_last(text, "Available memory of ");
    if (one.empty() || !holds(one, "is smaller than requested bytes of ")) {
      return false;
    }
    f->requested = size_after(one, "requested bytes of ");
    // What the arena may still take of its own limit.
    f->driver_free = size_after(one, "Available memory of ");
    f->limit_reached = true;
  }
  f->source = "ONNX Runtime";
  return true;
}

// The pool also says that its size is exceeded where it was the driver that refused it more.
void read_rmm_limit(std::string_view pool, std::string_view any, Failure* f) {
  // The adaptor counts what passes through it, whatever lies below.
  const bool adaptor = pool.empty() && holds(any.substr(0, kSentence), "Exceeded memory limit");
  const bool driver = holds(pool.substr(0, kSentence), "cudaErrorMemoryAllocation");
  f->limit_reached = (!pool.empty() && !driver) || adaptor;
  if (f->limit_reached) {
    f->limit_name = adaptor ? "the allocation_limit of RMM's limiting_resource_adaptor"
                    : holds(pool.substr(0, kSentence), "No room in arena")
                        ? "the arena_size of RMM's arena_memory_resource"
                        : "the maximum_pool_size of RMM's pool_memory_resource";
  }
}

// "[A][Stream 0x1][Upstream 11136000000B][FAILURE maximum pool size exceeded: ...": of its log.
std::optional<Bytes> rmm_logged_size(std::string_view text) {
  const std::size_t failed = last_of(text, "][FAILURE maximum pool size exceeded");
  if (failed == kNowhere) {
    return std::nullopt;
  }
  const std::string_view line = text.substr(failed > 60 ? failed - 60 : 0, 60);
  const std::size_t upstream = last_of(line, "[Upstream ");
  return upstream == kNowhere ? std::nullopt : size_after(line.substr(upstream), "[Upstream ");
}

// Newer versions of RMM say how much was asked for and how large the pool may become, older ones neither.
bool read_rmm(std::string_view text, Failure* f) {
  const std::string_view pool = from_last(text, "aximum pool size exceeded");
  const std::string_view any = from_last(text, "RMM failure at");
  const bool bad_alloc =
      holds(text, "memory_resource.hpp") && holds(text, "cudaErrorMemoryAllocation");
  if (pool.empty() && any.empty() && !bad_alloc) {
    return false;
  }
  f->source = "RMM";
  // The newest say it of the driver's refusals too: "CUDA error (failed to allocate 1073741824 bytes) at: ...".
  const std::string_view refused = pool.empty() ? any : pool;
  f->requested =
      size_after(refused.empty() ? from_last(text, kNotAllocated) : refused, kNotAllocated);
  const std::size_t sizes = pool.find("current/max/try size = ");
  if (sizes != std::string_view::npos) {
    std::string_view rest = pool.substr(sizes + 23);
    const auto next = [&rest]() {
      const std::optional<Bytes> size = size_at(rest);
      const std::size_t comma = rest.find(", ");
      rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 2);
      return size;
    };
    next();
    f->limit = next();
    f->requested = f->requested ? f->requested : next();
  }
  f->requested = f->requested ? f->requested : rmm_logged_size(text);
  read_rmm_limit(pool, any, f);
  return true;
}

// Ollama runs llama.cpp, and is set up in other words.
const char* whose_llama(std::string_view text) {
  constexpr std::string_view kOllama[] = {"llama runner process",
                                          "ollama/ollama",
                                          ".ollama/models",
                                          "ollama[",
                                          "ollama |",
                                          "OLLAMA_",
                                          "source=server.go",
                                          "source=sched.go",
                                          "[GIN]",
                                          "//ml/backend/ggml/"};
  return std::any_of(std::begin(kOllama),
                     std::end(kOllama),
                     [text](std::string_view sign) { return holds(text, sign); })
             ? "Ollama"
             : "llama.cpp";
}

// Ollama tells again, without the size, what its runner has said. A text may have only that.
std::size_t last_failed_malloc(std::string_view text) {
  constexpr std::string_view kFailed = "cudaMalloc failed: out of memory";
  const std::size_t last = last_of(text, kFailed);
  for (std::size_t at = last; at != kNowhere;
       at = last_of(text.substr(0, at + kFailed.size() - 1), kFailed)) {
    if (!is_ollamas_summary(text, at)) {
      return at;
    }
  }
  return last;
}

bool read_llama(std::string_view text, Failure* f) {
  const std::size_t failed = last_failed_malloc(text);
  const bool ggml = holds(text, "ggml") || holds(text, "llama_");
  if (failed == std::string_view::npos || !ggml) {
    return false;
  }
  f->source = whose_llama(text);
  const std::string_view line = text.substr(failed > 120 ? failed - 120 : 0, kLongest);
  f->requested = size_after(line, "allocating ");
  // A line further behind is of what the program did next, a new start for one.
  const std::string after = words_behind(text, failed);
  f->vendor = holds(after, "ROCm") ? Vendor::kAmd : Vendor::kNvidia;
  if (holds(after, "kv cache") || holds(after, "KV cache") || holds(after, "kv_cache")) {
    f->moment = Moment::kKvCache;
  } else if (holds(after, "compute buffers") || holds(after, "gallocr") ||
             holds(after, "graph_reserve")) {
    f->moment = Moment::kStep;
  } else if (holds(after, "loading model") || holds(after, "load_tensors") ||
             holds(after, "unable to allocate") || holds(after, "load model")) {
    f->moment = Moment::kLoading;
  }
  return true;
}

// "Free memory on device (20.1/79.18 GiB) on startup is less than desired GPU memory utilization (0.9, 71.26 GiB)":
// before it holds anything itself.
bool read_vllm(std::string_view text, Failure* f) {
  const std::string_view one = from_last(text, "Free memory on device").substr(0, 400);
  const std::size_t slash = one.find('/');
  const std::size_t open = one.substr(0, slash).rfind('(');
  const std::size_t wanted = one.find("utilization (");
  if (slash == std::string_view::npos || open == std::string_view::npos ||
      wanted == std::string_view::npos || !holds(one, "on startup is less than desired")) {
    return false;
  }
  f->source = "vLLM";
  f->capacity = size_at(one.substr(slash + 1));
  // The unit stands once, behind both.
  std::string free(one.substr(open + 1, slash - open - 1));
  const std::string_view rest = one.substr(slash + 1);
  const std::size_t unit = rest.find(' ');
  free += rest.substr(unit == std::string_view::npos ? rest.size() : unit, 4);
  f->driver_free = size_at(free);
  f->requested = size_after(one.substr(wanted), ", ");
  f->live = Bytes(0);
  f->cached = Bytes(0);
  if (f->capacity && f->driver_free && *f->capacity > *f->driver_free) {
    f->others = *f->capacity - *f->driver_free;
  }
  return true;
}

// What it wants for its KV cache at start, before it serves anything:
// "... max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (7.50
// GiB). Based on the available memory, the estimated maximum model length is 61440", of older versions "... is larger
// than the maximum number of tokens that can be stored in KV cache (4144)", and where nothing is left for it "No
// available memory for the cache blocks". What is left is no limit that anybody has set: it is not noted as one that
// was reached.
bool read_vllm_cache(std::string_view text, Failure* f) {
  constexpr std::string_view kTokens = "number of tokens that can be stored in KV cache (";
  constexpr std::string_view kNewerTokens = "estimated maximum model length is ";
  const std::size_t newer = last_of(text, "o serve at least one request");
  const std::size_t older = last_of(text, kTokens);
  const std::size_t nothing = last_of(text, "No available memory for the cache blocks");
  const std::string_view one =
      newer == kNowhere ? std::string_view() : text.substr(newer, kSentence);
  const bool sized = holds(one, "KV cache is needed");
  const bool small = sized || older != kNowhere;
  const std::size_t small_at = std::max(sized ? newer : 0, older == kNowhere ? 0 : older);
  if (!small && nothing == kNowhere) {
    return false;
  }
  f->source = "vLLM";
  if (nothing != kNowhere && (!small || nothing > small_at)) {
    f->moment = Moment::kNoRoomForCache;
    return true;
  }
  f->moment = Moment::kCacheTooSmall;
  std::optional<Bytes> tokens;
  if (sized) {
    f->requested = size_before(one, " KV cache is needed");
    f->limit = size_after(one, "available KV cache memory (");
    tokens = size_after(one, kNewerTokens);
  } else {
    tokens = size_after(text.substr(older), kTokens);
  }
  f->cache_tokens = tokens.value_or(Bytes(0)).count();
  return true;
}

// PyTorch asks NVML for the numbers of its out-of-memory message, and where that fails it says this instead.
bool read_nvml_assert(std::string_view text, Failure* f) {
  const std::string_view one = from_last(text, "NVML_SUCCESS == r").substr(0, kSentence);
  if (!holds(one, "INTERNAL ASSERT FAILED") || !holds(one, "CUDACachingAllocator")) {
    return false;
  }
  f->source = "PyTorch";
  f->notes.emplace_back(
      "PyTorch failed while it asked NVML for the numbers of its out-of-memory message: mostly the "
      "card was out of memory, but this text does not say so");
  f->wanted.emplace_back(
      "nvidia-smi while the job runs: is the card full, and does NVML answer at all (MIG, "
      "containers and drivers that do not fit their library break it)");
  f->wanted.emplace_back(
      "the numbers that PyTorch can give itself: torch.cuda.memory_summary() before the failure");
  return true;
}

// Whose message it is that says no more than that memory was out.
const char* plain_source(std::string_view text) {
  static constexpr struct {
    std::string_view sign;
    const char* source;
  } kSigns[] = {{"ggml_", "llama.cpp"},
                {"//ml/backend/ggml/", "Ollama"},
                {"ggml-cuda", "llama.cpp"},
                {"llama_init", "llama.cpp"},
                {"llama_model_load", "llama.cpp"},
                {"llama_kv_cache", "llama.cpp"},
                {"llama_new_context", "llama.cpp"},
                {"failed to allocate buffer for kv cache", "llama.cpp"},
                {"llama runner process", "llama.cpp"},
                {"unable to allocate CUDA", "llama.cpp"},
                {"unable to allocate ROCm", "llama.cpp"},
                {"/paddle/", "PaddlePaddle"},
                {"paddle::", "PaddlePaddle"},
                {"--mem-fraction-static", "SGLang"},
                {"max_num_seqs", "vLLM"},
                {"vllm/", "vLLM"},
                {"vllm.", "vLLM"},
                {"Failed to CUDA calloc", "NCCL"},
                {"NCCL error", "NCCL"},
                {"ncclUnhandledCudaError", "NCCL"},
                {"NCCL WARN", "NCCL"},
                {"RMM failure", "RMM"},
                {"rmm::", "RMM"},
                {"/rmm/", "RMM"},
                {"tensorflow.python.framework.errors", "TensorFlow"},
                {"[Op:", "TensorFlow"},
                {"jaxlib", "JAX"},
                {"XlaRuntimeError", "JAX"},
                {"xla::", "JAX"},
                {"RESOURCE_EXHAUSTED", "JAX"},
                {"cupy.cuda", "CuPy"},
                {"cupy_backends", "CuPy"},
                {"onnxruntime", "ONNX Runtime"}};
  for (const auto& known : kSigns) {
    if (holds(text, known.sign)) {
      return known.source == std::string_view("llama.cpp") ? whose_llama(text) : known.source;
    }
  }
  return kNobodys;
}

// gRPC's and web services' name for every bound: of memory, unless they say of what else. Where it last is.
std::size_t last_exhausted_memory(std::string_view text) {
  constexpr std::string_view kName = "RESOURCE_EXHAUSTED";
  constexpr std::string_view kOthers[] = {
      "larger than max", "uota", "ate limit", "ate_limit", "oo many requests", "oo Many Requests"};
  for (std::size_t at = last_of(text, kName); at != kNowhere;
       at = last_of(text.substr(0, at + kName.size() - 1), kName)) {
    const std::string_view what = text.substr(at, 300);
    if (std::none_of(
            std::begin(kOthers), std::end(kOthers), [&](auto s) { return holds(what, s); })) {
      return at;
    }
  }
  return kNowhere;
}

// Words of a GPU's memory that was out, whoever says them.
constexpr std::string_view kPlainSigns[] = {"cudaErrorMemoryAllocation",
                                            "CUDA_ERROR_OUT_OF_MEMORY",
                                            "CUDA error: out of memory",
                                            "CUDA out of memory",
                                            "HIP out of memory",
                                            "cuda runtime error (2)",
                                            "CUDA error 2",
                                            "cublas_status_alloc_failed",
                                            "CUBLAS_STATUS_ALLOC_FAILED",
                                            "OOM when allocating",
                                            "CUDNN_STATUS_ALLOC_FAILED",
                                            "Failed to CUDA calloc",
                                            "Out of GPU memory trying to allocate",
                                            "ResourceExhaustedError",
                                            "ErrorOutOfDeviceMemory",
                                            "CNMEM_STATUS_OUT_OF_MEMORY",
                                            "failed to allocate CUDA memory",
                                            "Requested amount of GPU memory",
                                            "GpuRetryOOM",
                                            "GpuSplitAndRetryOOM",
                                            "failed to allocate buffer for kv cache",
                                            "failed to allocate compute buffers",
                                            "failed to allocate CUDA0 buffer",
                                            "unable to allocate CUDA",
                                            "unable to allocate ROCm",
                                            "increase --mem-fraction-static"};

bool read_plain(std::string_view text, Failure* f) {
  if (last_plain_sign(text) == kNowhere) {
    return false;
  }
  f->source = plain_source(text);
  // XLA: "failed to allocate 71.26GiB (76514568192 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory".
  f->requested = size_after(from_last(text, kNotAllocated), kNotAllocated);
  if (!f->requested) {
    f->requested = tensor_size(from_last(text, "OOM when allocating tensor with shape"));
  }
  if (holds(text, "hipMalloc") || holds(text, "HIP out of memory") ||
      holds(text, "to allocate ROCm")) {
    f->vendor = Vendor::kAmd;
  }
  return true;
}

// Words that any program has for its memory: of a GPU's, as long as nothing says that it is another's. *vague: nothing
// near them says that it is a GPU's, either.
bool read_vague(std::string_view text, Failure* f, bool* vague) {
  constexpr std::string_view kWords[] = {
      "OutOfMemoryError", "out of memory", "Out of memory", "OutOfMemory)"};
  constexpr std::size_t kNear = 200;
  bool found = false;
  bool named = false;
  for (const std::string_view word : kWords) {
    const std::size_t at = last_of(text, word);
    if (at == kNowhere) {
      continue;
    }
    found = true;
    const std::size_t begin = at > kNear ? at - kNear : 0;
    const std::string_view near = text.substr(begin, at - begin + word.size() + kNear);
    named = named || names_gpu(near);
  }
  if (!found) {
    return false;
  }
  f->source = plain_source(text);
  f->requested = size_after(from_last(text, kNotAllocated), kNotAllocated);
  *vague = !named && f->source == kNobodys;
  if (*vague) {
    f->notes.emplace_back(
        "nothing near these words says that it was a GPU's memory; if it was the machine's, no GPU "
        "allocator changes it");
  }
  return true;
}

}  // namespace

std::size_t last_plain_sign(std::string_view text) {
  std::size_t latest = last_exhausted_memory(text);
  for (const std::string_view sign : kPlainSigns) {
    const std::size_t at = last_of(text, sign);
    latest = latest == kNowhere || (at != kNowhere && at > latest) ? at : latest;
  }
  return latest;
}

bool read_bfc_message(std::string_view text, OomMessage* message) {
  Failure f;
  for (const std::string_view phrase : {"Out of memory while trying to allocate ",
                                        "Out of memory allocating ",
                                        "Failed to allocate request for ",
                                        "ran out of memory trying to allocate ",
                                        "Attempting to allocate "}) {
    const std::string_view one = from_last(text, phrase);
    const bool cupy = holds(one.substr(0, 200), "allocated so far");
    if (one.empty() || cupy) {
      continue;
    }
    f.source = holds(text, "jax") || holds(text, "xla") || holds(text, "RESOURCE_EXHAUSTED")
                   ? "JAX"
                   : "TensorFlow";
    f.requested = size_after(one, phrase);
    if (const std::optional<Bytes> exact = size_after(one.substr(0, 200), "rounded to ")) {
      f.requested = exact;
    }
    if (const std::optional<Bytes> free = size_after(one.substr(0, 300), "There are ")) {
      f.driver_free = free;
      f.cached = Bytes(0);
    }
    read_bfc_stats(text, &f);
    refuse_unclear(one.substr(0, 300), &f);
    message->failure = std::move(f);
    return true;
  }
  return false;
}

bool read_other_message(std::string_view text, OomMessage* message) {
  for (const auto& read : {read_cupy,
                           read_onnx,
                           read_rmm,
                           read_llama,
                           read_vllm,
                           read_vllm_cache,
                           read_nvml_assert,
                           read_triton_warning,
                           read_plain}) {
    Failure f;
    if (read(text, &f)) {
      message->failure = std::move(f);
      return true;
    }
  }
  if (Failure f; read_vague(text, &f, &message->vague)) {
    message->failure = std::move(f);
    return true;
  }
  return false;
}

}  // namespace nofrag::detail
