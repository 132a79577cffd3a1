#include "api_fixture.h"

namespace nofrag {
namespace {

std::uint64_t pool_of(void* block) {
  nofrag_block_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(nofrag_find(block, &info), NOFRAG_OK);
  return info.pool_first;
}

int is_stream(void* stream, void* user) {
  return stream == user ? 1 : 0;
}

TEST_F(ApiTest, FilterRoutesBetweenBeginAndEnd) {
  const nofrag_pool pool = {7, 0};
  ASSERT_EQ(nofrag_pool_begin(0, pool, is_stream, test_stream(1)), NOFRAG_OK);
  void* inside = nofrag_malloc(512, 0, test_stream(1));
  void* other = nofrag_malloc(512, 0, test_stream(2));
  ASSERT_EQ(nofrag_pool_end(0, pool), NOFRAG_OK);
  void* after = nofrag_malloc(512, 0, test_stream(1));
  EXPECT_EQ(pool_of(inside), 7U);
  EXPECT_EQ(pool_of(other), 0U);
  EXPECT_EQ(pool_of(after), 0U);
  for (void* block : {inside, other, after}) {
    EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  }
  EXPECT_EQ(nofrag_pool_release(0, pool), NOFRAG_OK);
}

TEST_F(ApiTest, InnermostPoolIsAskedFirst) {
  const nofrag_pool outer = {1, 5};
  const nofrag_pool inner = {2, 5};
  ASSERT_EQ(nofrag_pool_begin(0, outer, nullptr, nullptr), NOFRAG_OK);
  ASSERT_EQ(nofrag_pool_begin(0, inner, is_stream, test_stream(3)), NOFRAG_OK);
  void* in_inner = nofrag_malloc(512, 0, test_stream(3));
  void* in_outer = nofrag_malloc(512, 0, test_stream(4));
  EXPECT_EQ(pool_of(in_inner), 2U);
  EXPECT_EQ(pool_of(in_outer), 1U);
  EXPECT_EQ(nofrag_pool_end(0, inner), NOFRAG_OK);
  EXPECT_EQ(nofrag_pool_end(0, outer), NOFRAG_OK);
  void* direct = nofrag_pool_malloc(512, 0, test_stream(9), inner);
  EXPECT_EQ(pool_of(direct), 2U);
  for (void* block : {in_inner, in_outer, direct}) {
    EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  }
  EXPECT_EQ(nofrag_pool_release(0, inner), NOFRAG_OK);
  EXPECT_EQ(nofrag_pool_release(0, outer), NOFRAG_OK);
}

TEST_F(ApiTest, PoolMisuse) {
  EXPECT_EQ(nofrag_pool_begin(0, {0, 0}, nullptr, nullptr), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_pool_end(0, {0, 0}), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_pool_end(0, {99, 99}), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(), "end of pool {99, 99} on device 0: no nofrag_pool_begin of it is open");
  EXPECT_EQ(nofrag_pool_release(0, {99, 99}), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(
      last_message(),
      "release of pool {99, 99} on device 0: there is no such pool: it was never begun, or it "
      "was released");
  EXPECT_EQ(nofrag_pool_begin(0, {UINT64_MAX, 1}, nullptr, nullptr), NOFRAG_INVALID_ARGUMENT);
  EXPECT_NE(last_message().find("{18446744073709551615, 1}"), std::string::npos);
  EXPECT_EQ(nofrag_pool_begin(5, {1, 1}, nullptr, nullptr), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_pool_malloc(512, 0, nullptr, {98, 7}), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(),
            "there is no pool {98, 7} on device 0: it was never begun, or it was released");
}

TEST_F(ApiTest, BlocksOutliveTheirPool) {
  const nofrag_pool pool = {11, 1};
  ASSERT_EQ(nofrag_pool_begin(0, pool, nullptr, nullptr), NOFRAG_OK);
  void* block = nofrag_malloc(3 * kTestMiB, 0, test_stream(1));
  ASSERT_EQ(nofrag_pool_end(0, pool), NOFRAG_OK);
  ASSERT_EQ(nofrag_pool_release(0, pool), NOFRAG_OK);
  EXPECT_EQ(nofrag_pool_malloc(512, 0, nullptr, pool), nullptr);
  EXPECT_NE(last_message().find("no pool {11, 1} on device 0"), std::string::npos)
      << last_message();
  EXPECT_EQ(nofrag_trim(0, 0, nullptr), NOFRAG_OK);
  EXPECT_GE(device_stats().live_bytes, 3 * kTestMiB);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

}  // namespace
}  // namespace nofrag
