// Each framework's wording, word for word as people have posted it, and what is read from it.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "diagnose/classify.h"
#include "diagnose/message/text_scan.h"
#include "diagnose/report.h"
#include "message_reading.h"

namespace nofrag {
namespace {

Bytes gib(double value) {
  return Bytes(static_cast<std::uint64_t>(std::llround(value * 1073741824.0)));
}
Bytes mib(double value) {
  return Bytes(static_cast<std::uint64_t>(std::llround(value * 1048576.0)));
}
TEST(Size, UnitsSeparatorsAndNonsense) {
  EXPECT_EQ(size_at(" 20.00 MiB"), mib(20));
  EXPECT_EQ(size_at("1,073,741,824 bytes"), gib(1));
  EXPECT_EQ(size_at("1.5GiB"), gib(1.5));
  EXPECT_EQ(size_at("279356.51 MiB on device"), mib(279356.51));
  EXPECT_EQ(size_at("17."), Bytes(17));
  EXPECT_EQ(size_at("MiB"), std::nullopt);
  EXPECT_EQ(size_at(""), std::nullopt);
  EXPECT_EQ(size_at("99999999999999999999999999999999999 GiB"), std::nullopt);
  EXPECT_EQ(size_before("of 6.00 GiB of which 0 bytes is free", "is free"), Bytes(0));
  EXPECT_EQ(size_before("free", "free"), std::nullopt);
}

// Programs print the decimal sign of the language that they run in.
TEST(Size, ADecimalCommaIsOneWhereItCanBeNothingElse) {
  EXPECT_EQ(size_at("1,00 GiB"), gib(1));
  EXPECT_EQ(size_at("79,18GiB"), gib(79.18));
  EXPECT_EQ(size_at("1900,00 MiB of pinned memory"), mib(1900));
  EXPECT_EQ(size_at("0,5 GiB"), gib(0.5));
  EXPECT_EQ(size_at("0,500 GiB"), gib(0.5));
  EXPECT_EQ(size_at("6,000000GB"), gib(6));
  EXPECT_EQ(size_at("1.024,50 MiB"), mib(1024.5));
  EXPECT_EQ(size_at("1.073.741.824 bytes"), gib(1));
  // Between thousands, as before.
  EXPECT_EQ(size_at("1,024 MiB"), gib(1));
  EXPECT_EQ(size_at("1,024.50 MiB"), mib(1024.5));
  EXPECT_EQ(size_at("1,073,741,824"), gib(1));
  // Of several numbers the first.
  EXPECT_EQ(size_at("17, 18 bytes"), Bytes(17));
  EXPECT_EQ(size_at("1.5,300 GiB"), Bytes(2));
  EXPECT_EQ(size_at(",5 GiB"), std::nullopt);
  EXPECT_EQ(size_at(".5 GiB"), gib(0.5));
  EXPECT_EQ(ambiguous_size("free: 1,073 GiB, held: 2"), "1,073 GiB");
  for (const char* text :
       {"1,073 MiB", "1,073,741 GiB", "1,07 GiB", "1,073.5 GiB", "0,073 GiB", ","}) {
    EXPECT_EQ(ambiguous_size(text), "") << text;
  }
}

TEST(Size, BlanksBetweenThousandsAndForeignUnits) {
  EXPECT_EQ(size_at("1 024,00 MiB"), gib(1));
  EXPECT_EQ(size_at("80 000 000 000 bytes"), Bytes(80'000'000'000));
  EXPECT_EQ(size_at("1'024.00 MiB"), gib(1));
  EXPECT_EQ(size_at("17 100"), Bytes(17)) << "two numbers";
  EXPECT_EQ(size_at("2 1024 MiB"), Bytes(2));
  EXPECT_EQ(size_at("1.50 PiB"), Bytes(std::uint64_t{3} << 49));
  EXPECT_EQ(size_at("1,5 Go"), gib(1.5));
  EXPECT_EQ(size_at("1.00 GiX"), std::nullopt) << "of bytes there is no fraction";
  // As pages write it, which are pasted from.
  const Failure f = failure_in(plain_text(
      "CUDA out of memory. Tried to allocate 1.00\xc2\xa0GiB. GPU 0 has a total capacity of "
      "1\xe2\x80\xaf"
      "024,00 MiB of which 512.00 MiB is free."));
  EXPECT_EQ(f.requested, gib(1));
  EXPECT_EQ(f.capacity, gib(1));
}

TEST(Size, AMessageInAnotherLanguage) {
  const Failure f = failure_in(
      "CUDA out of memory. Tried to allocate 1,00 GiB. GPU 0 has a total capacity of 79,18 GiB of "
      "which 512,00 MiB is free. Of the allocated memory 50,10 GiB is allocated by PyTorch, and "
      "27,20 "
      "GiB is reserved by PyTorch but unallocated.");
  EXPECT_EQ(f.requested, gib(1));
  EXPECT_EQ(f.capacity, gib(79.18));
  EXPECT_EQ(f.driver_free, mib(512));
  EXPECT_EQ(f.live, gib(50.1));
  EXPECT_EQ(f.cached, gib(27.2));
  const Diagnosis d = classify(failure_in(
      "CUDA out of memory. Tried to allocate 1,073 GiB. GPU 0 has a total capacity of 79.18 GiB of "
      "which 512.00 MiB is free."));
  EXPECT_EQ(d.cause, Cause::kUnknown);
  EXPECT_TRUE(std::any_of(d.evidence.begin(), d.evidence.end(), [](const std::string& line) {
    return line.find("read in two ways: 1,073 GiB") != std::string::npos;
  }));
}

TEST(LastOf, IsWhereItStandsLast) {
  std::mt19937 random(3);
  const auto letters = [&random](std::size_t size) {
    std::string text(size, 'a');
    for (char& letter : text) {
      letter = static_cast<char>('a' + random() % 2);
    }
    return text;
  };
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = letters(random() % 12);
    const std::string phrase = letters(random() % 5);
    EXPECT_EQ(last_of(text, phrase), text.rfind(phrase)) << text << ", " << phrase;
  }
}

// It goes through a text in pieces of 4,096 bytes, and by one letter of the phrase.
TEST(LastOf, AcrossPieces) {
  for (const std::string phrase : {"OOM", "out of memory", "x", "aXa", "aaX", "Xaa"}) {
    for (std::size_t behind = 0; behind < 4100; behind += behind < 30 || behind > 4070 ? 1 : 101) {
      const std::string end(behind, 'a');
      const std::string text = phrase + std::string(5000, 'a') + phrase + end;
      EXPECT_EQ(last_of(text, phrase), text.rfind(phrase)) << phrase << ", " << behind;
      const std::string once = phrase + std::string(4060, 'a') + end;
      EXPECT_EQ(last_of(once, phrase), once.rfind(phrase)) << phrase << ", " << behind;
      EXPECT_EQ(last_of(end, phrase), end.rfind(phrase)) << phrase << ", " << behind;
    }
  }
}

TEST(Torch, OneToThree) {
  const Failure f = failure_in(
      "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total "
      "capacity; 8.57 MiB "
      "already allocated; 9.28 GiB free; 4.68 MiB cached)");
  EXPECT_EQ(f.source, "PyTorch");
  EXPECT_EQ(f.requested, mib(12.5));
  EXPECT_EQ(f.capacity, gib(10.92));
  EXPECT_EQ(f.live, mib(8.57));
  EXPECT_EQ(f.driver_free, gib(9.28));
  EXPECT_EQ(f.cached, mib(4.68));
}

TEST(Torch, FourToTwenty) {
  const Failure f = failure_in(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.63 GiB (GPU 0; 44.56 "
      "GiB total capacity; "
      "27.91 GiB already allocated; 565.31 MiB free; 27.93 GiB reserved in total by PyTorch) If "
      "reserved memory is >> "
      "allocated memory try setting max_split_size_mb to avoid fragmentation.");
  EXPECT_EQ(f.cached, gib(27.93) - gib(27.91));
  EXPECT_EQ(f.driver_free, mib(565.31));
  const Failure limited = failure_in(
      "CUDA out of memory. Tried to allocate 200.00 MiB (GPU 0; 12.20 GiB total capacity; 4.60 GiB "
      "already allocated; "
      "7.00 GiB free; 4.77 GiB allowed; 4.74 GiB reserved in total by PyTorch)");
  EXPECT_EQ(limited.limit, gib(4.77));
  EXPECT_TRUE(limited.limit_reached);
  const Diagnosis d = classify(limited);
  EXPECT_NE(d.cause, Cause::kRefusedBelow) << "its own limit refused it";
  ASSERT_FALSE(d.advice.empty());
  EXPECT_NE(d.advice.front().find("raise the limit of 4.77 GiB"), std::string::npos)
      << d.advice.front();
}

TEST(Torch, TwoPointOneAndNewer) {
  const Failure f = failure_in(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total "
      "capacity of 31.47 GiB "
      "of which 12.73 GiB is free. Process 4242 has 1.50 GiB memory in use. Process 17 has 512.00 "
      "MiB memory in use. "
      "Including non-PyTorch memory, this process has 18.73 GiB memory in use. Of the allocated "
      "memory 9.08 GiB is "
      "allocated by PyTorch, with 42.00 MiB allocated in private pools (e.g., CUDA Graphs), and "
      "9.35 GiB is reserved by "
      "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.");
  EXPECT_EQ(f.requested, gib(22.78));
  EXPECT_EQ(f.live, gib(9.08));
  EXPECT_EQ(f.cached, gib(9.35));
  EXPECT_EQ(f.process_in_use, gib(18.73));
  EXPECT_EQ(f.others, gib(2.0));
  EXPECT_EQ(f.other_processes, 2U);
  EXPECT_EQ(f.private_pools, mib(42));
  EXPECT_FALSE(f.expandable_segments) << "that is PyTorch's hint, not the user's setting";
}

TEST(Torch, BrokenIntoLinesAnywhere) {
  const Failure f = failure_in(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to\n    allocate 1.00 GiB. GPU 0 has a "
      "total "
      "capacity of 79.18 GiB of\nwhich 512.00 MiB is free. Of the allocated memory 50.10 GiB is\r\n"
      "  allocated by PyTorch, and 27.20 GiB is reserved by\n\tPyTorch but unallocated.");
  EXPECT_EQ(f.requested, gib(1));
  EXPECT_EQ(f.driver_free, mib(512));
  EXPECT_EQ(f.live, gib(50.10));
  EXPECT_EQ(f.cached, gib(27.20));
}

TEST(Torch, WhatIsOnIsNotAdvised) {
  const std::string message =
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of "
      "which 1.00 GiB is "
      "free. Of the allocated memory 17.00 GiB is allocated by PyTorch, and 5.00 GiB is reserved "
      "by PyTorch but "
      "unallocated. If reserved but unallocated memory is large try setting "
      "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";
  const auto advises = [](const std::string& text) {
    for (const std::string& advice : classify(failure_in(text)).advice) {
      if (advice.find("expandable_segments") != std::string::npos) {
        return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(advises(message));
  EXPECT_FALSE(
      advises("$ PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py\n" + message));
  // Whoever hints at it, in one line or two, has not set it.
  const std::string cut = message.substr(0, message.find(" If reserved"));
  for (const char* hint :
       {"\nIf reserved but unallocated memory is large try\nsetting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        "\nIf it is large try setting\nPYTORCH_ALLOC_CONF=expandable_segments:True to avoid it.",
        "\nIf it is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True\nto avoid it.",
        "\nConsider PYTORCH_ALLOC_CONF=expandable_segments:True",
        "\nConsider\n  PYTORCH_ALLOC_CONF=expandable_segments:True",
        "\nConsider the setting of\nPYTORCH_ALLOC_CONF=expandable_segments:True,backend:native",
        "\nSet PYTORCH_ALLOC_CONF=expandable_segments:True to reduce it",
        "\n`PYTORCH_ALLOC_CONF=expandable_segments:True` may reduce it",
        "\nHint: `export PYTORCH_ALLOC_CONF=expandable_segments:True`",
        "\nmaybe PYTORCH_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True is better"}) {
    EXPECT_TRUE(advises(cut + hint)) << hint;
  }
  for (const char* set :
       {"+ export PYTORCH_CUDA_ALLOC_CONF=backend:native,expandable_segments:True\n",
        "user@host:~/x$ CUDA_VISIBLE_DEVICES=0 PYTORCH_ALLOC_CONF=expandable_segments:True python "
        "a.py\n",
        "docker run --gpus all -e PYTORCH_ALLOC_CONF=expandable_segments:True image\n",
        "environ({'HOME': '/', 'PYTORCH_ALLOC_CONF': 'expandable_segments:True'})\n",
        "os.environ[\"PYTORCH_ALLOC_CONF\"] = \"expandable_segments:True\"\n",
        "INFO 12:00:01 PYTORCH_ALLOC_CONF=expandable_segments:True\n"}) {
    EXPECT_FALSE(advises(set + message)) << set;
  }
}

TEST(Torch, AsyncBackendMpsAndOld) {
  const Failure async = failure_in(
      "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of "
      "memory)\n"
      "Currently allocated     : 54.14 GiB\nRequested               : 686.41 MiB\nDevice limit     "
      "       : 79.35 GiB\n"
      "Free (according to CUDA): 27.19 MiB\nPyTorch limit (set by user-supplied memory fraction)\n"
      "                        : 17179869184.00 GiB");
  EXPECT_EQ(async.live, gib(54.14));
  EXPECT_EQ(async.requested, mib(686.41));
  EXPECT_EQ(async.cached, std::nullopt);
  EXPECT_EQ(async.limit, std::nullopt);
  const Failure mps = failure_in(
      "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 "
      "GB, max allowed: 9.07 "
      "GB). Tried to allocate 256.00 MB on private pool.");
  EXPECT_EQ(mps.requested, mib(256));
  EXPECT_TRUE(mps.limit_reached);
  const Failure old =
      failure_in("RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58");
  EXPECT_EQ(old.requested, std::nullopt);
  EXPECT_EQ(classify(old).cause, Cause::kUnknown);
}

// The driver had the memory, and PyTorch's own limit refused it.
TEST(Torch, AsyncBackendAndItsLimit) {
  const auto table = [](const std::string& prefix, const std::string& live) {
    return prefix +
           "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of "
           "memory)\n" +
           prefix + "Currently allocated     : " + live + "\n" + prefix +
           "Requested               : 2.00 GiB\n" + prefix +
           "Device limit            : 23.99 GiB\n" + prefix +
           "Free (according to CUDA): 11.00 GiB\n" + prefix +
           "PyTorch limit (set by user-supplied memory fraction)\n" + prefix +
           "                        : 12.00 GiB\n";
  };
  for (const char* const prefix : {"",
                                   "[rank0]: ",
                                   "2026-01-02 12:00:05 ",
                                   "2026-01-02T12:00:05.123Z [rank1]: ",
                                   "(worker pid=4242, ip=10.0.0.7) "}) {
    const Failure f = failure_in(table(prefix, "10.50 GiB"));
    EXPECT_EQ(f.live, gib(10.5)) << prefix;
    EXPECT_EQ(f.requested, gib(2)) << prefix;
    EXPECT_EQ(f.driver_free, gib(11)) << prefix;
    EXPECT_EQ(f.limit, gib(12)) << prefix;
    EXPECT_TRUE(f.limit_reached) << prefix;
    const Diagnosis d = classify(f);
    EXPECT_EQ(d.cause, Cause::kLimit) << prefix;
    EXPECT_TRUE(says(d.advice, "raise the limit of 12.00 GiB")) << prefix;
    EXPECT_TRUE(says(d.evidence, "the 10.50 GiB that are allocated would exceed its limit"));
    // Below its limit it was not PyTorch that refused it.
    const Failure below = failure_in(table(prefix, "9.50 GiB"));
    EXPECT_EQ(below.limit, gib(12)) << prefix;
    EXPECT_FALSE(below.limit_reached) << prefix;
    EXPECT_EQ(classify(below).cause, Cause::kRefusedBelow) << prefix;
  }
  // Cut before the limit, and with another program's line in its place.
  const std::string whole = table("", "10.50 GiB");
  const std::string cut = whole.substr(0, whole.find("   : 12.00"));
  EXPECT_EQ(failure_in(cut).limit, std::nullopt);
  EXPECT_EQ(failure_in(cut + "\n12:00:05 step: 7\nheld: 9.00 GiB").limit, std::nullopt);
}

TEST(Others, CuPyRmmOnnx) {
  const Failure cupy = failure_in(
      "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 805,306,368 bytes (allocated so "
      "far: 536,870,912 "
      "bytes, limit set to: 1,073,741,824 bytes).");
  EXPECT_EQ(cupy.source, "CuPy");
  EXPECT_EQ(cupy.requested, mib(768));
  EXPECT_EQ(cupy.limit, gib(1));
  const Diagnosis refused = classify(cupy);
  EXPECT_EQ(refused.cause, Cause::kLimit);
  EXPECT_TRUE(says(refused.evidence, "what the driver had free is not said"));
  ASSERT_FALSE(refused.advice.empty());
  EXPECT_NE(refused.advice[0].find("raise the limit of 1.00 GiB, if"), std::string::npos)
      << refused.advice[0];
  EXPECT_EQ(
      failure_in(
          "OutOfMemoryError: out of memory to allocate 1073741824 bytes (total 12373894656 bytes)")
          .requested,
      gib(1));
  const Failure rmm = failure_in(
      "MemoryError: std::bad_alloc: out_of_memory: RMM failure "
      "at:/include/rmm/mr/device/pool_memory_resource.hpp:257: "
      "Maximum pool size exceeded (failed to allocate 1.500000 GiB): Not enough room to grow, "
      "current/max/try size = "
      "4.000000 GiB, 5.000000 GiB, 1.500000 GiB");
  EXPECT_EQ(rmm.source, "RMM");
  EXPECT_EQ(rmm.requested, gib(1.5));
  EXPECT_EQ(rmm.limit, gib(5));
  const Failure onnx = failure_in(
      "bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to "
      "allocate memory for "
      "requested buffer of size 2830172160");
  EXPECT_EQ(onnx.source, "ONNX Runtime");
  EXPECT_EQ(onnx.requested, Bytes(2830172160));
  const Failure arena =
      failure_in("Available memory of 1342177280 is smaller than requested bytes of 2147483648");
  EXPECT_EQ(arena.driver_free, Bytes(1342177280));
  EXPECT_EQ(arena.requested, gib(2));
}

TEST(Others, JaxAndLlama) {
  const Failure jax = failure_in(
      "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
      "allocate 4770354232 "
      "bytes.\nBufferAssignment stats:\n parameter allocation:  372.76MiB");
  EXPECT_EQ(jax.source, "JAX");
  EXPECT_EQ(jax.requested, Bytes(4770354232));
  const Failure bfc = failure_in(
      "W external/bfc_allocator.cc:479] Allocator (GPU_0_bfc) ran out of memory trying to allocate "
      "1.50GiB (rounded to "
      "1610612736)requested by op \nStats: \nLimit:                     16106127360\nInUse:        "
      "             "
      "12884901888\nMaxInUse:                  13958643712\nLargestFreeBlock:          1073741824");
  EXPECT_EQ(bfc.requested, gib(1.5));
  EXPECT_EQ(bfc.capacity, gib(15));
  EXPECT_EQ(bfc.live, gib(12));
  EXPECT_EQ(classify(bfc).cause, Cause::kFragmentation);
  const Failure kv = failure_in(
      "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 204800.00 MiB on device 0: "
      "cudaMalloc failed: out of "
      "memory\nllama_kv_cache_init: failed to allocate buffer for kv cache");
  EXPECT_EQ(kv.requested, mib(204800));
  EXPECT_EQ(classify(kv).cause, Cause::kKvCacheGrowth);
  EXPECT_EQ(
      classify(
          failure_in(
              "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8900.01 MiB on device 0: "
              "cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 "
              "buffer"))
          .cause,
      Cause::kBatchTooLarge);
  EXPECT_EQ(
      classify(
          failure_in(
              "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8900.01 MiB on device 0: "
              "cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to "
              "allocate CUDA0 buffer"))
          .cause,
      Cause::kModelTooLarge);
}

TEST(Nofrag, OwnMessageAndVerdict) {
  const OomMessage message = read_oom_message(
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.19 GiB of "
      "which 75.19 GiB is free. "
      "out of memory on device 0: tried to allocate 2.00 GiB. The limit of 4.00 GiB is reached. "
      "nofrag holds 3.99 GiB from "
      "the driver: 3.50 GiB live, 1.00 MiB waiting for streams, 256.00 MiB free in whole handles, "
      "up to 4.00 MiB more at "
      "the ends of used ones, 12.00 MiB in the middle of used ones, out of reach. The driver has "
      "75.19 GiB of 79.19 GiB "
      "free.\ncause: leak (85 %): a leak\nwhy: it grew\ndo: look");
  EXPECT_EQ(message.failure.source, "nofrag");
  EXPECT_EQ(message.failure.requested, gib(2));
  EXPECT_EQ(message.failure.limit, gib(4));
  EXPECT_EQ(message.failure.live, gib(3.5));
  EXPECT_EQ(message.failure.reachable, mib(260));
  EXPECT_EQ(message.failure.capacity, gib(79.19));
  ASSERT_EQ(message.said_cause, Cause::kLeak);
  EXPECT_NEAR(message.said_confidence, 0.85, 1e-9);
}

TEST(Host, TheKernelsKillerIsNoGpu) {
  const std::string dmesg =
      "[1234.5] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
      "[1234.6] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python,pid=4242,uid=1000\n"
      "[1234.6] Out of memory: Killed process 4242 (python) total-vm:131072000kB, "
      "anon-rss:126976000kB, file-rss:4kB, shmem-rss:0kB, UID:1000 pgtables:248000kB "
      "oom_score_adj:0";
  for (const std::string& text :
       {dmesg,
        std::string("Out of memory: Kill process 17 (python) score 900 or sacrifice child"),
        std::string("Memory cgroup out of memory: Killed process 17 (python) total-vm:1kB"),
        std::string("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0"),
        std::string("    Reason:       OOMKilled\n    Exit Code:    137"),
        std::string("RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: "
                    "can't allocate memory: you tried to allocate 4294967296 bytes.")}) {
    const Failure f = failure_in(text);
    EXPECT_TRUE(f.host_memory) << text;
    const Diagnosis d = classify(f);
    EXPECT_EQ(d.cause, Cause::kHostMemory) << text;
    ASSERT_FALSE(d.advice.empty());
    EXPECT_NE(d.advice.front().find("data loader"), std::string::npos);
  }
  // The later message is the failure.
  const std::string device =
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of "
      "which 1.00 GiB is free. Of the allocated memory 17.00 GiB is allocated by PyTorch, and 5.00 "
      "GiB is reserved by PyTorch but unallocated.";
  EXPECT_FALSE(failure_in(dmesg + "\n" + device).host_memory);
  EXPECT_TRUE(failure_in(device + "\n" + dmesg).host_memory);
}

TEST(Impossible, SizesBelowZeroAreNamed) {
  const auto diagnosis = [](const std::string& free) {
    return classify(
        failure_in("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                   "24.00 GiB of which " +
                   free +
                   " is free. Of the allocated memory 17.00 GiB is allocated by PyTorch, and 5.00 "
                   "GiB is reserved by PyTorch but unallocated."));
  };
  EXPECT_EQ(diagnosis("1.00 GiB").cause, Cause::kFragmentation);
  const Diagnosis d = diagnosis("-1.00 GiB");
  EXPECT_EQ(d.cause, Cause::kUnknown);
  EXPECT_NE(d.evidence.front().find("below zero: -1.00 GiB"), std::string::npos);
  EXPECT_EQ(diagnosis("25.00 GiB").cause, Cause::kUnknown);
  EXPECT_EQ(negative_size("2024-01-01 a-5 GiB -7 of -x"), "");
  EXPECT_EQ(negative_size("free: -512.00 MiB left"), "-512.00 MiB");
}

TEST(PlainText, EncodingsAndColours) {
  const std::string text = "CUDA out of memory. Tried to allocate 20.00 MiB";
  std::string little = "\xff\xfe";
  std::string big = "\xfe\xff";
  std::string bare;
  for (const char c : text) {
    little += {c, '\0'};
    big += {'\0', c};
    bare += {c, '\0'};
  }
  for (const std::string& bytes : {little, big, bare, text, "\x1b[31m" + text + "\x1b[0m"}) {
    EXPECT_EQ(failure_in(plain_text(bytes)).requested, mib(20)) << bytes.substr(0, 8);
  }
}

TEST(Bad, NoTextWhateverCrashesOrIsTakenForAVerdict) {
  const std::string whole =
      "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB of "
      "which 0 bytes is free. Of "
      "the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by PyTorch "
      "but unallocated.";
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    const Diagnosis d = classify(failure_in(whole.substr(0, length)));
    if (length < whole.find("2.30 GiB is")) {
      EXPECT_NE(d.cause, Cause::kFragmentation) << whole.substr(0, length);
    }
  }
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    std::string bytes = seed % 2 == 0 ? whole : std::string(random() % 3000, ' ');
    for (std::size_t i = 0; i < bytes.size() / (seed % 2 == 0 ? 10 : 1); ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const Diagnosis d = classify(read_oom_message(plain_text(bytes)).failure);
    EXPECT_TRUE(d.confidence >= 0 && d.confidence <= 1) << seed;
  }
}

std::string torch_message(const std::string& process, const std::string& in_use) {
  return "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 39.38 GiB "
         "of which 8.00 MiB is free. " +
         process + "Including non-PyTorch memory, this process has " + in_use +
         " memory in use. Of the allocated memory 17.80 GiB is allocated by PyTorch, and 80.00 MiB "
         "is reserved by PyTorch but unallocated.";
}

TEST(Holders, AProcessWithMuchOfTheCardIsNamedWhateverTheCause) {
  const Failure f =
      failure_in(torch_message("Process 1234 has 20.11 GiB memory in use. ", "18.90 GiB"));
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kFragmentation);
  EXPECT_TRUE(says(d.evidence, "process 1234 holds 20.11 GiB of the card's 39.38 GiB"));
  EXPECT_TRUE(says(d.advice, "process 1234"));
  EXPECT_FALSE(says(d.evidence, "beside what this allocator"));
  ASSERT_LT(d.confidence, 0.5);
  const std::string page = full_report(f, d, {});
  EXPECT_EQ(page.find("would have served"), std::string::npos) << page;
  EXPECT_NE(page.find("might have served it"), std::string::npos) << page;
  const Failure odd =
      failure_in(torch_message("Process <b>x</b> has 20.11 GiB memory in use. ", "18.90 GiB"));
  EXPECT_TRUE(says(classify(odd).evidence, "another process holds 20.11 GiB"));
  const Diagnosis small =
      classify(failure_in(torch_message("Process 1234 has 300.00 MiB memory in use. ", "38 GiB")));
  EXPECT_FALSE(says(small.evidence, "process 1234"));
}

TEST(Holders, MemoryOfTheProcessOutsideItsAllocatorIsSaid) {
  const Diagnosis d = classify(failure_in(torch_message("", "38.90 GiB")));
  EXPECT_TRUE(says(d.evidence, "the process holds 21.02 GiB beside what this allocator"));
  EXPECT_TRUE(says(d.evidence, "about 1 GiB is normal"));
  EXPECT_FALSE(says(classify(failure_in(torch_message("", "18.90 GiB"))).evidence, "beside what"));
}

TEST(CuPy, WhatItHasAllocatedSoFar) {
  const Failure f = failure_in(
      "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated "
      "so far: 4,294,967,296 bytes).");
  EXPECT_EQ(f.source, "CuPy");
  EXPECT_EQ(f.requested, gib(8));
  EXPECT_EQ(f.live, gib(4));
}

TEST(Vllm, ACacheThatIsTooSmall) {
  const Failure newer = failure_in(
      "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 "
      "GiB "
      "KV cache is needed, which is larger than the available KV cache memory (7.50 GiB). Try "
      "increasing `gpu_memory_utilization` or decreasing `max_model_len`.");
  EXPECT_EQ(newer.source, "vLLM");
  EXPECT_EQ(newer.requested, gib(16));
  EXPECT_EQ(newer.limit, gib(7.5));
  EXPECT_EQ(classify(newer).cause, Cause::kKvCacheGrowth);
  const Failure older = failure_in(
      "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens "
      "that "
      "can be stored in KV cache (4144). Try increasing `gpu_memory_utilization` or decreasing "
      "`max_model_len` when initializing the engine.");
  EXPECT_EQ(older.source, "vLLM");
  EXPECT_EQ(classify(older).cause, Cause::kKvCacheGrowth);
}

TEST(Vllm, AShareOfTheCardThatIsNotFree) {
  for (const char* device : {"device", "device cuda:0"}) {
    const Failure f = failure_in(
        "ValueError: Free memory on " + std::string(device) +
        " (20.1/79.18 GiB) on startup is less than desired GPU memory utilization (0.9, 71.26 GiB)."
        " Decrease GPU memory utilization or reduce GPU memory used by other processes.");
    EXPECT_EQ(f.source, "vLLM");
    EXPECT_EQ(f.driver_free, gib(20.1));
    EXPECT_EQ(f.capacity, gib(79.18));
    EXPECT_EQ(f.requested, gib(71.26));
    const Diagnosis d = classify(f);
    EXPECT_EQ(d.cause, Cause::kOtherProcess);
    ASSERT_FALSE(d.advice.empty());
    EXPECT_NE(d.advice.front().find("--gpu-memory-utilization 0.25"), std::string::npos)
        << d.advice.front();
  }
  EXPECT_EQ(failure_in("Free memory on device (1/").source, "");
  const Diagnosis tiny = classify(
      failure_in("Free memory on device (1/50 B) on startup is less than desired GPU memory "
                 "utilization (0.9, 45 B)."));
  EXPECT_NE(tiny.advice.front().find("0.02 or less"), std::string::npos) << tiny.advice.front();
}

TEST(Unknown, IsToldHowToRecord) {
  EXPECT_TRUE(says(classify(failure_in("out of memory")).advice, "docs/recording.md"));
}

}  // namespace
}  // namespace nofrag
