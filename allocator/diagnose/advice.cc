#include "diagnose/advice.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "config/human_bytes.h"

namespace nofrag {
namespace {

using Advice = std::vector<std::string>;

void optimizer_state(Advice* out) {
  out->emplace_back(
      "take an optimizer with less state: an 8-bit one (bitsandbytes' AdamW8bit), Adafactor, or "
      "none for what is not trained (LoRA); Adam keeps 8 bytes for each parameter in fp32");
  out->emplace_back("shard the state over several GPUs (FSDP, ZeRO)");
  out->emplace_back("or keep it on the host (offload of the optimizer: ZeRO-Offload, FSDP's)");
}

// Of a server (vLLM) that does not start. Its share of the card is a number that it was given, and mostly too low.
void room_for_cache(const Failure& f, Advice* out) {
  constexpr const char* kShare = "raise --gpu-memory-utilization, where the card has more free";
  constexpr const char* kSpread =
      "spread the model over more GPUs (--tensor-parallel-size): each holds less of the weights";
  if (f.moment == Moment::kNoRoomForCache) {
    out->emplace_back(kShare);
    out->emplace_back("load the weights in fewer bits (--quantization, or a quantised model)");
    out->emplace_back(kSpread);
    out->emplace_back(
        "let a step need less: a smaller --max-model-len, --max-num-batched-tokens or "
        "--max-num-seqs");
    return;
  }
  out->push_back(f.cache_tokens > 0
                     ? "start it with --max-model-len " + std::to_string(f.cache_tokens) +
                           " or less, which its KV cache has room for"
                     : "start it with a smaller --max-model-len");
  out->push_back(std::string("or ") + kShare);
  out->emplace_back("or keep the cache in fewer bits (--kv-cache-dtype fp8)");
  out->push_back(std::string("or ") + kSpread);
}

void model_too_large(const Failure& f, Advice* out) {
  if (f.moment == Moment::kNoRoomForCache) {
    room_for_cache(f, out);
    return;
  }
  if (f.moment == Moment::kOptimizerState) {
    optimizer_state(out);
    return;
  }
  out->emplace_back(
      "load the weights in a smaller type (bf16 for fp32, 8 or 4 bits for inference)");
  out->emplace_back("spread the model over several GPUs, or keep part of it on the host");
  if (f.capacity && !f.limit_reached) {
    out->push_back("or take a card with more than " + human_bytes(*f.capacity));
  }
}

void batch_too_large(const Failure& f, const Diagnosis& d, Advice* out) {
  std::string by;
  if (d.short_by > Bytes(0)) {
    by = " (this step lacked at least " + human_bytes(d.short_by) + ")";
  }
  if (f.source == "vLLM") {
    out->push_back(
        "start it with a smaller --max-num-seqs or --max-num-batched-tokens, or leave steps more "
        "room beside the KV cache: "
        "a smaller --gpu-memory-utilization" +
        by);
    return;
  }
  out->push_back("make the batch or the longest input smaller" + by);
  out->emplace_back(
      "in training: accumulate gradients over smaller batches, or recompute activations "
      "(checkpointing)");
}

// What shows who holds the card.
std::string card_tool(Vendor vendor) {
  switch (vendor) {
    case Vendor::kNvidia:
      return "nvidia-smi";
    case Vendor::kAmd:
      return "rocm-smi";
    case Vendor::kIntel:
      return "xpu-smi";
    case Vendor::kApple:
      return "Activity Monitor";
    case Vendor::kGoogle:
      return "tpu-info";
  }
  return {};
}

void kv_cache_growth(const Failure& f, Advice* out) {
  if (f.moment == Moment::kCacheTooSmall) {
    room_for_cache(f, out);
    return;
  }
  out->emplace_back(
      "bound the context: a maximum length, a sliding window, or eviction of old turns");
  out->emplace_back(f.vendor == Vendor::kNvidia
                        ? "serve fewer sequences at once; shed load when nofrag_get_headroom says "
                          "that memory runs out"
                        : "serve fewer sequences at once");
  out->emplace_back(
      "keep the cache in fewer bits (fp8), or with fewer heads (grouped-query attention)");
}

// PyTorch on cards that nofrag does not serve.
void fragmentation_elsewhere(const Failure& f, Advice* out) {
  const std::string variable =
      f.vendor == Vendor::kAmd ? "PYTORCH_HIP_ALLOC_CONF" : "PYTORCH_ALLOC_CONF";
  if (!f.expandable_segments) {
    out->push_back("set " + variable +
                   "=expandable_segments:True, which helps with most of it where the card and its "
                   "driver can map memory");
  }
  out->push_back(
      (f.expandable_segments ? "set " : "or ") + variable +
      "=garbage_collection_threshold:0.8,max_split_size_mb:512: large blocks stay whole, "
      "and unused ones are given back sooner");
}

void fragmentation(const Failure& f, Advice* out) {
  if (f.source == "nofrag") {
    // Mapped memory never is the cause: this is the plain backend.
    out->emplace_back(
        "let nofrag map memory (backend:auto, without nvtx:memory): plain driver allocations "
        "cannot be joined");
    return;
  }
  if (f.vendor != Vendor::kNvidia) {
    fragmentation_elsewhere(f, out);
    return;
  }
  out->emplace_back(
      "run the job on nofrag, which joins free pieces wherever they lie (docs/pytorch.md)");
  if (f.source == "PyTorch" && !f.expandable_segments) {
    out->emplace_back(
        "or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which helps with most of it");
  }
}

void pinned_down(const Failure& f, Advice* out) {
  out->push_back("free " +
                 (f.holders.empty() ? std::string("the small blocks")
                                    : "the blocks of " + human_bytes(f.holders.front().size)) +
                 " that stayed behind, or make those that stay in a pool of their own, apart from "
                 "what comes and "
                 "goes: the memory beside them is free then");
}

void leak(const Failure& f, Advice* out) {
  out->emplace_back(
      "look for what keeps results of every step: lists of outputs or losses, a graph kept by a "
      "tensor that still requires grad (use .item() or .detach())");
  if (f.grown) {
    out->push_back("blocks of " + human_bytes(f.grown->size) + " are the first to look for: " +
                   std::to_string(f.grown->blocks) + " that the work allocated are live still");
  } else if (!f.holders.empty()) {
    out->push_back("blocks of " + human_bytes(f.holders.front().size) +
                   " are the first to look for: " + std::to_string(f.holders.front().blocks) +
                   " of them are live");
  }
}

void refused_below(const Failure& f, Advice* out) {
  out->emplace_back(
      "look for a quota below the framework: a vGPU or sharing shim, MIG, a container's device "
      "limit");
  if (f.vendor != Vendor::kNvidia) {
    out->emplace_back("look for two copies of the framework in one process");
    return;
  }
  out->emplace_back("look for two copies of CUDA or of the framework in one process");
  out->emplace_back(
      "try the same request alone: nofrag doctor, then a plain cudaMalloc of that size");
}

// vLLM asks for a share of the card when it starts.
void lower_share(const Failure& f, Advice* out) {
  if (!f.capacity || !f.driver_free || f.capacity->is_zero()) {
    return;
  }
  // Rounded down, to what is there.
  const double share =
      static_cast<double>(f.driver_free->count()) / static_cast<double>(f.capacity->count());
  char text[16];
  std::snprintf(text, sizeof text, "%.2f", std::floor(100 * std::min(share, 1.0)) / 100);
  out->push_back("start it with --gpu-memory-utilization " + std::string(text) +
                 " or less, which fits what is free, or free the card first");
}

void other_process(const Failure& f, Advice* out) {
  if (f.source == "vLLM") {
    lower_share(f, out);
  }
  out->push_back(
      "see who holds the card: " + std::string(f.vendor == Vendor::kNvidia ? "nofrag top, " : "") +
      card_tool(f.vendor) + "; end or move what should not be there");
  if (f.others && f.capacity && !f.remapping) {
    out->emplace_back("give each process a share that all fit into (a memory fraction or limit)");
  }
}

// How each framework's limit is lifted.
void limit(const Failure& f, Advice* out) {
  if (f.source == "Triton Inference Server") {
    out->emplace_back(
        "give the pool more: --cuda-memory-pool-byte-size=0:536870912 (GPU 0, in bytes), as far as "
        "nvidia-smi shows room");
    return;
  }
  if (f.vendor == Vendor::kApple) {
    out->emplace_back(
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO sets it; 0.0 lifts it, and then the whole machine may "
        "run "
        "out of memory");
  } else if (f.source == "PyTorch") {
    out->emplace_back(
        "torch.cuda.set_per_process_memory_fraction sets it (or per_process_memory_fraction in "
        "PYTORCH_CUDA_ALLOC_CONF)");
  } else if (f.source == "CuPy") {
    out->emplace_back("CUPY_GPU_MEMORY_LIMIT sets it, or set_limit of the memory pool");
  } else if (f.source == "RMM") {
    out->push_back(f.limit_name.find("adaptor") != std::string::npos
                       ? "the allocation_limit of the limiting_resource_adaptor sets it"
                   : f.limit_name.find("arena") != std::string::npos
                       ? "the arena_size of the arena's memory resource sets it"
                       : "the maximum_pool_size of the pool's memory resource sets it");
  } else if (f.source == "nofrag" || f.source == "trace") {
    out->emplace_back(
        "limit and memory_fraction in NOFRAG_CONF set it, nofrag run --limit and "
        "nofrag_set_limit; limit:none lifts it (docs/options.md)");
  }
  out->emplace_back("or let the job need less: a smaller batch, shorter inputs, smaller weights");
}

struct Settings {
  std::string_view source;
  const char* settings;
};
constexpr Settings kSettings[] = {
    {"llama.cpp",
     "fewer layers on the card (-ngl), a shorter context (-c), fewer slots (-np), or a KV cache "
     "in fewer bits "
     "(--cache-type-k q8_0)"},
    {"JAX",
     "smaller batches or rematerialization (jax.checkpoint); for other programs on the card XLA "
     "leaves room with "
     "XLA_PYTHON_CLIENT_PREALLOCATE=false or a smaller XLA_PYTHON_CLIENT_MEM_FRACTION"},
    {"TensorFlow",
     "smaller batches; for other programs on the card it leaves room with "
     "TF_FORCE_GPU_ALLOW_GROWTH=true"},
    {"RMM",
     "spilling to the host, where the library above has it (cudf.set_option(\"spill\", True)), "
     "or smaller parts"},
    {"CuPy",
     "what CuPy keeps given back in time: cupy.get_default_memory_pool().free_all_blocks(), or a "
     "limit for it (set_limit)"},
    {"ONNX Runtime",
     "arena_extend_strategy kSameAsRequested (by default its arena doubles) and a "
     "cudnn_conv_algo_search that is not EXHAUSTIVE"},
    {"SGLang",
     "a smaller --mem-fraction-static where steps run out, a larger one where the KV cache has "
     "no room, or a smaller "
     "--max-running-requests or --chunked-prefill-size"},
    {"Ollama",
     "fewer layers on the card (num_gpu), a shorter context (num_ctx, OLLAMA_CONTEXT_LENGTH), "
     "OLLAMA_NUM_PARALLEL=1, or a KV cache in fewer bits (OLLAMA_FLASH_ATTENTION=1 and "
     "OLLAMA_KV_CACHE_TYPE=q8_0)"},
    {"XGBoost",
     "device memory in fewer bits and parts: a smaller max_bin, QuantileDMatrix instead of "
     "DMatrix, ExtMemQuantileDMatrix, or subsample with sampling_method=gradient_based"},
    {"faiss",
     "a smaller StandardGpuResources.setTempMemory (noTempMemory() for none), useFloat16 in the "
     "index's options, or index_cpu_to_all_gpus with shards"},
    {"PaddlePaddle",
     "a smaller batch; for other programs on the card FLAGS_fraction_of_gpu_memory_to_use, and "
     "FLAGS_allocator_strategy=auto_growth"},
    {"TensorRT",
     "a smaller workspace (--memPoolSize=workspace:1024, setMemoryPoolLimit), smaller profiles, "
     "or fewer engines and contexts on the card"},
    {"Text Generation Inference",
     "a smaller --max-batch-prefill-tokens, --max-batch-total-tokens or --max-input-tokens, or "
     "--quantize"},
    {"ExLlama",
     "a shorter max_seq_len or a cache in fewer bits (Q4), another gpu_split, or weights in "
     "fewer bits"},
    {"Blender",
     "smaller textures (Simplify), less subdivision, smaller tiles, persistent data off; OptiX "
     "takes more than CUDA for its acceleration structures"},
    {"NCCL",
     "a smaller share of the card for the program (NCCL's buffers come on top), smaller ones "
     "(NCCL_BUFFSIZE) or fewer "
     "(NCCL_MAX_NCHANNELS)"},
    {"vLLM",
     "a smaller --gpu-memory-utilization where other programs use the card, else a smaller "
     "--max-model-len, --max-num-seqs "
     "or --max-num-batched-tokens"},
};

// What makes a program's demand smaller, by whose message it is; nullptr: nothing that holds for all of its programs.
const char* needs_less(std::string_view source) {
  for (const auto& known : kSettings) {
    if (known.source == source) {
      return known.settings;
    }
  }
  return nullptr;
}

void unknown(const Failure& f, Advice* out) {
  if (f.vendor == Vendor::kGoogle) {
    out->emplace_back("look at what takes the memory: jax.profiler.save_device_memory_profile");
  } else if (f.vendor != Vendor::kNvidia) {
    out->emplace_back(
        "record what leads there with PyTorch itself (torch.cuda.memory._record_memory_history and "
        "_dump_snapshot, where the card has them)");
  } else if (f.timeline == nullptr) {
    out->emplace_back(
        "run it once more as nofrag run --trace flight:oom.nofrag COMMAND: when a request fails "
        "its last "
        "lines name the cause, and nofrag explain oom.nofrag shows what led there "
        "(docs/recording.md)");
  }
  if (const char* const less = needs_less(f.source); less != nullptr) {
    out->push_back(std::string("whatever the cause, less is needed with ") + less);
  }
}

// Whatever the cause: what the card is full of beside this allocator's blocks.
void who_else_holds(const Failure& f, const Diagnosis& d, Advice* out) {
  const bool of_the_card = d.cause != Cause::kLimit && d.cause != Cause::kHostMemory;
  if (of_the_card && f.large_outside()) {
    out->insert(out->begin(),
                "first, the " + human_bytes(f.outside()) + " that this process holds beside " +
                    f.source +
                    "'s allocator: another framework's pool (JAX, TensorFlow, CuPy), a library's "
                    "workspace or NCCL's buffers, "
                    "CUDA graphs; what is not needed goes, what is gets a limit");
  }
  if (of_the_card && f.large_neighbour()) {
    out->push_back("end or move " + f.largest_other + " if it should not be there: it holds " +
                   human_bytes(f.largest_other_size));
  }
  if (f.private_pools && f.requested && *f.private_pools >= *f.requested) {
    out->push_back(human_bytes(*f.private_pools) +
                   " lie in private pools (CUDA graphs): fewer captured shapes give it back");
  }
}

}  // namespace

Advice advise(const Failure& f, const Diagnosis& d) {
  Advice out;
  if (f.limit_is_why()) {
    out.push_back("raise the limit of " + human_bytes(*f.limit) + ": the driver still had " +
                  human_bytes(*f.driver_free) + " free");
  } else if (d.cause == Cause::kLimit && f.limit) {
    out.push_back("raise the limit of " + human_bytes(*f.limit) + ", if " + card_tool(f.vendor) +
                  " shows that the " + (f.vendor == Vendor::kApple ? "machine" : "card") +
                  " has more free");
  }
  if (f.pinned_down() && d.cause != Cause::kLimit) {
    pinned_down(f, &out);
  }
  switch (d.cause) {
    case Cause::kModelTooLarge:
      model_too_large(f, &out);
      break;
    case Cause::kBatchTooLarge:
      batch_too_large(f, d, &out);
      break;
    case Cause::kKvCacheGrowth:
      kv_cache_growth(f, &out);
      break;
    case Cause::kFragmentation:
      fragmentation(f, &out);
      break;
    case Cause::kLeak:
      leak(f, &out);
      break;
    case Cause::kRefusedBelow:
      refused_below(f, &out);
      break;
    case Cause::kOtherProcess:
      other_process(f, &out);
      break;
    case Cause::kLimit:
      limit(f, &out);
      break;
    case Cause::kHostMemory:
      advise_on_host(f, &out);
      break;
    case Cause::kUnknown:
      unknown(f, &out);
      break;
  }
  who_else_holds(f, d, &out);
  return out;
}

}  // namespace nofrag
