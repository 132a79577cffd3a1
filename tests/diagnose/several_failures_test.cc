// Texts with more than one failure: how many there are, which one is told, and how the first one reads.
#include <string>

#include <gtest/gtest.h>

#include "diagnose/classify.h"
#include "diagnose/message/text_scan.h"
#include "message_reading.h"

namespace nofrag {
namespace {

std::string torch_failure(const std::string& requested,
                          const std::string& gpu = "0",
                          const std::string& free = "1.00 GiB") {
  return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " + requested + ". GPU " +
         gpu + " has a total capacity of 24.00 GiB of which " + free +
         " is free. Of the allocated memory 17.00 GiB is allocated by PyTorch, and 5.00 GiB is "
         "reserved by PyTorch but unallocated.\n";
}

bool counted(const std::string& text) {
  return says(classify(failure_in(text)).evidence, "failures of GPU memory");
}

TEST(Several, TheLastIsToldAndTheFirstOneQuoted) {
  const std::string text = "[rank0] step 7\n" + torch_failure("6.00 GiB") + "retrying\n" +
                           torch_failure("2.00 GiB") + "epoch 2\n" +
                           torch_failure("3.00 GiB", "1", "12.00 MiB");
  const Failure f = failure_in(text);
  EXPECT_EQ(f.requested, 3 * kGiB);
  const Diagnosis d = classify(f);
  EXPECT_TRUE(says(d.evidence, "the text tells of 3 failures of GPU memory; this is the last"));
  EXPECT_TRUE(says(d.evidence, "CUDA out of memory. Tried to allocate 6.00 GiB"));
  EXPECT_FALSE(says(d.evidence, "2.00 GiB. GPU"));
}

TEST(Several, OneThatIsToldAgainIsOne) {
  const std::string one = torch_failure("2.00 GiB");
  EXPECT_FALSE(counted(one));
  EXPECT_FALSE(counted(one +
                       "\nDuring handling of the above exception, another exception occurred:\n" +
                       "ERROR 12:01 worker 3: " + one));
  // Broken elsewhere the second time, and told once more without numbers.
  std::string broken = one;
  broken.replace(broken.find("of which"), 1, "\no");
  EXPECT_FALSE(counted(one + broken + "RuntimeError: CUDA error: out of memory\n"));
  EXPECT_FALSE(counted(
      "[A][Stream 0x1][Upstream 11136000000B][FAILURE maximum pool size exceeded: Not enough room "
      "to "
      "grow, current/max/try size = 78.000000 GiB, 78.000000 GiB, 10.371208 GiB]\nstd::bad_alloc: "
      "out_of_memory: RMM failure at:/x/pool.cpp:73: Maximum pool size exceeded (failed to "
      "allocate "
      "10.371208 GiB): Not enough room to grow"));
  EXPECT_FALSE(counted(
      "W bfc_allocator.cc:290] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.25GiB "
      "with freed_by_count=0. The caller indicates that this is not a failure, but this may mean "
      "that there could be performance gains\nAllocator (GPU_0_bfc) ran out of memory trying to "
      "allocate 256.0KiB (rounded to 262144)\nResourceExhaustedError: OOM when allocating tensor "
      "with "
      "shape[3,3,512,1024] and type float on device:GPU:0 by allocator GPU_0_bfc"));
}

// Whose message is looked for first does not matter, nor that the sizes are equal.
TEST(Several, TheLastIsAnotherAllocators) {
  const std::string cupy =
      "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 2,147,483,648 bytes (allocated "
      "so far: 8,589,934,592 bytes, limit set to: 10,000,000,000 bytes).\n";
  const std::string jax = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate ";
  std::string steps;
  for (int i = 0; i < 400; ++i) {
    steps += "INFO step done, loss 0.3\n";
  }
  for (const std::string& first :
       {torch_failure("2.00 GiB"), torch_failure("1.50 GiB"), jax + "2147483648 bytes.\n"}) {
    const Failure f = failure_in(first + steps + cupy);
    EXPECT_EQ(f.source, "CuPy");
    EXPECT_EQ(f.requested, 2 * kGiB);
    EXPECT_TRUE(says(classify(f).evidence, "tells of 2 failures of GPU memory; this is the last"));
  }
  const Failure f = failure_in(cupy + steps + torch_failure("2.00 GiB"));
  EXPECT_EQ(f.source, "PyTorch");
  EXPECT_TRUE(says(classify(f).evidence, "tells of 2 failures of GPU memory; this is the last"));
  // Close by it is the same failure in other words, and the one that says more is told.
  EXPECT_EQ(failure_in(torch_failure("2.00 GiB") + "Traceback\n" + cupy).source, "PyTorch");
  EXPECT_FALSE(counted(torch_failure("2.00 GiB") + "Traceback\n" + cupy));
}

TEST(Several, RetriesOfLlamaCpp) {
  const Failure f = failure_in(
      "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5030.00 MiB on device 0: cudaMalloc "
      "failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size "
      "5274339328\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 2952.66 MiB on device 0: "
      "cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer "
      "of "
      "size 3096088576\n");
  EXPECT_EQ(f.requested, size_at("2952.66 MiB"));
  EXPECT_TRUE(says(classify(f).evidence, "2 failures of GPU memory; this is the last"));
  EXPECT_TRUE(says(classify(f).evidence, "allocating 5030.00 MiB on device 0"));
}

// Ollama says of its runner what the runner has said, without the size.
TEST(Several, OllamasSummaryIsNoFailureOfItsOwn) {
  const std::string first =
      "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 20480.00 MiB on device 0: cudaMalloc "
      "failed: out of memory\nggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size "
      "21474836480\n";
  const std::string one =
      "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 14336.00 MiB on device 0: cudaMalloc "
      "failed: out of memory\nggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size "
      "15032385536\n";
  const Diagnosis alone = classify(failure_in(one));
  for (const std::string& ended : {std::string("has terminated: "),
                                   std::string("has terminated: signal: aborted (core dumped) "),
                                   std::string("no longer running: 2 ")}) {
    const std::string summary =
        "time=2026-01-02T12:00:05.123Z level=INFO source=sched.go:470 msg=\"Load failed\" "
        "model=/usr/share/ollama/.ollama/models/blobs/sha256-1 error=\"llama runner process " +
        ended + "cudaMalloc failed: out of memory\"\n";
    const Failure f = failure_in(one + summary);
    EXPECT_EQ(f.source, "Ollama");
    EXPECT_EQ(f.requested, 14336 * kMiB) << ended;
    EXPECT_EQ(f.moment, failure_in(one).moment) << ended;
    const Diagnosis d = classify(f);
    EXPECT_EQ(d.cause, alone.cause) << ended;
    EXPECT_EQ(d.confidence, alone.confidence) << ended;
    EXPECT_FALSE(counted(one + summary)) << ended;
    EXPECT_FALSE(counted(one + summary + summary)) << ended;
    EXPECT_TRUE(says(classify(failure_in(first + one + summary)).evidence,
                     "2 failures of GPU memory; this is the last"));
    // All that a client prints.
    EXPECT_EQ(failure_in(summary).source, "Ollama") << ended;
    EXPECT_FALSE(counted(summary)) << ended;
  }
  EXPECT_FALSE(
      counted("ggml-cuda.cu:91: CUDA error: out of memory\nError: llama runner process has "
              "terminated: CUDA error: out of memory\"\n"));
}

TEST(Several, WhichOneOfTwoAllocators) {
  // The one with numbers is told; it was the first.
  const Failure f =
      failure_in(torch_failure("2.00 GiB") +
                 "later\nfaiss: StandardGpuResources: alloc fail type FlatData dev 0 "
                 "space Device stream 0 size 1610612736 bytes (cudaMalloc error out of "
                 "memory [2])");
  EXPECT_EQ(f.source, "PyTorch");
  EXPECT_TRUE(says(classify(f).evidence, "2 failures of GPU memory; this is number 1"));
  EXPECT_FALSE(says(classify(f).evidence, "reads"));
}

TEST(Several, AGpusFailureBeforeTheMachinesIsSaid) {
  const Failure f = failure_in(torch_failure("2.00 GiB") +
                               "Out of memory: Killed process 4242 (python) total-vm:1kB");
  EXPECT_TRUE(f.host_memory);
  EXPECT_TRUE(says(classify(f).evidence, "also tells of GPU memory that ran out"));
  EXPECT_TRUE(says(classify(f).evidence, "Tried to allocate 2.00 GiB"));
}

// Of a log that tells of very many not all are compared, which is said.
TEST(Several, MoreThanAreLookedAt) {
  std::string text;
  for (int i = 0; i < 12'000; ++i) {
    text += "Tried to allocate " + std::to_string(100 + i % 800) + ".00 MiB.\n";
  }
  text += torch_failure("3.00 GiB");
  const Failure f = failure_in(text);
  EXPECT_EQ(f.requested, 3 * kGiB);
  EXPECT_TRUE(
      says(classify(f).evidence, "at least 800 failures of GPU memory; this is one of the"));
}

TEST(Several, ManyAlikeAndOneThatWasNotComparedWithThem) {
  std::string text;
  for (int i = 0; i < 12'000; ++i) {
    text += "Tried to allocate 100.00 MiB.\n";
  }
  text += torch_failure("3.00 GiB");
  EXPECT_TRUE(says(classify(failure_in(text)).evidence, "than were compared; this is one of the"));
}

TEST(Several, OfTheMachineAndOfAGpu) {
  const Diagnosis d = classify(failure_in(torch_failure("3.00 GiB") + "Reason: OOMKilled\n"));
  EXPECT_EQ(d.cause, Cause::kHostMemory);
  EXPECT_TRUE(says(d.evidence, "the text also tells of GPU memory that ran out"));
  EXPECT_FALSE(says(d.evidence, "not of a GPU"));
}

TEST(Several, CutAnywhereNothingCrashes) {
  const std::string text = torch_failure("6.00 GiB") + "\xC3\xA4 " + torch_failure("2.00 GiB") +
                           "OOM when allocating tensor with shape[1] and type float\n";
  for (std::size_t from = 0; from < text.size(); from += 7) {
    for (std::size_t length = 0; from + length <= text.size(); length += 3) {
      const Diagnosis d = classify(failure_in(std::string_view(text).substr(from, length)));
      ASSERT_TRUE(d.confidence >= 0 && d.confidence <= 1);
    }
  }
}

}  // namespace
}  // namespace nofrag
