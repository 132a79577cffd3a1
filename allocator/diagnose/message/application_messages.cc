// Programs on a GPU with wordings of their own: XGBoost, faiss, PaddlePaddle, Triton Inference Server, TensorRT, Text
// Generation Inference, ExLlama, Blender, XLA for TPUs.
#include <algorithm>
#include <string>

#include "config/human_bytes.h"
#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

constexpr std::size_t kParagraph = 1000;

std::string_view last_paragraph(std::string_view text, std::string_view phrase) {
  const std::size_t at = last_of(text, phrase);
  return at == kNowhere ? std::string_view() : text.substr(at, kParagraph);
}

// "Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 12.1GB\n-
// Requested memory: 1.5GB", of older versions in bytes, of newer ones with what the driver's pool has.
bool read_xgboost(std::string_view text, Failure* f) {
  const std::string_view one = last_paragraph(text, "Memory allocation error on worker ");
  if (one.empty()) {
    return false;
  }
  f->source = "XGBoost";
  f->driver_free = size_after(one, "- Free memory: ");
  f->requested = size_after(one, "- Requested memory: ");
  const std::optional<Bytes> reserved = size_after(one, "- Reserved by the pool: ");
  const std::optional<Bytes> used = size_after(one, "- Used by the pool: ");
  if (reserved && used && *used <= *reserved) {
    f->live = used;
    f->cached = *reserved - *used;
  }
  return true;
}

// What faiss has, by kinds: "Alloc type FlatData: 2 allocations, 3145728 bytes".
std::optional<Bytes> faiss_outstanding(std::string_view one) {
  std::size_t at = one.find("Outstanding allocations:");
  if (at == kNowhere) {
    return std::nullopt;
  }
  constexpr std::string_view kOf = " allocations, ";
  std::optional<Bytes> sum;
  for (at = one.find(kOf, at); at != kNowhere; at = one.find(kOf, at + 1)) {
    if (const std::optional<Bytes> size = size_at(one.substr(at + kOf.size()))) {
      sum = sum.value_or(Bytes(0)) + *size;
    }
  }
  return sum;
}

// "Failed to cudaMalloc 536870912 bytes on device 1 (error 2 out of memory", since 1.7 "StandardGpuResources: alloc fail
// type FlatData dev 2 space Device stream 0 size 2764800000 bytes (cudaMalloc error out of memory [2])".
bool read_faiss(std::string_view text, Failure* f) {
  const std::string_view newer = last_paragraph(text, "StandardGpuResources: alloc fail");
  const std::string_view older = last_paragraph(text, "ailed to cudaMalloc ");
  const std::string_view one = newer.empty() ? older : newer;
  if (one.empty() || !holds(one.substr(0, 300), "out of memory")) {
    return false;
  }
  f->source = "faiss";
  f->requested = size_after(one, newer.empty() ? "cudaMalloc " : " size ");
  f->live = faiss_outstanding(one);
  if (holds(one.substr(0, 80), "TemporaryMemoryBuffer")) {
    f->notes.emplace_back(
        "it is faiss's temporary memory, which every StandardGpuResources takes when it is first "
        "used (1.5 GiB on large cards)");
  }
  return true;
}

// "Cannot allocate 98.000244MB memory on GPU 0, 6.000000GB memory has been allocated and available memory is only
// 0.000000B": allocated by whoever. Before 2.0 "Cannot malloc 49.0002 MB GPU memory".
bool read_paddle(std::string_view text, Failure* f) {
  const std::string_view one = last_paragraph(text, "Out of memory error on GPU ");
  const std::string_view oldest = last_paragraph(text, "Cannot malloc ");
  const bool old = one.empty() && holds(oldest.substr(0, 60), "GPU memory");
  if (one.empty() && !old) {
    return false;
  }
  f->source = "PaddlePaddle";
  if (old) {
    f->requested = size_after(oldest, "malloc ");
    return true;
  }
  f->requested = size_after(one, "Cannot allocate ");
  f->driver_free = size_after(one, "available memory is only ");
  f->driver_free = f->driver_free ? f->driver_free : size_after(one, "available memory is ");
  const std::optional<Bytes> taken = size_before(one, "memory has been allocated");
  if (taken && f->driver_free) {
    f->capacity = *taken + *f->driver_free;
  }
  return true;
}

// "Requested amount of GPU memory (1073741824 bytes) could not be allocated.", or "[virtualMemoryBuffer.cpp::
// resizePhysical::154] Error Code 2: OutOfMemory (Requested size was 4294967296 bytes.)", which some versions say without
// a size. Of two sizes the last.
bool read_tensorrt(std::string_view text, Failure* f) {
  constexpr std::size_t kLine = 200;
  const std::string_view one = last_paragraph(text, "Requested amount of GPU memory (");
  const std::string_view newer = last_paragraph(text, "[defaultAllocator.cpp").substr(0, kLine);
  const std::string_view code =
      last_paragraph(text, "Error Code 2: OutOfMemory (").substr(0, kLine);
  if (one.empty() && code.empty() && !holds(newer, "out of memory")) {
    return false;
  }
  f->source = "TensorRT";
  f->requested = size_after(code, "(Requested size was ");
  if (!f->requested || one.data() > code.data()) {
    const std::optional<Bytes> said = size_after(one, "GPU memory (");
    f->requested = said ? said : f->requested;
  }
  return true;
}

// "Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`".
bool read_tgi(std::string_view text, Failure* f) {
  const std::string_view one = last_paragraph(text, "Not enough memory to handle ").substr(0, 200);
  if (!holds(one, "tokens")) {
    return false;
  }
  f->source = "Text Generation Inference";
  f->moment = Moment::kStep;
  return true;
}

bool read_exllama(std::string_view text, Failure* f) {
  if (!holds(text, "Insufficient VRAM for model and cache") &&
      !holds(text, "Insufficient VRAM in split for model")) {
    return false;
  }
  f->source = "ExLlama";
  f->moment = Moment::kLoading;
  f->notes.emplace_back(
      "ExLlama says so when all the cards that it may use, and not one of them, are full");
  return true;
}

// "Out of memory in cuMemAlloc_v2(...)", and not "in current".
bool fails_in_call(std::string_view text, std::string_view phrase) {
  for (std::size_t at = text.find(phrase); at != kNowhere; at = text.find(phrase, at + 1)) {
    const std::string_view next = text.substr(at + phrase.size(), 1);
    if (!next.empty() && (next[0] == '_' || (next[0] >= 'A' && next[0] <= 'Z'))) {
      return true;
    }
  }
  return false;
}

// Numbers stand only in a verbose log: "Buffer allocate: __tex, 42,496 bytes. (41.50K) failed, out of device memory".
bool read_blender(std::string_view text, Failure* f) {
  const bool said = holds(text, "System is out of GPU memory") ||
                    holds(text, "System is out of GPU and shared host memory") ||
                    holds(text, "Out of memory in optix");
  if (!said && !fails_in_call(text, "Out of memory in cu") &&
      !fails_in_call(text, "Out of memory in hip")) {
    return false;
  }
  f->source = "Blender";
  const std::size_t failed = last_of(text, " failed, out of device");
  if (failed != kNowhere) {
    const std::string_view line = text.substr(failed > 200 ? failed - 200 : 0, 200);
    const std::size_t buffer = last_of(line, " allocate: ");
    f->requested = buffer == kNowhere ? std::nullopt : size_after(line.substr(buffer), ", ");
  }
  if (holds(text, "out of GPU and shared host memory")) {
    f->notes.emplace_back(
        "Cycles had moved to the machine's memory what the card has no room for, and found no more "
        "of that either");
  }
  return true;
}

// "Ran out of memory in memory space hbm. Used 35.83G of 31.25G hbm. Exceeded hbm capacity by 4.59G": a program that is
// too large, found when it is compiled.
bool read_tpu(std::string_view text, Failure* f) {
  const std::string_view one = last_paragraph(text, "Ran out of memory in memory space ");
  if (one.empty()) {
    return false;
  }
  f->source = "JAX";
  f->vendor = Vendor::kGoogle;
  f->moment = Moment::kStep;
  const std::string_view used = one.substr(std::min(one.find("Used "), one.size()));
  f->requested = size_after(used, "Used ");
  f->capacity = size_after(used, " of ");
  return true;
}

}  // namespace

// The pool is Triton's own, and the card may have room.
bool read_triton_warning(std::string_view text, Failure* f) {
  const std::string_view one =
      last_paragraph(text, "Failed to allocate CUDA memory with byte size ").substr(0, 300);
  if (one.empty()) {
    return false;
  }
  f->source = "Triton Inference Server";
  f->requested = size_after(one, "byte size ");
  if (holds(one, "CNMEM_STATUS_OUT_OF_MEMORY")) {
    f->limit_reached = true;
    f->limit_name =
        "Triton's pool of CUDA memory (--cuda-memory-pool-byte-size, 64 MiB by default)";
  }
  if (holds(one, "falling back to pinned")) {
    f->notes.emplace_back(
        "this is a warning: Triton went on in pinned memory of the machine, which is slower");
  }
  return true;
}

bool read_application_message(std::string_view text, OomMessage* message) {
  for (const auto& read : {read_xgboost,
                           read_faiss,
                           read_paddle,
                           read_tensorrt,
                           read_tgi,
                           read_exllama,
                           read_blender,
                           read_tpu}) {
    Failure f;
    if (read(text, &f)) {
      message->failure = std::move(f);
      return true;
    }
  }
  return false;
}

void note_application(std::string_view text, Failure* failure) {
  if (Failure server; failure->source == "PyTorch" && read_tgi(text, &server)) {
    failure->notes.emplace_back(
        "the program is Text Generation Inference: --max-batch-prefill-tokens, "
        "--max-batch-total-tokens and --cuda-memory-fraction say how much it takes");
  }
}

}  // namespace nofrag::detail
