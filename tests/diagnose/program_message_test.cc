// "Out of memory" in the words of other programs and languages: the machine's memory, whose message it is, and never a
// GPU's; and a GPU's failure beside them all the same.
#include <string>

#include <gtest/gtest.h>

#include "diagnose/classify.h"
#include "diagnose/message/text_scan.h"
#include "message_reading.h"

namespace nofrag {
namespace {

struct Case {
  const char* source;
  const char* text;
  std::optional<Bytes> requested{};
};
const Case kCases[] = {
    {"Java",
     "Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n\tat Main.main"},
    {"Java", "Caused by: java.lang.OutOfMemoryError: GC overhead limit exceeded"},
    {"Java", "java.lang.OutOfMemoryError: Metaspace"},
    {"Java", "java.lang.OutOfMemoryError: Direct buffer memory"},
    {"Java",
     "java.lang.OutOfMemoryError: Cannot reserve 8388608 bytes of direct buffer memory (allocated: "
     "4291129344, limit: 4294967296)",
     Bytes(8388608)},
    {"Java", "java.lang.OutOfMemoryError: unable to create new native thread"},
    {"Java",
     "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or "
     "process/resource limits reached"},
    {"Java", "java.lang.OutOfMemoryError: Requested array size exceeds VM limit"},
    {"Java",
     "# There is insufficient memory for the Java Runtime Environment to continue.\n# Native "
     "memory "
     "allocation (mmap) failed to map 715849728 bytes for committing reserved memory.",
     Bytes(715849728)},
    {"Java", "Terminating due to java.lang.OutOfMemoryError: Java heap space"},
    {"JavaScript",
     "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n 1: "
     "0xb090e0 "
     "node::Abort() [node]"},
    {"JavaScript",
     "FATAL ERROR: Ineffective mark-compacts near heap limit Allocation failed - JavaScript heap "
     "out "
     "of memory"},
    {"JavaScript", "FATAL ERROR: CALL_AND_RETRY_LAST Allocation failed - process out of memory"},
    {"Go", "fatal error: runtime: out of memory\n\nruntime stack:\nruntime.throw(0x6e9e2f, 0x16)"},
    {"Go",
     "runtime: out of memory: cannot allocate 4194304-byte block (1073741824 in use)\nfatal error: "
     "out of memory"},
    {"Go", "fatal error: runtime: cannot allocate memory\n\ngoroutine 1 [running]:"},
    {"Linux", "fork/exec /usr/bin/git: cannot allocate memory"},
    {"PostgreSQL",
     "ERROR:  out of memory\nDETAIL:  Failed on request of size 1073741824 in memory context "
     "\"ExecutorState\".",
     kGiB},
    {"PostgreSQL", "ERROR: out of memory DETAIL: Failed on request of size 24", Bytes(24)},
    {"PostgreSQL",
     "psycopg2.errors.OutOfMemory: out of memory\nDETAIL:  Failed on request of size 8388608.",
     8 * kMiB},
    {"PostgreSQL", "FATAL:  out of memory"},
    {"PostgreSQL", "ERROR:  invalid memory alloc request size 1073741840", Bytes(1073741840)},
    {"MySQL", "ERROR 1037 (HY001): Out of memory (Needed 1048576 bytes)", kMiB},
    {"ClickHouse",
     "Code: 241. DB::Exception: Memory limit (total) exceeded: would use 9.31 GiB (attempt to "
     "allocate chunk of 4360992 bytes), maximum: 9.31 GiB. (MEMORY_LIMIT_EXCEEDED)",
     Bytes(4360992)},
    {"DuckDB",
     "duckdb.OutOfMemoryException: Out of Memory Error: could not allocate block of size 256.0 KiB "
     "(12.4 GiB/12.4 GiB used)",
     256 * kKiB},
    {"Redis", "OOM command not allowed when used memory > 'maxmemory'."},
    {"PHP",
     "PHP Fatal error:  Allowed memory size of 134217728 bytes exhausted (tried to allocate 20480 "
     "bytes) in /srv/x.php",
     Bytes(20480)},
    {".NET", "Unhandled exception. System.OutOfMemoryException: Exception of type was thrown."},
    {"R", "Error: cannot allocate vector of size 1.5 Gb", 1536 * kMiB},
    {"Rust", "memory allocation of 68719476736 bytes failed\nAborted (core dumped)", 64 * kGiB},
    {"Julia", "ERROR: LoadError: OutOfMemoryError()"},
    {"git",
     "fatal: Out of memory, malloc failed (tried to allocate 524288001 bytes)",
     Bytes(524288001)},
    {"SQLite", "sqlite3.OperationalError: out of memory"},
    {"a compiler", "LLVM ERROR: out of memory\nAllocation failed"},
    {"a compiler", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"},
    {"a compiler", "virtual memory exhausted: Cannot allocate memory"},
    {"a compiler",
     "cc1plus: out of memory allocating 65536 bytes after a total of 3221225472 bytes",
     64 * kKiB},
    {"a compiler", "c++: fatal error: Killed signal terminated program cc1plus"},
    {"Windows",
     "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error "
     "loading \"C:\\\\x\\\\torch\\\\lib\\\\cufft64_10.dll\" or one of its dependencies."},
    {"Linux", "bash: xrealloc: cannot allocate 18446744071562067968 bytes: Cannot allocate memory"},
};

constexpr const char* kOnGpu =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 24.00 GiB of which 1.00 GiB is free. Of the allocated memory 17.00 GiB is "
    "allocated "
    "by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated.";

TEST(Programs, AreOfTheMachinesMemory) {
  for (const Case& one : kCases) {
    const Failure f = failure_in(one.text);
    EXPECT_TRUE(f.host_memory) << one.text;
    EXPECT_EQ(f.source, one.source) << one.text;
    EXPECT_EQ(f.requested, one.requested) << one.text;
    const Diagnosis d = classify(f);
    EXPECT_EQ(d.cause, Cause::kHostMemory) << one.text;
    EXPECT_FALSE(d.recoverable_by_remapping);
    EXPECT_FALSE(d.evidence.empty());
    EXPECT_TRUE(says(d.advice, "no GPU allocator changes this")) << one.text;
    EXPECT_FALSE(says(d.advice, "expandable_segments") || says(d.advice, "nofrag run")) << one.text;
  }
}

TEST(Programs, ThatFailBesideAGpuAreNotTheFailure) {
  for (const Case& one : kCases) {
    for (const std::string& text :
         {std::string(one.text) + "\n" + kOnGpu, std::string(kOnGpu) + "\n" + one.text}) {
      const Failure f = failure_in(text);
      EXPECT_FALSE(f.host_memory) << text;
      EXPECT_EQ(f.source, "PyTorch") << text;
      EXPECT_EQ(f.requested, 2 * kGiB) << text;
    }
    for (const char* device : {"RuntimeError: CUDA error: out of memory",
                               "cudaMalloc failed: out of memory ggml_gallocr_reserve_n: failed",
                               "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of "
                               "memory while trying to allocate 64 bytes."}) {
      EXPECT_FALSE(failure_in(std::string(device) + "\n" + one.text).host_memory)
          << device << one.text;
    }
  }
}

TEST(Programs, WhatALibraryForGpusThrowsIntoJavaIsAGpus) {
  for (const char* text :
       {"java.lang.OutOfMemoryError: Could not allocate native memory: std::bad_alloc: "
        "out_of_memory: RMM failure at:pool_memory_resource.hpp:196: Maximum pool size exceeded",
        "java.lang.OutOfMemoryError: CUDA error: out of memory",
        "com.nvidia.spark.rapids.jni.GpuRetryOOM: GPU OutOfMemory"}) {
    EXPECT_FALSE(failure_in(text).host_memory) << text;
    EXPECT_FALSE(failure_in(text).source.empty()) << text;
  }
}

// The same words in a line that names a GPU, or a call that concerns one.
TEST(Programs, WordsOfAGpusMessageAreNoPrograms) {
  for (const char* text :
       {"torch.cuda.OutOfMemoryError()",
        "raised torch.OutOfMemoryError() on cuda:0",
        "cupy.cuda.memory.OutOfMemoryError()",
        "CUDA error: out of memory allocating 1073741824 bytes",
        "GPU 0: out of memory allocating 2 GiB",
        "worker: out of memory allocating 64 MiB",
        "CUDA Out of Memory Error: failed to allocate 2 GiB on device 0",
        "GPU Out of Memory Error: could not allocate 512 MB buffer",
        "CUDA memory allocation of 1073741824 bytes failed",
        "GPU memory allocation of 8589934592 bytes failed: out of device memory",
        "CUDA fatal error: out of memory",
        "cuda: fatal error: out of memory (cudaMalloc 1048576)",
        "ERROR:  out of memory on GPU 0",
        "FATAL:  out of memory (cudaMalloc)",
        "HIP error: cannot allocate vector of size 3 GB",
        "hipErrorOutOfMemory: Cannot allocate memory",
        "cuMemAlloc: Cannot allocate memory",
        "failed to allocate GPU memory: Cannot allocate memory",
        "clCreateBuffer: cannot allocate memory on device",
        "nd4j: cudaMalloc failed; java.lang.OutOfMemoryError: Failed to allocate "
        "2 GB from DEVICE memory",
        "java.lang.OutOfMemoryError: Cannot allocate 123456 bytes on device 0"}) {
    EXPECT_FALSE(failure_in(text).host_memory) << text;
  }
  // What a compiler or Windows says of its own memory may name CUDA's files.
  for (const char* text :
       {"nvcc error   : 'cicc' died due to signal 9 (Kill signal) in cuda/kernels.cu",
        "OSError: [WinError 1455] The paging file is too small for this operation to complete. "
        "Error loading \"torch\\lib\\cudnn_cnn_infer64_8.dll\"",
        "relationship: cannot allocate memory",
        "gpu01 app[7]: java.lang.OutOfMemoryError: Java heap space",
        "[gpu-node-3] FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of "
        "memory",
        "open: Cannot allocate memory (No space left on device)"}) {
    EXPECT_TRUE(failure_in(text).host_memory) << text;
  }
}

TEST(Programs, SayWhatHelpsThem) {
  const auto advice = [](const char* text) { return classify(failure_in(text)).advice; };
  EXPECT_TRUE(says(advice("java.lang.OutOfMemoryError: Java heap space"), "-Xmx"));
  EXPECT_TRUE(says(advice("JavaScript heap out of memory"), "--max-old-space-size"));
  EXPECT_TRUE(says(advice("fatal error: runtime: out of memory"), "GOMEMLIMIT"));
  EXPECT_TRUE(says(advice("Failed on request of size 8"), "work_mem"));
  EXPECT_TRUE(says(classify(failure_in("runtime: out of memory: cannot allocate 4194304-byte block "
                                       "(1073741824 in use)"))
                       .evidence,
                   "it held 1.00 GiB"));
}

TEST(Programs, TheSameWordsOfSomethingElse) {
  for (const char* text :
       {"ImportError: libgomp.so.1: cannot allocate memory in static TLS block",
        "warning: failed to mlock 2147483648-byte buffer (after previously locking 0 bytes): "
        "Cannot "
        "allocate memory\nTry increasing RLIMIT_MEMLOCK",
        "java -XX:+HeapDumpOnOutOfMemoryError -XX:+ExitOnOutOfMemoryError is running",
        "memory allocation of the job: 4 GiB",
        "512 MiB of pinned memory: ok"}) {
    const Failure f = failure_in(text);
    EXPECT_FALSE(f.host_memory) << text << ", " << f.source;
  }
}

TEST(Programs, SharedMemoryOfPostgres) {
  const Failure f = failure_in(
      "ERROR:  could not resize shared memory segment \"/PostgreSQL.17\" to 8388608 bytes: No "
      "space "
      "left on device");
  EXPECT_EQ(f.host.which, HostMemory::kShared);
  EXPECT_EQ(f.requested, 8 * kMiB);
  EXPECT_NE(classify(f).advice.front().find("--shm-size"), std::string::npos);
}

// Words that anybody may have written are not taken for a GPU's without a word of doubt.
TEST(Programs, WordsOfNobodyAreSaidToBe) {
  const auto doubted = [](const char* text) {
    const Diagnosis d = classify(failure_in(text));
    EXPECT_EQ(d.cause, Cause::kUnknown) << text;
    return says(d.evidence, "nothing near these words says that it was a GPU's memory");
  };
  EXPECT_TRUE(doubted("worker 3: out of memory"));
  EXPECT_TRUE(doubted("MyError: Out of memory in parse()"));
  EXPECT_FALSE(doubted("torch.cuda.OutOfMemoryError"));
  EXPECT_FALSE(doubted("renderer: out of memory on the GPU"));
  EXPECT_FALSE(doubted("RuntimeError: CUDA error: out of memory"));
}

TEST(Programs, AWarningOfLlamaCppIsOneOfPinnedMemory) {
  const Failure f = failure_in(
      "ggml_cuda_host_malloc: failed to allocate 1900.00 MiB of pinned memory: invalid argument");
  EXPECT_EQ(f.host.which, HostMemory::kPinned);
  EXPECT_EQ(f.requested, 1900 * kMiB);
  // In the words of a GPU's failure; and its number is not that of a failure behind it.
  const std::string pinned =
      "ggml_cuda_host_malloc: failed to allocate 5120.00 MiB of pinned memory: out of memory\n";
  EXPECT_EQ(failure_in(pinned).host.which, HostMemory::kPinned);
  const Failure behind = failure_in(pinned + "CUDA error: out of memory\n");
  EXPECT_FALSE(behind.host_memory);
  EXPECT_EQ(behind.requested, std::nullopt);
}

}  // namespace
}  // namespace nofrag
