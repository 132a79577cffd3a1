#include "diagnose/advice.h"

#include <algorithm>

#include "config/human_bytes.h"

namespace nofrag {
namespace {

using Advice = std::vector<std::string>;

// Could a request be served if the limit that the process set itself were the card's?
bool limit_is_why(const Failure& f) {
  return f.limit_reached && f.limit && f.capacity && *f.limit < *f.capacity && f.driver_free &&
         f.requested && *f.driver_free >= *f.requested;
}

void model_too_large(const Failure& f, Advice* out) {
  out->emplace_back(
      "load the weights in a smaller type (bf16 for fp32, 8 or 4 bits for inference)");
  out->emplace_back("spread the model over several GPUs, or keep part of it on the host");
  if (f.capacity) {
    out->push_back("or take a card with more than " + human_bytes(*f.capacity));
  }
}

void batch_too_large(const Diagnosis& d, Advice* out) {
  std::string by;
  if (d.short_by > Bytes(0)) {
    by = " (this step lacked at least " + human_bytes(d.short_by) + ")";
  }
  out->push_back("make the batch or the longest input smaller" + by);
  out->emplace_back(
      "in training: accumulate gradients over smaller batches, or recompute activations "
      "(checkpointing)");
}

void kv_cache_growth(Advice* out) {
  out->emplace_back(
      "bound the context: a maximum length, a sliding window, or eviction of old turns");
  out->emplace_back(
      "serve fewer sequences at once; shed load when nofrag_get_headroom says that memory runs "
      "out");
  out->emplace_back(
      "keep the cache in fewer bits (fp8), or with fewer heads (grouped-query attention)");
}

void fragmentation(const Failure& f, Advice* out) {
  out->emplace_back(
      "run the job on nofrag, which joins free pieces wherever they lie (docs/pytorch.md)");
  if (f.source == "PyTorch" && !f.expandable_segments) {
    out->emplace_back(
        "or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which helps with most of it");
  }
}

void leak(const Failure& f, Advice* out) {
  out->emplace_back(
      "look for what keeps results of every step: lists of outputs or losses, a graph kept by a "
      "tensor that still requires grad (use .item() or .detach())");
  if (!f.holders.empty()) {
    out->push_back("blocks of " + human_bytes(f.holders.front().size) +
                   " are the first to look for: " + std::to_string(f.holders.front().blocks) +
                   " of them are live");
  }
}

void refused_below(Advice* out) {
  out->emplace_back(
      "look for a quota below the framework: a vGPU or sharing shim, MIG, a container's device "
      "limit");
  out->emplace_back("look for two copies of CUDA or of the framework in one process");
  out->emplace_back(
      "try the same request alone: nofrag doctor, then a plain cudaMalloc of that size");
}

void other_process(const Failure& f, Advice* out) {
  out->emplace_back(
      "see who holds the card: nofrag top, nvidia-smi; end or move what should not be there");
  if (f.others && f.capacity && !f.remapping) {
    out->emplace_back("give each process a share that all fit into (a memory fraction or limit)");
  }
}

}  // namespace

Advice advise(const Failure& f, const Diagnosis& d) {
  Advice out;
  if (limit_is_why(f)) {
    out.push_back("raise the limit of " + human_bytes(*f.limit) + ": the driver still had " +
                  human_bytes(*f.driver_free) + " free");
  }
  switch (d.cause) {
    case Cause::kModelTooLarge:
      model_too_large(f, &out);
      break;
    case Cause::kBatchTooLarge:
      batch_too_large(d, &out);
      break;
    case Cause::kKvCacheGrowth:
      kv_cache_growth(&out);
      break;
    case Cause::kFragmentation:
      fragmentation(f, &out);
      break;
    case Cause::kLeak:
      leak(f, &out);
      break;
    case Cause::kRefusedBelow:
      refused_below(&out);
      break;
    case Cause::kOtherProcess:
      other_process(f, &out);
      break;
    case Cause::kUnknown:
      if (f.timeline == nullptr) {
        out.emplace_back("record the job (docs/replay.md) and run nofrag explain on the trace");
      }
      break;
  }
  if (f.private_pools && f.requested && *f.private_pools >= *f.requested) {
    out.push_back(human_bytes(*f.private_pools) +
                  " lie in private pools (CUDA graphs): fewer captured shapes give it back");
  }
  return out;
}

}  // namespace nofrag
