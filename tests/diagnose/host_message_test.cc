// What runs out of the machine's memory, word for word as people have posted it: which memory it was, and what helps.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "diagnose/classify.h"
#include "diagnose/message/text_scan.h"
#include "message_reading.h"

namespace nofrag {
namespace {

// The verdict on a text; that nothing of it is about a GPU holds for all of them.
Diagnosis verdict(const std::string& text, HostMemory which) {
  const Failure f = failure_in(text);
  EXPECT_TRUE(f.host_memory) << text;
  EXPECT_EQ(f.host.which, which) << text;
  Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kHostMemory) << text;
  EXPECT_FALSE(d.evidence.empty() || d.advice.empty()) << text;
  for (const std::string& advice : d.advice) {
    for (const std::string_view word :
         {"expandable_segments", "bf16", "nofrag top", "nvidia-smi"}) {
      EXPECT_EQ(advice.find(word), std::string::npos) << advice;
    }
  }
  return d;
}

constexpr const char* kDevice =
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of "
    "which 1.00 GiB is free. Of the allocated memory 17.00 GiB is allocated by PyTorch, and 5.00 "
    "GiB is reserved by PyTorch but unallocated.";

TEST(HostKernel, WhoWasKilledAndWhatItHeld) {
  const Diagnosis d = verdict(
      "[1234.6] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,"
      "global_oom,task_memcg=/user.slice,task=python,pid=4242,uid=1000\n"
      "[1234.6] Out of memory: Killed process 4242 (python) total-vm:131072000kB, "
      "anon-rss:126976000kB, file-rss:4kB, shmem-rss:0kB, UID:1000 pgtables:248000kB "
      "oom_score_adj:0\n[1234.9] oom_reaper: reaped process 4242 (python), now anon-rss:0kB",
      HostMemory::kMachine);
  EXPECT_TRUE(says(d.evidence, "process 4242 (python) was ended, which held 121.09 GiB"));
  EXPECT_GE(d.confidence, 0.9);
  EXPECT_FALSE(
      says(verdict("Out of memory: Killed process 7 (<b>x</b>) total-vm:1kB", HostMemory::kMachine)
               .evidence,
           "<b>"));
}

TEST(HostKernel, ALimitOfAControlGroupIsTold) {
  const Diagnosis d = verdict(
      "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=979\n"
      "memory: usage 6291456kB, limit 6291456kB, failcnt 21\n"
      "swap: usage 0kB, limit 9007199254740988kB, failcnt 0\n"
      "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/kubepods/burstable\n"
      "Memory cgroup out of memory: Killed process 17 (pt_data_worker) total-vm:9kB, "
      "anon-rss:6000000kB",
      HostMemory::kContainer);
  EXPECT_TRUE(says(d.evidence, "limit is 6.00 GiB"));
  EXPECT_TRUE(says(d.evidence, "(pt_data_worker)"));
  EXPECT_TRUE(says(d.advice, "memory.max"));
  // Of two kills the later one counts.
  verdict(
      "oom-kill:constraint=CONSTRAINT_MEMCG,x\nMemory cgroup out of memory: Killed process 1 "
      "(a)\noom-kill:constraint=CONSTRAINT_NONE,x\nOut of memory: Killed process 2 (b)",
      HostMemory::kMachine);
}

TEST(HostContainers, SystemdKubernetesSlurmAndRay) {
  verdict("job.service: Failed with result 'oom-kill'.", HostMemory::kMachine);
  verdict("job.service: A process of this unit has been killed by the OOM killer.",
          HostMemory::kMachine);
  verdict("vte-spawn.scope: systemd-oomd killed 12 process(es) in this unit.",
          HostMemory::kMachine);
  verdict("    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137",
          HostMemory::kContainer);
  verdict(
      "Message: The node was low on resource: memory. Container citadel was using 43536Ki, "
      "which exceeds its request of 0.",
      HostMemory::kMachine);
  verdict(
      "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=36358.batch. Some of your "
      "processes may have been killed by the cgroup out-of-memory handler.",
      HostMemory::kContainer);
  const Failure ray = failure_in(
      "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
      "Memory on the node (IP: 172.17.0.2) was 21.91GB / 33.28GB (0.658192)");
  EXPECT_EQ(ray.source, "Ray");
  EXPECT_TRUE(ray.host_memory);
}

TEST(HostShared, DataLoadersAndNccl) {
  for (
      const char* text :
      {"RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible "
       "that dataloader's workers are out of shared memory. Please try to raise your shared memory "
       "limit.",
       "DataLoader worker (pid 270071) is killed by signal: \nBus error. It is possible that",
       "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
       "shared memory (shm).",
       "RuntimeError: unable to write to file </torch_31911_952036340_6686>: No space left on "
       "device (28)",
       "RuntimeError: unable to write to file </torch_76_3625483894> at THAllocator.c:383",
       "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: Success (0)",
       "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: No "
       "space "
       "left on device (28)",
       "misc/shmutils.cc:132 NCCL WARN Error while creating shared memory segment "
       "/dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)"}) {
    const Diagnosis d = verdict(text, HostMemory::kShared);
    EXPECT_TRUE(says(d.evidence, "/dev/shm")) << text;
    EXPECT_NE(d.advice.front().find("--shm-size"), std::string::npos) << text;
    EXPECT_TRUE(says(d.advice, "num_workers"));
  }
}

TEST(HostShared, AWorkerThatWasKilledIsNoMatterOfSharedMemory) {
  const Diagnosis d =
      verdict("RuntimeError: DataLoader worker (pid 9833) is killed by signal: Killed. ",
              HostMemory::kMachine);
  EXPECT_LT(d.confidence, 0.9);
  EXPECT_FALSE(failure_in("DataLoader worker (pid 1) is killed by signal: Aborted.").host_memory);
}

TEST(HostShared, OpenFilesAreNamed) {
  const Diagnosis d = verdict(
      "RuntimeError: unable to open shared memory object </torch_710863_755204907_419> in "
      "read-write "
      "mode: Too many open files (24)",
      HostMemory::kOpenFiles);
  EXPECT_TRUE(says(d.evidence, "too many files open"));
  EXPECT_NE(d.advice.front().find("ulimit -n"), std::string::npos);
  verdict("RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode",
          HostMemory::kOpenFiles);
  EXPECT_FALSE(
      failure_in("unable to open shared memory object </x>: Permission denied (13)").host_memory);
}

TEST(HostAllocators, SizesAreRead) {
  const auto requested = [](const std::string& text) {
    verdict(text, HostMemory::kMachine);
    return failure_in(text).requested;
  };
  EXPECT_EQ(requested("[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't "
                      "allocate memory: you tried to allocate 132426121216 bytes. Error code 12 "
                      "(Cannot allocate memory)"),
            Bytes(132426121216));
  EXPECT_EQ(
      requested("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 32.0 GiB for an "
                "array with shape (2048, 2048, 2048, 4) and data type uint8"),
      32 * kGiB);
  EXPECT_EQ(
      requested("MemoryError: Unable to allocate 139. MiB for an array with shape (9131294, 2) "
                "and data type float64"),
      139 * kMiB);
  EXPECT_EQ(requested("MemoryError: Unable to allocate array with shape (9681, 9681) and data type "
                      "float64"),
            std::nullopt);
  EXPECT_EQ(
      requested("RuntimeError: unable to mmap 29764 bytes from file </torch_10182_3_6>: Cannot "
                "allocate memory (12)"),
      Bytes(29764));
  EXPECT_EQ(requested("    self.pid = os.fork()\nOSError: [Errno 12] Cannot allocate memory"),
            std::nullopt);
  EXPECT_FALSE(failure_in("unable to mmap 9 bytes from file <a>: No such device").host_memory);
}

TEST(HostPinned, IsToldFromTheCards) {
  const Diagnosis d = verdict(
      "could not allocate pinned host memory of size: 34359738368\ncuda_driver.cc:802] failed to "
      "alloc 34359738368 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
      HostMemory::kPinned);
  EXPECT_NE(d.advice.front().find("pin"), std::string::npos);
  EXPECT_EQ(
      failure_in("failed to alloc 34359738368 bytes on host: CUDA_ERROR_OUT_OF_MEMORY").requested,
      32 * kGiB);
}

TEST(HostGuess, AKilledProcessIsOneWithLowConfidence) {
  for (const char* text : {"Killed",
                           "epoch 3, loss 0.1\nKilled\n",
                           "run.sh: line 3: 12345 Killed                  python train.py",
                           "[1]+  Killed                  python train.py",
                           "zsh: killed     python train.py",
                           "command terminated with exit code 137",
                           "72d870c1c715   server   Exited (137) 27 hours ago",
                           "      Reason:       Error\n      Exit Code:    137",
                           "torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) "
                           "local_rank: 1 (pid: 1168) of binary: python",
                           "died with <Signals.SIGKILL: 9>.",
                           "job.service: Main process exited, code=killed, status=9/KILL",
                           "and then it was Killed, they said"}) {
    const Diagnosis d = verdict(text, HostMemory::kMachine);
    EXPECT_LE(d.confidence, 0.5) << text;
    EXPECT_GT(d.confidence, 0) << text;
    EXPECT_TRUE(says(d.missing, "dmesg")) << text;
    EXPECT_FALSE(says(d.evidence, "the text tells of memory")) << "it does not: " << text;
  }
  EXPECT_EQ(verdict("$ cat memory.max\n8589934592\nKilled", HostMemory::kContainer).cause,
            Cause::kHostMemory);
}

TEST(HostGuess, NeverWhereSomethingElseIsFound) {
  EXPECT_FALSE(failure_in(std::string(kDevice) + "\nKilled\nexit code 137").host_memory);
  EXPECT_FALSE(failure_in(std::string("Killed\n") + kDevice).host_memory);
  EXPECT_FALSE(failure_in("RuntimeError: CUDA error: out of memory\nMemoryError").host_memory);
  for (const char* text : {"step 137 of 200",
                           "Killedx and reKilled",
                           "exit\n137 images",
                           "exit code 0",
                           "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0",
                           "\"OOMKilled\": false, \"ExitCode\": 137",
                           "OOMKilled:false",
                           "terminated_reason{container=\"trainer\",reason=\"OOMKilled\"} 0",
                           "terminated OOMKilled=0"}) {
    EXPECT_FALSE(failure_in(text).host_memory) << text;
  }
  verdict("terminated_reason{container=\"trainer\",reason=\"OOMKilled\"} 1",
          HostMemory::kContainer);
  verdict("terminated_reason{reason=\"OOMKilled\"} 0.5", HostMemory::kContainer);
  verdict("trainer-0   0/1   OOMKilled   0   5m", HostMemory::kContainer);
  verdict("low 0\nhigh 0\nmax 12\noom 2\noom_kill 2", HostMemory::kContainer);
  verdict("\"OOMKilled\": true, \"ExitCode\": 137", HostMemory::kContainer);
}

// Who is killed after another failure was killed for it.
TEST(HostGuess, NotWhereATextTellsOfAnotherEnd) {
  for (const char* text :
       {"RuntimeError: CUDA error: an illegal memory access was encountered\nexitcode  : -9 (pid: "
        "17)",
        "train.sh: line 3: 17 Segmentation fault (core dumped) python train.py\nKilled",
        "Watchdog caught collective operation timeout\nreturned exit code 137",
        "slurmstepd: error: *** JOB 17 CANCELLED DUE TO TIME LIMIT ***\nKilled"}) {
    EXPECT_FALSE(failure_in(text).host_memory) << text;
  }
}

// What the machine ran out of earlier is not what the card ran out of now.
TEST(HostGuess, ALaterFailureOfTheCardIsTheFailure) {
  const std::string earlier = "Last State: Terminated  Reason: OOMKilled  Exit Code: 137\n";
  for (const char* text :
       {"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuda runtime error (2) : out of memory at THCStorage.cu:58",
        "ncclUnhandledCudaError: Cuda failure 'out of memory'",
        "RuntimeError: Triton Error [CUDA]: out of memory",
        "pycuda._driver.MemoryError: cuMemAlloc failed: out of memory",
        "ValueError: No available memory for the cache blocks."}) {
    EXPECT_TRUE(failure_in(earlier).host_memory);
    EXPECT_FALSE(failure_in(earlier + text).host_memory) << text;
  }
}

TEST(HostGuess, ErrorsThatAnyMemoryMayRaise) {
  verdict(
      "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  "
      "std::bad_alloc\nAborted (core dumped)",
      HostMemory::kMachine);
  verdict("Traceback (most recent call last):\n  x = [0] * n\nMemoryError", HostMemory::kMachine);
  for (const char* text :
       {"terminate called after throwing an instance of 'thrust::system::detail::bad_alloc'\n  "
        "what():  std::bad_alloc: cudaErrorMemoryAllocation: out of memory",
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: cuda_memory_resource.hpp: "
        "cudaErrorMemoryAllocation out of memory",
        "torch.cuda.OutOfMemoryError"}) {
    EXPECT_FALSE(failure_in(text).host_memory) << text;
    EXPECT_FALSE(failure_in(text).source.empty()) << text;
  }
}

TEST(HostBad, CutAnywhereNothingCrashes) {
  const std::string text =
      "memory: usage 1kB, limit 2kB\noom-kill:constraint=CONSTRAINT_MEMCG\nMemory cgroup out of "
      "memory: Killed process 17 (python) total-vm:1kB, anon-rss:2kB\nunable to mmap 1 bytes from "
      "file <x>: Cannot allocate memory (12) Unable to allocate 139. MiB for an array with shape "
      "(1)";
  for (std::size_t from = 0; from < text.size(); from += 3) {
    for (std::size_t length = 0; from + length <= text.size(); ++length) {
      const Diagnosis d = classify(failure_in(text.substr(from, length)));
      ASSERT_TRUE(d.confidence >= 0 && d.confidence <= 1);
    }
  }
  EXPECT_EQ(size_at("139. MiB"), 139 * kMiB);
  EXPECT_EQ(size_at("139. More"), Bytes(139));
}

}  // namespace
}  // namespace nofrag
