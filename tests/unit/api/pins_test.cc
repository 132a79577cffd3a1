#include "api_fixture.h"

namespace nofrag {
namespace {

TEST_F(ApiTest, PinnedMemoryStaysUntilItIsUnpinned) {
  auto* block = static_cast<char*>(nofrag_malloc(8 * kTestMiB, 0, nullptr));
  ASSERT_NE(block, nullptr);
  ASSERT_EQ(nofrag_pin(block + 5 * kTestMiB), NOFRAG_OK);
  const std::uint64_t pinned = device_stats().pinned_bytes;
  EXPECT_GE(pinned, 8 * kTestMiB);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  EXPECT_EQ(nofrag_trim(0, 0, nullptr), NOFRAG_OK);
  EXPECT_EQ(device_stats().reserved_bytes, pinned);
  EXPECT_EQ(nofrag_unpin(block + kTestMiB), NOFRAG_OK);
  EXPECT_EQ(nofrag_trim(0, 0, nullptr), NOFRAG_OK);
  EXPECT_EQ(device_stats().reserved_bytes, 0U);
}

TEST_F(ApiTest, PinsOfWhatIsNotThere) {
  int on_stack = 0;
  void* block = nofrag_malloc(4096, 0, nullptr);
  EXPECT_EQ(nofrag_pin(nullptr), NOFRAG_UNKNOWN_POINTER);
  EXPECT_EQ(nofrag_pin(&on_stack), NOFRAG_UNKNOWN_POINTER);
  EXPECT_NE(last_message().find("not in a live block"), std::string::npos) << last_message();
  EXPECT_EQ(nofrag_unpin(block), NOFRAG_UNKNOWN_POINTER);
  EXPECT_NE(last_message().find("nothing is pinned at"), std::string::npos) << last_message();
  EXPECT_EQ(nofrag_unpin(&on_stack), NOFRAG_UNKNOWN_POINTER);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  EXPECT_EQ(nofrag_pin(block), NOFRAG_UNKNOWN_POINTER);
}

TEST_F(ApiTest, ABlockInOnePhysicalAllocation) {
  // What is free comes in many; the limit leaves no room beside it.
  ASSERT_EQ(nofrag_set_limit(0, 64 * kTestMiB), NOFRAG_OK);
  void* many = nofrag_malloc(64 * kTestMiB, 0, test_stream(1));
  EXPECT_EQ(nofrag_free(many), NOFRAG_OK);
  void* block = nofrag_malloc_single(63 * kTestMiB + 1, 0, test_stream(1));
  ASSERT_NE(block, nullptr) << last_message();
  EXPECT_EQ(device_stats().live_bytes, 63 * kTestMiB + 512);
  EXPECT_EQ(nofrag_malloc_single(2 * kTestMiB, 0, test_stream(1)), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_LIMIT);
  EXPECT_EQ(nofrag_malloc_single(0, 0, nullptr), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_OK);
  EXPECT_EQ(nofrag_malloc_single(SIZE_MAX, 0, nullptr), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_OUT_OF_MEMORY);
  EXPECT_EQ(nofrag_malloc_single(512, 77, nullptr), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

TEST_F(ApiTest, ReportsHoldWhatCouldBeComposed) {
  ASSERT_EQ(nofrag_set_limit(0, 4 * kTestMiB), NOFRAG_OK);
  void* block = nofrag_malloc(3 * kTestMiB, 0, nullptr);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(nofrag_malloc(2 * kTestMiB, 0, nullptr), nullptr);
  nofrag_oom_report report{};
  report.struct_size = sizeof report;
  ASSERT_EQ(nofrag_get_oom_report(0, &report), NOFRAG_OK);
  EXPECT_EQ(report.free_ends_bytes, kTestMiB);
  EXPECT_EQ(report.composable_bytes, kTestMiB);
  EXPECT_EQ(report.stranded_bytes, 0U);
  EXPECT_EQ(device_stats().free_ends_bytes, kTestMiB);
  EXPECT_EQ(device_stats().composable_bytes, kTestMiB);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

}  // namespace
}  // namespace nofrag
