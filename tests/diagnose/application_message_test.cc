// Failures of programs that have a wording of their own, word for word as people have posted them and shortened: whose
// message it is, and every number in it.
#include <string>

#include <gtest/gtest.h>

#include "diagnose/classify.h"
#include "diagnose/message/text_scan.h"
#include "message_reading.h"

namespace nofrag {
namespace {

TEST(XGBoost, FreeAndRequestedOfEachVersion) {
  const Failure old = failure_in(
      "xgboost.core.XGBoostError: [10:15:52] ../src/common/device_helpers.cuh:431: Memory "
      "allocation "
      "error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: "
      "6643777536\n- Requested memory: 9223372036854775807\n\nStack trace:");
  EXPECT_EQ(old.source, "XGBoost");
  EXPECT_EQ(old.driver_free, Bytes(6643777536));
  EXPECT_EQ(old.requested, std::nullopt) << "no memory has that many bytes";
  const Failure f = failure_in(
      "Memory allocation error on worker 3: std::bad_alloc: cudaErrorMemoryAllocation: out of "
      "memory\n- Free memory: 1.5GB\n- Requested memory: 12GB\n- Reserved by the pool: 60GB\n- "
      "Used "
      "by the pool: 55GB\n");
  EXPECT_EQ(f.driver_free, 1536 * kMiB);
  EXPECT_EQ(f.requested, 12 * kGiB);
  EXPECT_EQ(f.live, 55 * kGiB);
  EXPECT_EQ(f.cached, 5 * kGiB);
  EXPECT_FALSE(says(classify(f).evidence, "driver said no"));
  // On RMM it is XGBoost's message all the same.
  EXPECT_EQ(
      failure_in("Memory allocation error on worker 0: std::bad_alloc: out_of_memory: RMM "
                 "failure at:pool_memory_resource.hpp:196: Maximum pool size exceeded\n- Free "
                 "memory: 1GB\n- Requested memory: 2GB")
          .source,
      "XGBoost");
}

TEST(Faiss, ThreeWordings) {
  const Failure oldest = failure_in(
      "RuntimeError: Error in void faiss::gpu::allocMemorySpaceV(faiss::gpu::MemorySpace, void**, "
      "size_t) at gpu/utils/MemorySpace.cpp:26: Error: 'err == cudaSuccess' failed: failed to "
      "cudaMalloc 47064032 bytes (error 2 out of memory)");
  EXPECT_EQ(oldest.source, "faiss");
  EXPECT_EQ(oldest.requested, Bytes(47064032));
  const Failure older = failure_in(
      "allocMemory(const faiss::gpu::AllocRequest&) at StandardGpuResources.cpp:443: Error: 'err "
      "== "
      "cudaSuccess' failed: Failed to cudaMalloc 536870912 bytes on device 1 (error 2 out of "
      "memory\nOutstanding allocations:\nAlloc type FlatData: 2 allocations, 3145728 bytes\nAlloc "
      "type "
      "TemporaryMemoryBuffer: 1 allocations, 1610612736 bytes\n)");
  EXPECT_EQ(older.requested, 512 * kMiB);
  EXPECT_EQ(older.live, Bytes(3145728 + 1610612736));
  const Failure f = failure_in(
      "Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type "
      "TemporaryMemoryBuffer dev 0 space Device stream 0x56211a0ab660 size 1610612736 bytes "
      "(cudaMalloc error out of memory [2])");
  EXPECT_EQ(f.source, "faiss");
  EXPECT_EQ(f.requested, 1536 * kMiB);
  const Diagnosis d = classify(f);
  EXPECT_TRUE(says(d.evidence, "temporary memory"));
  EXPECT_TRUE(says(d.advice, "setTempMemory"));
}

TEST(Paddle, WhatIsTakenAndFreeIsTheCard) {
  const Failure f = failure_in(
      "RuntimeError: ResourceExhaustedError:\n\nOut of memory error on GPU 0. Cannot allocate "
      "98.000244MB memory on GPU 0, 6.000000GB memory has been allocated and available memory is "
      "only "
      "0.000000B.\n\nPlease check whether there is any other process using GPU 0.");
  EXPECT_EQ(f.source, "PaddlePaddle");
  EXPECT_EQ(f.requested, size_at("98.000244 MiB"));
  EXPECT_EQ(f.driver_free, Bytes(0));
  EXPECT_EQ(f.capacity, 6 * kGiB);
  const Failure older = failure_in(
      "Out of memory error on GPU 0. Cannot allocate 3.125000GB memory on GPU 0, available memory "
      "is "
      "only 117.750000MB.");
  EXPECT_EQ(older.requested, 3200 * kMiB);
  EXPECT_EQ(older.driver_free, size_at("117.75 MiB"));
  EXPECT_EQ(older.capacity, std::nullopt);
  const Failure first = failure_in(
      "Out of memory error on GPU 0. Cannot allocate 145.468994MB GPU memory, available memory is "
      "72.312500MB.");
  EXPECT_EQ(first.driver_free, size_at("72.3125 MiB"));
  EXPECT_EQ(failure_in("Cannot malloc 49.0002 MB GPU memory. Please shrink "
                       "FLAGS_fraction_of_gpu_memory_to_use")
                .requested,
            size_at("49.0002 MiB"));
  EXPECT_EQ(failure_in("OSError: (External) CUDA error(2), out of memory.\n  [Hint: "
                       "'cudaErrorMemoryAllocation'. The API call failed] (at "
                       "/paddle/paddle/phi/backends/gpu/gpu_context.cc:359)")
                .source,
            "PaddlePaddle");
}

TEST(Triton, ItsPoolIsALimitAndTheTextAWarning) {
  const std::string warning =
      "W0410 13:51:44.743979 1 memory.cc:212] Failed to allocate CUDA memory with byte size "
      "102236160 "
      "on GPU 0: CNMEM_STATUS_OUT_OF_MEMORY, falling back to pinned system memory";
  const Failure f = failure_in(warning);
  EXPECT_EQ(f.source, "Triton Inference Server");
  EXPECT_EQ(f.requested, Bytes(102236160));
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kLimit);
  EXPECT_TRUE(says(d.evidence, "--cuda-memory-pool-byte-size"));
  EXPECT_TRUE(says(d.evidence, "warning"));
  const Failure onnx = failure_in(
      "onnx runtime error 6: Non-zero status code returned while running Mul node. "
      "bfc_arena.cc:368 Failed to allocate memory for requested buffer of size 2830172160\n" +
      warning);
  EXPECT_EQ(onnx.source, "ONNX Runtime");
  EXPECT_EQ(onnx.requested, Bytes(2830172160));
}

TEST(TensorRt, TheSizeIsRead) {
  const Failure f = failure_in(
      "[E] [TRT] Requested amount of GPU memory (1073741824 bytes) could not be allocated. There "
      "may "
      "not be enough free memory for allocation to succeed.");
  EXPECT_EQ(f.source, "TensorRT");
  EXPECT_EQ(f.requested, kGiB);
  EXPECT_EQ(
      failure_in("[TRT] 1: [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out "
                 "of memory)")
          .source,
      "TensorRT");
}

TEST(TensorRt, TheSizeThatItsBufferCouldNotGrowTo) {
  const std::string old =
      "[W] Requested amount of GPU memory (1073741824 bytes) could not be allocated.\n";
  const std::string buffer = "[TRT] [E] [virtualMemoryBuffer.cpp::resizePhysical::154] ";
  const std::string sized =
      buffer + "Error Code 2: OutOfMemory (Requested size was 4294967296 bytes.)\n";
  const std::string unsized = buffer + "Error Code 2: OutOfMemory (no further information)\n";
  const Failure f = failure_in(sized);
  EXPECT_EQ(f.source, "TensorRT");
  EXPECT_EQ(f.requested, 4 * kGiB);
  EXPECT_TRUE(says(classify(f).advice, "--memPoolSize=workspace"));
  EXPECT_EQ(failure_in(unsized).source, "TensorRT");
  EXPECT_EQ(failure_in(unsized).requested, std::nullopt);
  EXPECT_EQ(failure_in(old + unsized).requested, kGiB);
  EXPECT_FALSE(says(classify(failure_in(old + unsized)).evidence, "failures of GPU memory"));
  EXPECT_EQ(failure_in(old + sized).requested, 4 * kGiB);
  EXPECT_EQ(failure_in(sized + old).requested, kGiB);
  EXPECT_TRUE(says(classify(failure_in(old + sized)).evidence, "2 failures of GPU memory"));
}

TEST(Tgi, ItsOwnWordsAndPyTorchs) {
  for (const char* text :
       {"RuntimeError: Not enough memory to handle 4096 prefill tokens. You need to decrease "
        "`--max-batch-prefill-tokens`",
        "Not enough memory to handle 16000 total tokens with 2 prefill tokens. You need to "
        "decrease "
        "`--max-batch-total-tokens` or `--max-batch-prefill-tokens`"}) {
    const Failure f = failure_in(text);
    EXPECT_EQ(f.source, "Text Generation Inference");
    EXPECT_EQ(classify(f).cause, Cause::kBatchTooLarge);
  }
  const Failure f = failure_in(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 222.00 MiB. GPU 0 has a "
      "total capacty of 39.39 GiB of which 217.94 MiB is free. Process 862944 has 39.17 GiB memory "
      "in "
      "use. Of the allocated memory 37.10 GiB is allocated by PyTorch, and 1.57 GiB is reserved by "
      "PyTorch but unallocated.\nRuntimeError: Not enough memory to handle 4096 prefill tokens.");
  EXPECT_EQ(f.source, "PyTorch");
  EXPECT_EQ(f.requested, 222 * kMiB);
  EXPECT_TRUE(says(classify(f).evidence, "--max-batch-prefill-tokens"));
}

TEST(ExLlama, IsTheModelWithItsCache) {
  for (const char* text : {"RuntimeError: Insufficient VRAM for model and cache",
                           "RuntimeError: Insufficient VRAM in split for model and cache"}) {
    const Failure f = failure_in(text);
    EXPECT_EQ(f.source, "ExLlama");
    EXPECT_EQ(classify(f).cause, Cause::kModelTooLarge);
  }
}

TEST(Blender, WithAndWithoutNumbers) {
  for (const char* text :
       {"Error: System is out of GPU memory",
        "System is out of GPU and shared host memory",
        "CUDA error: Out of memory in cuMemAlloc_v2(&device_pointer, size)",
        "Out of memory in cuStreamCreate(&cuda_stream_, CU_STREAM_NON_BLOCKING) (queue.cpp:21)"}) {
    EXPECT_EQ(failure_in(text).source, "Blender") << text;
    EXPECT_FALSE(failure_in(text).host_memory) << text;
  }
  const Failure f = failure_in(
      "I0606 device_cuda.cpp:647] Buffer allocate: __tri_verts, 1,073,741,824 bytes. (1.00G) "
      "failed, "
      "out of device memory\nSystem is out of GPU memory");
  EXPECT_EQ(f.requested, kGiB);
  EXPECT_TRUE(says(classify(f).advice, "OptiX"));
}

TEST(TensorFlow, DeviceCpuIsTheMachine) {
  const char* const cpu =
      "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor "
      "with shape[16,19,19,1024] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by "
      "allocator cpu\n\t [[Node: 36-leaky = Maximum[T=DT_FLOAT]]]";
  const Failure f = failure_in(cpu);
  EXPECT_TRUE(f.host_memory);
  EXPECT_EQ(f.source, "TensorFlow");
  EXPECT_EQ(f.requested, Bytes(16ULL * 19 * 19 * 1024 * 4));
  const std::string gpu =
      "ResourceExhaustedError: OOM when allocating tensor with shape[3,3,512,1024] and type half "
      "on "
      "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]";
  const Failure g = failure_in(gpu);
  EXPECT_FALSE(g.host_memory);
  EXPECT_EQ(g.source, "TensorFlow");
  EXPECT_EQ(g.requested, Bytes(3ULL * 3 * 512 * 1024 * 2));
  EXPECT_FALSE(failure_in(cpu + ("\n" + gpu)).host_memory) << "the later message is the failure";
}

TEST(TensorFlow, TheNodeBehindMayBeOnAnotherDevice) {
  const Failure f = failure_in(
      "OOM when allocating tensor with shape[16,19] and type float on /device:GPU:0 by allocator "
      "GPU_0_bfc\n\t [[Node: x = "
      "Mul[_device=\"/job:localhost/replica:0/task:0/device:CPU:0\"](a)]]");
  EXPECT_FALSE(f.host_memory);
  EXPECT_EQ(f.requested, Bytes(16ULL * 19 * 4));
  EXPECT_TRUE(
      failure_in("OOM when allocating tensor with shape[2] and type float on /job:localhost/"
                 "replica:0/task:0/device:CPU:0 by allocator mklcpu\n[[{{node "
                 "/device:GPU:0}}]]")
          .host_memory);
}

TEST(TensorFlow, ATensorsSize) {
  EXPECT_EQ(tensor_size("shape[2,3] and type bfloat16 on"), Bytes(12));
  EXPECT_EQ(tensor_size("shape[] and type float"), Bytes(4));
  for (const char* text : {"shape[2,x] and type float",
                           "shape[2,3] and type floaty",
                           "shape[2,3",
                           "",
                           "shape[,2] and type float",
                           "shape[99999999999,99999999999] and type float"}) {
    EXPECT_EQ(tensor_size(text), std::nullopt) << text;
  }
}

TEST(Llama, ThePartOnTheHostAndOllamasCheck) {
  const Failure f = failure_in(
      "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 437944320\n"
      "alloc_tensor_range: failed to allocate CPU buffer of size 437944320\nllama_model_load: "
      "error "
      "loading model: unable to allocate CPU buffer\npanic: unable to load model");
  EXPECT_TRUE(f.host_memory);
  EXPECT_EQ(f.source, "llama.cpp");
  EXPECT_EQ(f.requested, Bytes(437944320));
  const Failure check = failure_in(
      "Error: model requires more system memory (164.8 GiB) than is available (13.4 GiB)");
  EXPECT_TRUE(check.host_memory);
  EXPECT_EQ(check.source, "Ollama");
  EXPECT_EQ(check.requested, size_at("164.8 GiB"));
  EXPECT_TRUE(says(classify(check).evidence, "13.40 GiB are available"));
}

TEST(Llama, OllamaAndAmd) {
  const Failure f = failure_in(
      "ollama  | ggml_backend_cuda_buffer_type_alloc_buffer: allocating 35533.34 MiB on device 0: "
      "cudaMalloc failed: out of memory\nollama  | llama_model_load: error loading model: unable "
      "to "
      "allocate CUDA0 buffer\npanic: unable to load model: "
      "/usr/share/ollama/.ollama/models/blobs/sha256-d83c");
  EXPECT_EQ(f.source, "Ollama");
  EXPECT_EQ(f.requested, size_at("35533.34 MiB"));
  EXPECT_EQ(classify(f).cause, Cause::kModelTooLarge);
  const Failure alone = failure_in(
      "Error: llama runner process has terminated: error loading model: unable to allocate CUDA2 "
      "buffer");
  EXPECT_EQ(alone.source, "Ollama");
  EXPECT_EQ(classify(alone).cause, Cause::kModelTooLarge);
  const Failure amd = failure_in(
      "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 14136.04 MiB on device 0: cudaMalloc "
      "failed: out of memory\nggml_gallocr_reserve_n: failed to allocate ROCm0 buffer of size "
      "14822711296\ngraph_reserve: failed to allocate compute buffers");
  EXPECT_EQ(amd.vendor, Vendor::kAmd);
  EXPECT_EQ(amd.source, "llama.cpp");
  EXPECT_EQ(amd.moment, Moment::kStep);
}

// Ollama's own log names neither its program nor its models in each line.
TEST(Llama, OllamasLogIsToldFromLlamaCpps) {
  const std::string error = "CUDA error: out of memory\n  current device: 0, in function alloc at ";
  const std::string file = "ggml/src/ggml-cuda/ggml-cuda.cu:445\n";
  for (const std::string& text :
       {"time=2026-01-02T12:00:05.123Z level=INFO source=server.go:1272 msg=\"loading\"\n" + error +
            file,
        error + file +
            "[GIN] 2026/01/02 - 12:00:05 | 500 | 3.2s | 127.0.0.1 | POST \"/api/chat\"\n",
        error + "//ml/backend/ggml/" + file,
        error + "//ml/backend/ggml/ggml/src/backend.cpp:12\n"}) {
    const Failure f = failure_in(text);
    EXPECT_EQ(f.source, "Ollama") << text;
    EXPECT_TRUE(says(classify(f).advice, "OLLAMA_NUM_PARALLEL")) << text;
    EXPECT_FALSE(says(classify(f).advice, "-ngl")) << text;
  }
  EXPECT_EQ(failure_in(error + file).source, "llama.cpp");
  // Another program's server.go, and no word of llama.cpp.
  EXPECT_EQ(failure_in("source=server.go:12 msg=x\nCUDA error: out of memory\n").source, "CUDA");
}

// The pool's numbers, whatever else is printed behind them in similar words.
TEST(Bfc, StatsOfOthersAreNotThePools) {
  const std::string failed =
      "W external/bfc_allocator.cc:479] Allocator (GPU_0_bfc) ran out of memory trying to allocate "
      "1.50GiB (rounded to 1610612736)requested by op \n";
  const std::string dump =
      "I external/bfc_allocator.cc:1101] Stats: \nLimit:                     16106127360\n"
      "InUse:                     12884901888\nMaxInUse:                  13958643712\n";
  for (const char* const behind : {"",
                                   "trainer: Training Stats: loss 3.2\n",
                                   "Rate Limit: 5\n",
                                   "Stats: Limit: 7, Used: 3\n"}) {
    for (const std::string& text : {failed + dump + behind, failed + behind + dump}) {
      const Failure f = failure_in(text);
      EXPECT_EQ(f.capacity, 15 * kGiB) << text;
      EXPECT_EQ(f.live, 12 * kGiB) << text;
      EXPECT_EQ(classify(f).cause, Cause::kFragmentation) << text;
    }
  }
  // Of two dumps the last.
  std::string earlier = dump;
  earlier.replace(earlier.find("12884901888"), 11, "10737418240");
  EXPECT_EQ(failure_in(failed + earlier + failed + dump + "Epoch Stats: 1\n").live, 12 * kGiB);
}

TEST(Xla, NewerTextsAndTpus) {
  const Failure f = failure_in(
      "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
      "86.89GiB.");
  EXPECT_EQ(f.source, "JAX");
  EXPECT_EQ(f.requested, size_at("86.89 GiB"));
  EXPECT_EQ(
      failure_in("RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B) on "
                 "device ordinal 0")
          .requested,
      176 * kMiB);
  const Failure tpu = failure_in(
      "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of "
      "memory in memory space hbm. Used 35.83G of 31.25G hbm. Exceeded hbm capacity by 4.59G.");
  EXPECT_EQ(tpu.source, "JAX");
  EXPECT_EQ(tpu.requested, size_at("35.83 GiB"));
  EXPECT_EQ(tpu.capacity, size_at("31.25 GiB"));
  const Diagnosis d = classify(tpu);
  EXPECT_EQ(d.cause, Cause::kBatchTooLarge);
  EXPECT_FALSE(says(d.advice, "nofrag") || says(d.advice, "nvidia") || says(d.advice, "PyTorch"));
}

// gRPC's and web services' name for any bound.
TEST(Xla, ExhaustedIsMoreThanMemory) {
  const std::string size =
      "StatusCode.RESOURCE_EXHAUSTED details = \"Received message larger than max\"\n";
  for (const std::string& text :
       {size,
        std::string("429 RESOURCE_EXHAUSTED: Quota exceeded for quota metric"),
        std::string("429 RESOURCE_EXHAUSTED, too many requests")}) {
    EXPECT_TRUE(failure_in(text).source.empty()) << text;
  }
  const std::string memory = "RESOURCE_EXHAUSTED: CUDA could not serve it\n";
  EXPECT_EQ(failure_in(memory).source, "JAX");
  EXPECT_EQ(failure_in(size + std::string(400, '.') + memory).source, "JAX");
}

TEST(Rmm, NewerTextsKeepTheirSizes) {
  const std::string log =
      "[error ] [A][Stream 0x1][Upstream 11136000000B][FAILURE maximum pool size exceeded: Not "
      "enough "
      "room to grow, current/max/try size = 78.000000 GiB, 78.000000 GiB, 10.371208 GiB]\n";
  const Failure f = failure_in(
      log +
      "std::bad_alloc: out_of_memory: RMM failure at:/x/pool_memory_resource_impl.cpp:73: Maximum "
      "pool size exceeded (failed to allocate 10.371208 GiB): Not enough room to grow, "
      "current/max/try size = 78.000000 GiB, 78.000000 GiB, 10.371208 GiB");
  EXPECT_EQ(f.requested, size_at("10.371208 GiB"));
  EXPECT_EQ(f.limit, 78 * kGiB);
  EXPECT_EQ(failure_in("[A][Stream 0x1][Upstream 11136000000B][FAILURE maximum pool size exceeded]")
                .requested,
            Bytes(11136000000));
  const Failure arena = failure_in(
      "RMM failure at:arena.cpp:62: Maximum pool size exceeded (failed to allocate 2.000000 GiB): "
      "No "
      "room in arena.");
  EXPECT_EQ(arena.requested, 2 * kGiB);
  EXPECT_TRUE(says(classify(arena).advice, "arena_size"));
  // The pool had no limit: the driver refused it more.
  const Failure driver = failure_in(
      "RMM failure at:pool.hpp:196: Maximum pool size exceeded (failed to allocate 2.000000 GiB): "
      "std::bad_alloc: out_of_memory: CUDA error (failed to allocate 2147483648 bytes) at: "
      "cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation out of memory");
  EXPECT_EQ(driver.requested, 2 * kGiB);
  EXPECT_NE(classify(driver).cause, Cause::kLimit);
}

}  // namespace
}  // namespace nofrag
