// Which words of a log tell the moment of a failure: those of its own traceback, and of lines close before it.
#include <string>

#include <gtest/gtest.h>

#include "diagnose/classify.h"
#include "message_reading.h"

namespace nofrag {
namespace {

// Some memory was freed before: by its numbers alone it is a step.
const std::string kMessage =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 24.00 GiB of which 100.00 MiB is free. Including non-PyTorch memory, this process "
    "has 23.90 GiB memory in use. Of the allocated memory 22.00 GiB is allocated by PyTorch, and "
    "1.00 GiB is reserved by PyTorch but unallocated.";

Moment moment_in(const std::string& text) {
  return failure_in(text).moment;
}

TEST(Moment, WordsFarBeforeDoNotTell) {
  std::string served = "INFO 11-02 12:00:00 GPU KV cache size: 400,000 tokens\n";
  for (int i = 0; i < 1000; ++i) {
    served += "INFO 11-02 12:00:01 served request " + std::to_string(i) + "\n";
  }
  for (const std::string& text :
       {served + kMessage,
        served +
            "INFO Engine 000: Running: 8 reqs, GPU KV cache usage: 11.0%, Prefix cache hit rate: "
            "2.0%\n" +
            kMessage,
        "INFO GPU KV cache size: 400,000 tokens\n" + kMessage,
        "INFO 11-30 10:00:10 [kv_cache_utils.py:1200] Maximum concurrency: 3.05x\n" + kMessage,
        "INFO load_weights took 3 s\nstep 1 ok\nstep 2 ok\nstep 3 ok\n" + kMessage,
        "INFO load_weights took 3 s\nstep 1 ok\n" + kMessage,
        "INFO calling load_model()\nERROR 1\nERROR 2\nERROR 3\nERROR 4\n" + kMessage}) {
    EXPECT_EQ(moment_in(text), Moment::kUnknown) << text.substr(0, 100);
    EXPECT_NE(classify(failure_in(text)).cause, Cause::kKvCacheGrowth);
    EXPECT_NE(classify(failure_in(text)).cause, Cause::kModelTooLarge);
  }
}

TEST(Moment, WordsCloseBeforeTell) {
  EXPECT_EQ(moment_in("step 1 ok\nINFO calling load_model()\n" + kMessage), Moment::kLoading);
  EXPECT_EQ(moment_in("INFO calling load_model()\nERROR the worker has failed\n\n" + kMessage),
            Moment::kLoading);
  EXPECT_EQ(moment_in("INFO calling load_model()\nERROR failed\nTraceback (most recent call "
                      "last):\n  File \"/x/a.py\", line 3, in main\n    f()\n" +
                      kMessage),
            Moment::kLoading);
}

TEST(Moment, WordsBehindDoNotTell) {
  EXPECT_EQ(moment_in(kMessage + "\nINFO pod restarted; calling load_model() again\n"),
            Moment::kUnknown);
  EXPECT_EQ(moment_in("CUDA error: out of memory\npod restarted; calling load_model() again\n"),
            Moment::kUnknown);
  const std::string ggml =
      "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8900.01 MiB on device 0: cudaMalloc "
      "failed: out of memory\n";
  EXPECT_EQ(moment_in(ggml + "INFO pod restarted; loading model, load_tensors\n"),
            Moment::kUnknown);
}

TEST(Moment, SettingsDoNotTell) {
  for (const char* line : {"Some config: {\"use_cache\": true, \"past_key_values\": null}",
                           "Some config: {'past_key_values': None, 'kv_cache_dtype': 'auto'}",
                           "engine: model=x, kv_cache_dtype=auto, load_model=True",
                           "past_key_values: null",
                           "{\\\"past_key_values\\\": null}"}) {
    EXPECT_EQ(moment_in(std::string(line) + "\n" + kMessage), Moment::kUnknown) << line;
  }
  EXPECT_EQ(moment_in("{\n  \"past_key_values\": null\n}\n" + kMessage), Moment::kUnknown);
}

TEST(Moment, ItsOwnTracebackTells) {
  std::string deep = "INFO calling load_model()\nTraceback (most recent call last):\n";
  for (int i = 0; i < 60; ++i) {
    deep += "  File \"/x/serve.py\", line " + std::to_string(i) + ", in run\n    run()\n";
  }
  EXPECT_EQ(moment_in(deep +
                      "  File \"/x/cache.py\", line 4, in update\n    self.key_cache[i] = "
                      "torch.cat(past_key_values=past_key_values)\n" +
                      kMessage),
            Moment::kKvCache);
  // Its outermost frame may be the one that tells.
  std::string outer =
      "Traceback (most recent call last):\n  File \"/x/a.py\", line 1, in forward\n";
  for (int i = 0; i < 60; ++i) {
    outer +=
        "  File \"/x/a.py\", line " + std::to_string(i) + ", in run\n    run()\n            ^\n";
  }
  EXPECT_EQ(moment_in(outer + kMessage), Moment::kStep);
  EXPECT_EQ(moment_in(outer + "torch.OutOfMemoryError: CUDA out of memory.\n" +
                      kMessage.substr(kMessage.find("Tried"))),
            Moment::kStep);
  // Behind what loggers put before each line, and in the one line of a log in JSON.
  const std::string logger = "(Worker pid=7) ERROR 11-02 12:00:00 [core.py:708] ";
  EXPECT_EQ(moment_in(logger + "Traceback (most recent call last):\n" + logger +
                      "  File \"/x/m.py\", line 4, in load_weights\n" + logger + "    read()\n" +
                      logger + "    ^^^^^^\n" + logger + "  File \"/x/m.py\", line 9, in read\n" +
                      logger + "    torch.empty(n)\n" + logger + kMessage),
            Moment::kLoading);
  EXPECT_EQ(
      moment_in("{\"level\": \"error\", \"text\": \"Traceback (most recent call last):\\n  File "
                "\\\"/x/m.py\\\", line 4, in forward\\n    x = y\\n" +
                kMessage + "\"}"),
      Moment::kStep);
  // Of another failure, which was handled.
  EXPECT_EQ(moment_in("Traceback (most recent call last):\n  File \"/x/m.py\", line 4, in "
                      "load_model\n    read()\nValueError: no such file\nstep 1 ok\n" +
                      kMessage),
            Moment::kUnknown);
  EXPECT_EQ(moment_in("Traceback (most recent call last):\n  File \"/x/m.py\", line 4, in "
                      "load_model\nValueError: no such file\n" +
                      kMessage),
            Moment::kUnknown);
}

TEST(Moment, FramesBehindTheMessageTell) {
  EXPECT_EQ(moment_in(kMessage +
                      "\nException raised from malloc at CUDACachingAllocator.cpp:1 (most recent "
                      "call first):\nframe #0: c10::Error::Error()\nframe #1: "
                      "torch::load_state_dict(Module&)\nframe #2: main\n"),
            Moment::kLoading);
  EXPECT_EQ(moment_in("CUDA error: out of memory\nllama_model_load: error loading model: x\n"),
            Moment::kLoading);
}

}  // namespace
}  // namespace nofrag
