#include "torch_plugin/hooks.h"

#include <gtest/gtest.h>

namespace nofrag {
namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

nofrag_device_stats stats() {
  nofrag_device_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(nofrag_get_stats(0, &stats), NOFRAG_OK);
  return stats;
}

TEST(TorchHooks, SizeZeroIsNull) {
  nofrag_torch_init(1);
  EXPECT_EQ(nofrag_torch_alloc(0, 0, nullptr), nullptr);
  nofrag_torch_free(nullptr, 0, 0, nullptr);
}

TEST(TorchHooks, ConfigureComesBeforeTheStart) {
  EXPECT_EQ(nofrag_torch_configure(nullptr, 0, nullptr, 0, nullptr), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_torch_configure("backend:cudaMallocAsync", 1, nullptr, 0, nullptr),
            NOFRAG_NOT_SUPPORTED);
  nofrag_torch_init(1);
  EXPECT_EQ(nofrag_torch_configure("", 0, nullptr, 0, nullptr), NOFRAG_ALREADY_INITIALIZED);
}

TEST(TorchHooks, AllocFreeReset) {
  void* block = nofrag_torch_alloc(10 * kMegabyte, 0, nullptr);
  EXPECT_EQ(stats().live_bytes, 10 * kMegabyte);
  nofrag_torch_free(block, 10 * kMegabyte, 0, nullptr);
  EXPECT_EQ(stats().live_bytes, 0U);
  EXPECT_GT(stats().reserved_bytes, 0U);
  nofrag_torch_reset();
  EXPECT_EQ(stats().reserved_bytes, 0U);
}

TEST(TorchHooks, ForeignPointersAreIgnored) {
  int on_stack = 0;
  testing::internal::CaptureStderr();
  nofrag_torch_free(&on_stack, 4, 0, nullptr);
  nofrag_torch_free(&on_stack, 4, 0, nullptr);
  nofrag_torch_record_stream(&on_stack, nullptr);
  nofrag_torch_record_stream(nullptr, nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("not a block of nofrag"), std::string::npos) << said;
  EXPECT_EQ(said.find("ignored"), said.rfind("ignored")) << "said more than once: " << said;
}

TEST(TorchHooks, BaseAllocation) {
  void* block = nofrag_torch_alloc(3000, 0, nullptr);
  std::size_t size = 1;
  EXPECT_EQ(nofrag_torch_base_alloc(static_cast<char*>(block) + 1000, &size), block);
  EXPECT_EQ(size, 3072U);
  EXPECT_EQ(nofrag_torch_base_alloc(block, nullptr), block);
  size = 1;
  int on_stack = 0;
  EXPECT_EQ(nofrag_torch_base_alloc(&on_stack, &size), &on_stack);
  EXPECT_EQ(size, 1U);
  nofrag_torch_free(block, 3000, 0, nullptr);
}

TEST(TorchHooks, RecordStreamDefersReuse) {
  void* const other = reinterpret_cast<void*>(0x200);
  void* block = nofrag_torch_alloc(kMegabyte, 0, nullptr);
  nofrag_torch_record_stream(block, other);
  nofrag_torch_free(block, kMegabyte, 0, nullptr);
  EXPECT_EQ(stats().pending_bytes, kMegabyte);
}

TEST(TorchHooks, MemoryFraction) {
  nofrag_torch_memory_fraction(0.5, 0);
  EXPECT_LT(stats().limit_bytes, std::uint64_t{80} << 30);
  testing::internal::CaptureStderr();
  nofrag_torch_memory_fraction(7, 0);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("from 0 to 1"), std::string::npos);
  nofrag_torch_memory_fraction(1.0, 0);
}

TEST(TorchHooks, PoolTakesWhatItsFilterTakes) {
  const NofragTorchPoolId pool{3, 4};
  void* const captured = reinterpret_cast<void*>(0x300);
  nofrag_torch_begin_allocate_to_pool(
      0, pool, [captured](void* stream) { return stream == captured; });
  void* inside = nofrag_torch_alloc(512, 0, captured);
  void* outside = nofrag_torch_alloc(512, 0, nullptr);
  nofrag_torch_end_allocate_to_pool(0, pool);
  nofrag_block_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(nofrag_find(inside, &info), NOFRAG_OK);
  EXPECT_EQ(info.pool_first, 3U);
  EXPECT_EQ(info.pool_second, 4U);
  info.struct_size = sizeof info;
  ASSERT_EQ(nofrag_find(outside, &info), NOFRAG_OK);
  EXPECT_EQ(info.pool_first, 0U);
  nofrag_torch_free(inside, 512, 0, captured);
  nofrag_torch_free(outside, 512, 0, nullptr);
  nofrag_torch_release_pool(0, pool);
}

}  // namespace
}  // namespace nofrag
