#include <atomic>
#include <thread>
#include <vector>

#include "api_fixture.h"

namespace nofrag {
namespace {

TEST_F(ApiTest, BlockIsAlignedFoundAndFreed) {
  void* block = nofrag_malloc(1000, 0, test_stream(1));
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 512, 0U);

  nofrag_block_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(nofrag_find(static_cast<char*>(block) + 999, &info), NOFRAG_OK);
  EXPECT_EQ(info.address, block);
  EXPECT_EQ(info.size, 1024U);
  EXPECT_EQ(info.requested_size, 1000U);
  EXPECT_EQ(info.stream, test_stream(1));
  EXPECT_EQ(info.device, 0);
  EXPECT_EQ(info.pool_first, 0U);

  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  EXPECT_EQ(nofrag_find(block, &info), NOFRAG_UNKNOWN_POINTER);
}

TEST_F(ApiTest, SizeZeroIsNullAndNoError) {
  EXPECT_EQ(nofrag_malloc(1, 99, nullptr), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_malloc(0, 0, nullptr), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_OK);
  EXPECT_EQ(last_message(), "");
}

TEST_F(ApiTest, WrongDevices) {
  int count = 0;
  ASSERT_EQ(nofrag_device_count(&count), NOFRAG_OK);
  EXPECT_EQ(count, 1);
  for (const int device : {-1, 1, 63, 64, 1 << 30}) {
    EXPECT_EQ(nofrag_malloc(512, device, nullptr), nullptr);
    EXPECT_EQ(last_status(), NOFRAG_INVALID_ARGUMENT);
    EXPECT_EQ(last_message(),
              "there is no device " + std::to_string(device) + ": this process sees 1");
    EXPECT_EQ(nofrag_trim(device, 0, nullptr), NOFRAG_INVALID_ARGUMENT);
    EXPECT_EQ(nofrag_set_limit(device, 1), NOFRAG_INVALID_ARGUMENT);
    EXPECT_EQ(nofrag_check(device), NOFRAG_INVALID_ARGUMENT);
  }
}

TEST_F(ApiTest, PointersThatAreNotBlocks) {
  int on_stack = 0;
  void* block = nofrag_malloc(4096, 0, nullptr);
  EXPECT_EQ(nofrag_free(nullptr), NOFRAG_OK);
  EXPECT_EQ(nofrag_free(&on_stack), NOFRAG_UNKNOWN_POINTER);
  EXPECT_EQ(nofrag_free(static_cast<char*>(block) + 512), NOFRAG_UNKNOWN_POINTER);
  EXPECT_EQ(nofrag_free(reinterpret_cast<void*>(1)), NOFRAG_UNKNOWN_POINTER);
  EXPECT_EQ(nofrag_free(reinterpret_cast<void*>(UINTPTR_MAX)), NOFRAG_UNKNOWN_POINTER);
  EXPECT_EQ(nofrag_record_stream(&on_stack, test_stream(2)), NOFRAG_UNKNOWN_POINTER);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  EXPECT_EQ(nofrag_free(block), NOFRAG_UNKNOWN_POINTER);
  EXPECT_NE(last_message().find("not in a live block"), std::string::npos);
  EXPECT_EQ(nofrag_record_stream(block, test_stream(2)), NOFRAG_UNKNOWN_POINTER);
}

// Small blocks are kept by the thread that frees them, large ones go back to the heap; neither is freed twice,
// whoever tries.
TEST_F(ApiTest, AThreadThatFreesWhatAnotherHasFreedIsRefused) {
  for (const std::size_t size :
       {std::size_t{512}, std::size_t{5000}, 3 * kTestMiB, 80 * kTestMiB}) {
    for (int round = 0; round < 50; ++round) {
      void* const block = nofrag_malloc(size, 0, test_stream(1));
      ASSERT_NE(block, nullptr);
      const bool there = round % 2 == 0;
      const auto first = [&] { EXPECT_EQ(nofrag_free(block), NOFRAG_OK); };
      const auto second = [&] { EXPECT_EQ(nofrag_free(block), NOFRAG_UNKNOWN_POINTER); };
      there ? std::thread(first).join() : first();
      there ? second() : std::thread(second).join();
    }
  }
}

TEST_F(ApiTest, BlockUsedOnAnotherStreamIsPendingAfterItsFree) {
  void* block = nofrag_malloc(kTestMiB, 0, test_stream(1));
  // Any address inside the block will do.
  ASSERT_EQ(nofrag_record_stream(static_cast<char*>(block) + 700, test_stream(2)), NOFRAG_OK);
  ASSERT_EQ(nofrag_free(block), NOFRAG_OK);
  EXPECT_EQ(device_stats().pending_bytes, kTestMiB);
  // The other stream's work may still run: its bytes must not be handed out.
  void* next = nofrag_malloc(kTestMiB, 0, test_stream(1));
  EXPECT_NE(next, block);
  EXPECT_EQ(nofrag_free(next), NOFRAG_OK);
}

TEST_F(ApiTest, RetiredStreamIsAskedForNothingMore) {
  void* block = nofrag_malloc(kTestMiB, 0, test_stream(7));
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(nofrag_retire_stream(0, test_stream(7)), NOFRAG_OK);
  // Destroyed here. The block outlives its stream.
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  EXPECT_EQ(nofrag_trim(0, 0, nullptr), NOFRAG_OK);
  EXPECT_EQ(device_stats().reserved_bytes, device_stats().mapped_in_use_bytes);
  EXPECT_EQ(nofrag_retire_stream(99, test_stream(7)), NOFRAG_INVALID_ARGUMENT);
}

TEST_F(ApiTest, HugeSizesFailCleanly) {
  for (const std::size_t size : {SIZE_MAX,
                                 SIZE_MAX - 511,
                                 std::size_t{1} << 62,
                                 (std::size_t{1} << 60) + 1,
                                 std::size_t{1} << 50}) {
    EXPECT_EQ(nofrag_malloc(size, 0, nullptr), nullptr) << size;
    EXPECT_EQ(last_status(), NOFRAG_OUT_OF_MEMORY) << size;
    EXPECT_FALSE(last_message().empty());
  }
}

TEST_F(ApiTest, LastErrorIsPerThread) {
  EXPECT_EQ(nofrag_free(reinterpret_cast<void*>(0x1000)), NOFRAG_UNKNOWN_POINTER);
  std::thread([] { EXPECT_EQ(last_status(), NOFRAG_OK); }).join();
  EXPECT_EQ(last_status(), NOFRAG_UNKNOWN_POINTER);
}

TEST_F(ApiTest, ManyThreads) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 300;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &failures] {
      void* stream = test_stream(static_cast<std::uintptr_t>(t) + 1);
      std::vector<void*> held;
      for (int i = 0; i < kRounds; ++i) {
        const auto step = static_cast<std::size_t>((i * 7919 + t * 104729) % 5000 + 1);
        void* block = nofrag_malloc(step * 512, 0, stream);
        failures += block == nullptr ? 1 : 0;
        held.push_back(block);
        if (held.size() > 16) {
          failures += nofrag_free(held.front()) == NOFRAG_OK ? 0 : 1;
          held.erase(held.begin());
        }
        if (i % 50 == 0) {
          device_stats();
        }
      }
      for (void* block : held) {
        failures += nofrag_free(block) == NOFRAG_OK ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(failures.load(), 0);
}

}  // namespace
}  // namespace nofrag
