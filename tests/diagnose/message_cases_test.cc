// Messages that are easily read wrongly: the verdict on each as a whole.
#include <string>

#include <gtest/gtest.h>

#include "diagnose/classify.h"
#include "diagnose/message/text_scan.h"
#include "diagnose/report.h"
#include "message_reading.h"

namespace nofrag {
namespace {

// As PyTorch prints it where it does not find itself among the processes of the card.
std::string in_container(const std::string& requested,
                         const std::string& card,
                         const std::string& processes,
                         const std::string& held) {
  return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " + requested +
         ". GPU 0 has a total capacity of " + card + " is free. " + processes +
         "Of the allocated memory " + held + " is reserved by PyTorch but unallocated.";
}

TEST(Container, AProcessThatHoldsWhatPyTorchDoesIsThisOne) {
  const Failure f = failure_in(in_container("4.00 GiB",
                                            "23.64 GiB of which 102.81 MiB",
                                            "Process 2211734 has 23.53 GiB memory in use. ",
                                            "22.70 GiB is allocated by PyTorch, and 400.22 MiB"));
  EXPECT_EQ(f.process_in_use, size_at("23.53 GiB"));
  EXPECT_EQ(f.others, std::nullopt);
  EXPECT_EQ(f.other_processes, 0U);
  const Diagnosis d = classify(f);
  EXPECT_NE(d.cause, Cause::kOtherProcess);
  EXPECT_TRUE(says(d.evidence, "process 2211734 is taken for this one: its 23.53 GiB"));
  EXPECT_FALSE(says(d.advice, "2211734"));
  EXPECT_FALSE(says(d.advice, "nvidia-smi"));
}

TEST(Container, OfSeveralTheClosestAboveIsThisOne) {
  const auto with = [](const std::string& processes, const std::string& requested) {
    return failure_in(in_container(requested,
                                   "79.25 GiB of which 1.10 GiB",
                                   processes,
                                   "46.70 GiB is allocated by PyTorch, and 400.22 MiB"));
  };
  const Failure f =
      with("Process 17 has 30.00 GiB memory in use. Process 18 has 48.10 GiB memory in use. ",
           "4.00 GiB");
  EXPECT_EQ(f.process_in_use, size_at("48.10 GiB"));
  EXPECT_EQ(f.others, size_at("30.00 GiB"));
  EXPECT_EQ(f.largest_other, "process 17");
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kOtherProcess) << "what the other one holds is truly another's";
  EXPECT_TRUE(says(d.advice, "process 17"));
  EXPECT_FALSE(says(d.advice, "process 18"));
  EXPECT_EQ(with("Process 1 has 49.00 GiB memory in use. Process 2 has 47.50 GiB memory in use. ",
                 "1 GiB")
                .process_in_use,
            size_at("47.50 GiB"));
  // Less than PyTorch itself holds is none of it.
  EXPECT_EQ(with("Process 1 has 30.00 GiB memory in use. ", "4.00 GiB").process_in_use,
            std::nullopt);
}

TEST(Container, FarMoreThanPyTorchHoldsIsThisOneWhereBothHaveNoRoom) {
  const std::string process = "Process 99 has 78.05 GiB memory in use. ";
  const std::string held =
      "60.90 GiB is allocated by PyTorch, with 10.50 GiB allocated in private pools (e.g., CUDA "
      "Graphs), and 14.22 GiB";
  const Failure f =
      failure_in(in_container("2.00 GiB", "79.11 GiB of which 1.05 GiB", process, held));
  EXPECT_EQ(f.process_in_use, size_at("78.05 GiB"));
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kFragmentation);
  EXPECT_FALSE(says(d.advice, "process 99"));
  // On a card that has room for both it is another's.
  const Failure roomy =
      failure_in(in_container("2.00 GiB", "183.00 GiB of which 1.05 GiB", process, held));
  EXPECT_EQ(roomy.process_in_use, std::nullopt);
  EXPECT_EQ(roomy.others, size_at("78.05 GiB"));
}

TEST(Container, WhereThisProcessIsNamedTheOthersAreOthers) {
  const Failure f = failure_in(
      in_container("4.00 GiB",
                   "23.64 GiB of which 102.81 MiB",
                   "Process 7 has 11.20 GiB memory in use. Including non-PyTorch memory, this "
                   "process has 11.50 GiB memory in use. ",
                   "10.70 GiB is allocated by PyTorch, and 100.22 MiB"));
  EXPECT_EQ(f.process_in_use, size_at("11.50 GiB"));
  EXPECT_EQ(f.others, size_at("11.20 GiB"));
  EXPECT_EQ(classify(f).cause, Cause::kOtherProcess);
}

TEST(RefusedBelow, IsNothingThatRemappingWouldServe) {
  const Failure f = failure_in(
      "RuntimeError: CUDA out of memory. Tried to allocate 86.00 MiB (GPU 0; 7.79 GiB total "
      "capacity; 0 bytes already allocated; 6.52 GiB free; 0 bytes reserved in total by PyTorch)");
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kRefusedBelow);
  EXPECT_FALSE(d.recoverable_by_remapping);
  EXPECT_EQ(full_report(f, d, {}).find("remaps"), std::string::npos);
}

TEST(Optimizer, ItsStateDoesNotDependOnTheBatch) {
  const auto told_by = [](const std::string& frames) {
    return classify(failure_in(
        "Traceback (most recent call last):\n  File \"train.py\", line 80, in main\n    "
        "optimizer.step()\n" +
        frames +
        "\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 "
        "has a total capacty of 23.65 GiB of which 8.06 MiB is free. Including non-PyTorch "
        "memory, this process has 23.63 GiB memory in use. Of the allocated memory 23.16 GiB is "
        "allocated by PyTorch, and 1.17 MiB is reserved by PyTorch but unallocated."));
  };
  for (const char* frames :
       {"  File \"/x/torch/optim/adamw.py\", line 188, in step\n    state[\"exp_avg_sq\"] = "
        "torch.zeros_like(p, memory_format=torch.preserve_format)",
        "  File \"/x/torch/optim/adam.py\", line 202, in step\n    has_complex = "
        "self._init_group(\n  File \"/x/torch/optim/adam.py\", line 165, in _init_group\n    "
        "state[\"exp_avg\"] = torch.zeros_like(\n                       ^^^^^^^^^^^^^^^^^",
        "  File \"/x/torch/optim/sgd.py\", line 345, in _single_tensor_sgd\n    momentum_buffer = "
        "torch.clone(grad).detach()"}) {
    const Diagnosis d = told_by(frames);
    EXPECT_EQ(d.cause, Cause::kModelTooLarge) << frames;
    EXPECT_NEAR(d.confidence, 0.7, 1e-9);
    EXPECT_TRUE(says(d.evidence, "an optimizer was making its state"));
    EXPECT_TRUE(says(d.advice, "8-bit"));
    EXPECT_TRUE(says(d.advice, "ZeRO"));
    EXPECT_TRUE(says(d.advice, "offload"));
    EXPECT_FALSE(says(d.advice, "batch"));
  }
  // What it computes with its state, and what else makes tensors, is a step as before.
  for (const char* frames :
       {"  File \"/x/torch/optim/adam.py\", line 600, in _multi_tensor_adam\n    exp_avg_sq_sqrt = "
        "torch._foreach_sqrt(device_exp_avg_sqs)",
        "  File \"/x/loss.py\", line 6, in closure\n    mask = torch.zeros_like(logits)"}) {
    EXPECT_EQ(told_by(frames).cause, Cause::kBatchTooLarge) << frames;
  }
  // A later frame of another kind tells more.
  EXPECT_EQ(told_by("  File \"/x/torch/optim/adam.py\", line 165, in _init_group\n  File "
                    "\"/x/model.py\", line 5, in forward")
                .cause,
            Cause::kBatchTooLarge);
}

TEST(Vllm, NoRoomForACacheIsTheModel) {
  const Failure f = failure_in(
      "ValueError: No available memory for the cache blocks. Try increasing "
      "`gpu_memory_utilization` when initializing the engine.");
  EXPECT_EQ(f.source, "vLLM");
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kModelTooLarge);
  EXPECT_GE(d.confidence, 0.8);
  ASSERT_FALSE(d.advice.empty());
  EXPECT_NE(d.advice.front().find("--gpu-memory-utilization"), std::string::npos);
  for (const char* part : {"--quantization", "more GPUs", "--max-model-len", "--max-num-batched"}) {
    EXPECT_TRUE(says(d.advice, part)) << part;
  }
  EXPECT_FALSE(says(d.advice, "old turns"));
}

TEST(Vllm, ACacheForLessThanOneRequestSaysForHowMuch) {
  for (const char* text :
       {"ValueError: The model's max seq len (131072) is larger than the maximum number of tokens "
        "that can be stored in KV cache (51200). Try increasing `gpu_memory_utilization`.",
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (6.25 GiB). "
        "Based on the available memory, the estimated maximum model length is 51200. Try "
        "increasing `gpu_memory_utilization` or decreasing `max_model_len`."}) {
    const Failure f = failure_in(text);
    EXPECT_EQ(f.cache_tokens, 51200U);
    const Diagnosis d = classify(f);
    EXPECT_EQ(d.cause, Cause::kKvCacheGrowth);
    ASSERT_FALSE(d.advice.empty());
    EXPECT_NE(d.advice.front().find("--max-model-len 51200"), std::string::npos);
    EXPECT_TRUE(says(d.advice, "--gpu-memory-utilization"));
    EXPECT_FALSE(says(d.evidence, "own limit"));
    EXPECT_FALSE(says(d.evidence, "larger than the limit"));
    EXPECT_FALSE(says(d.advice, "raise the limit"));
  }
  const Diagnosis no_number = classify(failure_in(
      "The model's max seq len (9) is larger than the maximum number of tokens that can be stored "
      "in KV cache (0)."));
  EXPECT_NE(no_number.advice.front().find("a smaller --max-model-len"), std::string::npos);
}

TEST(Rmm, ALimitIsOneAlsoWithoutItsSize) {
  const auto told_by = [](const std::string& text) {
    return classify(failure_in("std::bad_alloc: out_of_memory: RMM failure at:" + text));
  };
  const Diagnosis pool = told_by(
      "/__w/rmm/include/rmm/mr/device/pool_memory_resource.hpp:196: Maximum pool size exceeded");
  EXPECT_EQ(pool.cause, Cause::kLimit);
  EXPECT_TRUE(says(pool.evidence, "its size is not said"));
  EXPECT_TRUE(says(pool.advice, "maximum_pool_size"));
  const Diagnosis adaptor = told_by("limiting_resource_adaptor.hpp:143: Exceeded memory limit");
  EXPECT_EQ(adaptor.cause, Cause::kLimit);
  EXPECT_TRUE(says(adaptor.advice, "limiting_resource_adaptor"));
  EXPECT_FALSE(says(adaptor.advice, "maximum_pool_size"));
  const Failure sized = failure_in(
      "RMM failure at:limiting_resource_adaptor.hpp:143: Exceeded memory limit (failed to allocate "
      "2.000000 GiB)");
  EXPECT_EQ(sized.requested, size_at("2 GiB"));
  EXPECT_EQ(classify(sized).cause, Cause::kLimit);
  // The driver's refusal is none.
  EXPECT_NE(
      told_by("/x/cuda_memory_resource.hpp:70: cudaErrorMemoryAllocation out of memory").cause,
      Cause::kLimit);
}

TEST(Plain, TheDriversRefusalSaysHowMuchWasAskedFor) {
  const Failure rmm = failure_in(
      "RuntimeError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 1073741824 "
      "bytes) at: /x/rmm/mr/device/cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation out of "
      "memory");
  EXPECT_EQ(rmm.source, "RMM");
  EXPECT_EQ(rmm.requested, kGiB);
  const Failure xla = failure_in(
      "cuda_executor.cc:1124] failed to allocate 71.50GiB (76772540416 bytes) from device: "
      "CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  EXPECT_EQ(xla.requested, size_at("71.5 GiB"));
}

// One line, no numbers: the cause is not guessed, and what to do still fits the program.
TEST(Plain, WhoseMessageItIsDecidesWhatNeedsLess) {
  const std::pair<const char*, std::pair<const char*, const char*>> kTexts[] = {
      {"ggml-cuda.cu:91: CUDA error: out of memory\n  current device: 0, in function alloc",
       {"llama.cpp", "-ngl"}},
      {"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: out of memory",
       {"JAX", "XLA_PYTHON_CLIENT_MEM_FRACTION"}},
      {"tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node "
       "__wrapped__Mul}} failed to allocate "
       "memory [Op:Mul] CUDA_ERROR_OUT_OF_MEMORY",
       {"TensorFlow", "TF_FORCE_GPU_ALLOW_GROWTH"}},
      {"NCCL WARN Failed to CUDA calloc 10485760 bytes", {"NCCL", "NCCL_BUFFSIZE"}},
      {"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
       {"SGLang", "--max-running-requests"}},
      {"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
       {"JAX", "jax.checkpoint"}},
      {"MemoryError: std::bad_alloc: out_of_memory: CUDA error at: "
       "/rmm/mr/device/cuda_memory_resource.hpp:62: "
       "cudaErrorMemoryAllocation out of memory",
       {"RMM", "spill"}},
      {"ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of "
       "memory'",
       {"NCCL", "NCCL_BUFFSIZE"}},
      {"cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
       {"CuPy", "free_all_blocks"}},
      {"CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; "
       "file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc",
       {"ONNX Runtime", "arena_extend_strategy"}}};
  for (const auto& [text, expected] : kTexts) {
    const Failure f = failure_in(text);
    EXPECT_EQ(f.source, expected.first) << text;
    const Diagnosis d = classify(f);
    EXPECT_EQ(d.cause, Cause::kUnknown) << text;
    ASSERT_FALSE(d.advice.empty()) << text;
    EXPECT_NE(d.advice.front().find("nofrag run --trace flight:"), std::string::npos) << text;
    EXPECT_TRUE(says(d.advice, expected.second)) << text;
  }
  for (const char* const plain : {"CUDA error: out of memory",
                                  "CUDA error: out of memory. Other processes occupy the GPU.",
                                  "File \"/opt/llama_recipes/finetuning.py\", line "
                                  "3\nRuntimeError: CUDA error: out of memory",
                                  "I tensorflow/core/util/port.cc:153] oneDNN custom operations "
                                  "are on\nRuntimeError: CUDA error: out of memory"}) {
    EXPECT_EQ(failure_in(plain).source, "CUDA") << plain;
    EXPECT_FALSE(says(classify(failure_in(plain)).advice, "whatever the cause")) << plain;
  }
}

TEST(Torch, WhatTheProcessHoldsBesideItComesFirst) {
  const Diagnosis d =
      classify(failure_in("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
                          "GPU 0 has a total capacity of 79.18 GiB of "
                          "which 500.00 MiB is free. Including non-PyTorch memory, this process "
                          "has 78.60 GiB memory in use. Of the allocated "
                          "memory 30.10 GiB is allocated by PyTorch, and 200.00 MiB is reserved by "
                          "PyTorch but unallocated."));
  ASSERT_FALSE(d.advice.empty());
  EXPECT_NE(
      d.advice.front().find("the 48.30 GiB that this process holds beside PyTorch's allocator"),
      std::string::npos)
      << d.advice.front();
}

TEST(Torch, FragmentationIsLessSureWhereNearlyAllOfItIsNeeded) {
  const auto message = [](const char* unallocated) {
    return failure_in(
        std::string("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
                    "has a total capacity of "
                    "79.18 GiB of which 200.00 MiB is free. Including non-PyTorch memory, this "
                    "process has 78.90 GiB memory "
                    "in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and ") +
        unallocated + " is reserved by PyTorch but unallocated.");
  };
  const Diagnosis narrow = classify(message("1.90 GiB"));
  const Diagnosis wide = classify(message("7.90 GiB"));
  EXPECT_EQ(narrow.cause, Cause::kFragmentation);
  EXPECT_EQ(wide.cause, Cause::kFragmentation);
  EXPECT_LT(narrow.confidence, wide.confidence);
  EXPECT_GT(wide.confidence, 0.8);
}

TEST(Vllm, AWarmUpThatFailsIsTheBatch) {
  const Failure f = failure_in(
      "CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try "
      "lowering "
      "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine.");
  const Diagnosis d = classify(f);
  EXPECT_EQ(f.source, "vLLM");
  EXPECT_EQ(d.cause, Cause::kBatchTooLarge);
  EXPECT_TRUE(says(d.advice, "--max-num-seqs"));
}

TEST(Torch, AnNvmlThatDoesNotAnswerIsMostlyOutOfMemory) {
  const Failure f = failure_in(
      "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "
      "\"../c10/cuda/CUDACachingAllocator.cpp\":1154, please report a bug to PyTorch.");
  EXPECT_EQ(f.source, "PyTorch");
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kUnknown);
  EXPECT_LT(d.confidence, 0.5);
  EXPECT_TRUE(says(d.evidence, "mostly the card was out of memory"));
  ASSERT_FALSE(d.missing.empty());
  EXPECT_NE(d.missing.front().find("nvidia-smi"), std::string::npos);
  EXPECT_EQ(
      failure_in("x INTERNAL ASSERT FAILED at \"../c10/cuda/CUDACachingAllocator.cpp\":1").source,
      "");
}

TEST(Vendors, NofragIsAdvisedForNvidiaOnly) {
  const auto told_by = [](const std::string& name, const std::string& requested) {
    return classify(failure_in(
        "torch.OutOfMemoryError: " + name + " out of memory. Tried to allocate " + requested +
        ". GPU 0 has a total capacity of 23.98 GiB of which 1.98 GiB is free. Of the allocated "
        "memory 15.00 GiB is allocated by PyTorch, and 5.44 GiB is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting PYTORCH_" +
        (name == "HIP" ? "HIP_" : "") +
        "ALLOC_CONF=expandable_segments:True to avoid fragmentation."));
  };
  for (const char* requested : {"2.00 GiB", "9.00 GiB", "1.00 GiB", "30.00 GiB"}) {
    for (const char* vendor : {"HIP", "XPU"}) {
      const Diagnosis d = told_by(vendor, requested);
      EXPECT_FALSE(d.advice.empty());
      for (const char* word : {"nofrag", "nvidia", "CUDA"}) {
        EXPECT_FALSE(says(d.advice, word)) << word << ", " << requested;
      }
    }
  }
  const Diagnosis hip = told_by("HIP", "2.00 GiB");
  EXPECT_EQ(hip.cause, Cause::kFragmentation);
  EXPECT_NE(hip.advice.front().find("PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"),
            std::string::npos);
  EXPECT_FALSE(says(hip.missing, "nofrag"));
  EXPECT_TRUE(says(told_by("CUDA", "2.00 GiB").advice, "on nofrag"));
}

TEST(Vendors, OfMpsNothingIsSaidThatTheMessageDoesNotSay) {
  const Diagnosis d = classify(failure_in(
      "RuntimeError: MPS backend out of memory (MPS allocated: 17.30 GiB, other allocations: "
      "440.00 MiB, max allowed: 18.13 GiB). Tried to allocate 1.00 GiB on private pool. Use "
      "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations."));
  EXPECT_EQ(d.cause, Cause::kLimit);
  EXPECT_FALSE(says(d.evidence, "ever freed"));
  EXPECT_TRUE(says(d.evidence, "18.13 GiB"));
  EXPECT_TRUE(says(d.advice, "PYTORCH_MPS_HIGH_WATERMARK_RATIO"));
  for (const char* word : {"nofrag", "nvidia", "torch.cuda"}) {
    EXPECT_FALSE(says(d.advice, word)) << word;
  }
}

}  // namespace
}  // namespace nofrag
