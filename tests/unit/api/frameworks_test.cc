#include <unistd.h>

#include <map>
#include <vector>

#include <nofrag/frameworks.h>

#include "api_fixture.h"

namespace nofrag {
namespace {

constexpr nofrag_pool kPool{21, 22};

class FrameworksApiTest : public ApiTest {};

TEST_F(FrameworksApiTest, PoolsAreRetainedTrimmedAndRestored) {
  ASSERT_EQ(nofrag_pool_retain(0, kPool), NOFRAG_OK);
  void* kept = nofrag_pool_malloc(5 * kTestMiB, 0, nullptr, kPool);
  void* died = nofrag_pool_malloc(3 * kTestMiB, 0, nullptr, kPool);
  const nofrag_pool_block then[] = {{kept, 5 * kTestMiB, nullptr}, {died, 3 * kTestMiB, nullptr}};
  EXPECT_EQ(nofrag_free(died), NOFRAG_OK);
  void* over = nofrag_pool_malloc(kTestMiB, 0, nullptr, kPool);
  ASSERT_EQ(nofrag_pool_restore(0, kPool, then, 2), NOFRAG_OK) << last_message();
  nofrag_block_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(nofrag_find(died, &info), NOFRAG_OK);
  EXPECT_EQ(info.address, died);
  EXPECT_EQ(info.requested_size, 3 * kTestMiB);
  if (over != died) {
    EXPECT_EQ(nofrag_free(over), NOFRAG_UNKNOWN_POINTER);
  }
  void* single = nofrag_pool_malloc_single(6 * kTestMiB, 0, nullptr, kPool);
  ASSERT_NE(single, nullptr);
  std::size_t parts = 0;
  ASSERT_EQ(nofrag_parts(single, nullptr, &parts), NOFRAG_OK);
  EXPECT_EQ(parts, 1U);
  ASSERT_EQ(nofrag_pool_restore(0, kPool, nullptr, 0), NOFRAG_OK);
  EXPECT_EQ(nofrag_pool_lend_when_short(0, kPool, 1), NOFRAG_OK);
  ASSERT_EQ(nofrag_pool_release(0, kPool), NOFRAG_OK);
  std::uint64_t given_back = 0;
  EXPECT_EQ(nofrag_pool_trim(0, kPool, &given_back), NOFRAG_OK);
  EXPECT_GE(given_back, 8 * kTestMiB);
  for (const nofrag_status status : {nofrag_pool_trim(0, kPool, nullptr),
                                     nofrag_pool_restore(0, kPool, nullptr, 0),
                                     nofrag_pool_lend_when_short(0, kPool, 1),
                                     nofrag_pool_retain(0, {0, 0})}) {
    EXPECT_EQ(status, NOFRAG_INVALID_ARGUMENT);
  }
  EXPECT_EQ(nofrag_pool_restore(0, kPool, nullptr, 3), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_pool_malloc_single(512, 0, nullptr, kPool), nullptr);
  EXPECT_NE(last_message().find("pool {21, 22}"), std::string::npos) << last_message();
}

TEST_F(FrameworksApiTest, TheWalkShowsBlocks) {
  void* block = nofrag_malloc(7 * kTestMiB, 0, test_stream(3));
  struct Walked {
    std::uint64_t sum = 0;
    std::map<void*, nofrag_span> live;
  } seen;
  const auto visit = [](const nofrag_span* span, void* user) {
    auto* all = static_cast<Walked*>(user);
    EXPECT_EQ(span->struct_size, sizeof(nofrag_span));
    EXPECT_EQ(span->version, NOFRAG_SPAN_VERSION);
    EXPECT_EQ(span->device, 0);
    all->sum += span->size;
    if (span->state == NOFRAG_SPAN_LIVE) {
      all->live[span->address] = *span;
    }
  };
  ASSERT_EQ(nofrag_walk(0, visit, &seen), NOFRAG_OK);
  EXPECT_EQ(seen.sum, device_stats().reserved_bytes);
  ASSERT_EQ(seen.live.size(), 1U);
  EXPECT_EQ(seen.live.begin()->first, block);
  EXPECT_EQ(seen.live.begin()->second.stream, test_stream(3));
  EXPECT_EQ(seen.live.begin()->second.requested_size, 7 * kTestMiB);
  EXPECT_EQ(nofrag_walk(0, nullptr, nullptr), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_walk(77, visit, &seen), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

TEST_F(FrameworksApiTest, TheListenerHearsUntilItIsTakenOff) {
  struct Heard {
    int events = 0;
    std::uint64_t reserved = 0;
  } heard;
  const auto listen = [](const nofrag_memory_event* event, void* user) {
    EXPECT_EQ(event->struct_size, sizeof(nofrag_memory_event));
    auto* all = static_cast<Heard*>(user);
    ++all->events;
    all->reserved = event->reserved_bytes;
  };
  EXPECT_EQ(nofrag_trim(0, 0, nullptr), NOFRAG_OK);
  ASSERT_EQ(nofrag_set_memory_listener(listen, &heard), NOFRAG_OK);
  void* block = nofrag_malloc(9 * kTestMiB, 0, nullptr);
  EXPECT_GE(heard.events, 2);
  EXPECT_EQ(heard.reserved, device_stats().reserved_bytes);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  EXPECT_EQ(nofrag_trim(0, 0, nullptr), NOFRAG_OK);
  EXPECT_EQ(heard.reserved, 0U);
  ASSERT_EQ(nofrag_set_memory_listener(nullptr, nullptr), NOFRAG_OK);
  const int before = heard.events;
  EXPECT_EQ(nofrag_free(nofrag_malloc(9 * kTestMiB, 0, nullptr)), NOFRAG_OK);
  EXPECT_EQ(heard.events, before);
}

TEST_F(FrameworksApiTest, MemoryCrossesByDescriptors) {
  void* block = nofrag_malloc(20 * kTestMiB, 0, nullptr);
  std::size_t count = 0;
  ASSERT_EQ(nofrag_parts(block, nullptr, &count), NOFRAG_OK);
  std::vector<nofrag_part> parts(count);
  ASSERT_EQ(nofrag_parts(block, parts.data(), &count), NOFRAG_OK);
  if (count > 1) {
    std::size_t too_few = count - 1;
    EXPECT_EQ(nofrag_parts(block, parts.data(), &too_few), NOFRAG_BUFFER_TOO_SMALL);
    EXPECT_EQ(too_few, count);
  }
  std::vector<int> descriptors(count);
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(nofrag_export(block, parts[i].allocation, &descriptors[i]), NOFRAG_OK);
    sizes.push_back(parts[i].size);
  }
  void* there = nullptr;
  ASSERT_EQ(nofrag_import(0, descriptors.data(), sizes.data(), count, &there), NOFRAG_OK)
      << last_message();
  EXPECT_NE(there, nullptr);
  EXPECT_EQ(nofrag_close_import(0, there), NOFRAG_OK);
  EXPECT_EQ(nofrag_close_import(0, there), NOFRAG_UNKNOWN_POINTER);
  for (const int descriptor : descriptors) {
    ::close(descriptor);
  }
  EXPECT_EQ(nofrag_import(0, descriptors.data(), sizes.data(), count, &there),
            NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(there, nullptr);
  EXPECT_EQ(nofrag_import(0, nullptr, nullptr, 1, &there), NOFRAG_INVALID_ARGUMENT);
  int descriptor = 7;
  EXPECT_EQ(nofrag_export(&descriptor, 1, &descriptor), NOFRAG_UNKNOWN_POINTER);
  EXPECT_EQ(descriptor, -1);
  EXPECT_EQ(nofrag_export(block, UINT64_MAX, &descriptor), NOFRAG_INVALID_ARGUMENT);
  count = 0;
  EXPECT_EQ(nofrag_parts(&descriptor, nullptr, &count), NOFRAG_UNKNOWN_POINTER);
  count = 5;
  EXPECT_EQ(nofrag_parts(block, nullptr, &count), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

TEST_F(FrameworksApiTest, PeersThatAreNotThere) {
  EXPECT_EQ(nofrag_grant_access(0, 1), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_grant_access(5, 0), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_grant_access(0, 0), NOFRAG_OK);
}

}  // namespace
}  // namespace nofrag
