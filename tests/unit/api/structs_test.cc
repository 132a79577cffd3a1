// Structures of other versions, and text into buffers of any size.
#include <cstddef>
#include <cstring>
#include <vector>

#include <nlohmann/json.hpp>

#include "api_fixture.h"
#include "base/json_text.h"

namespace nofrag {
namespace {

TEST_F(ApiTest, OlderCallerGetsWhatItKnows) {
  void* block = nofrag_malloc(1000, 0, nullptr);
  struct Older {
    std::uint32_t struct_size;
    std::uint32_t version;
    std::uint64_t requested_bytes;
    std::uint64_t guard;
  } older{offsetof(Older, guard), 1, 0, 0x5a5a5a5a5a5a5a5a};
  ASSERT_EQ(nofrag_get_stats(0, reinterpret_cast<nofrag_device_stats*>(&older)), NOFRAG_OK);
  EXPECT_EQ(older.struct_size, offsetof(Older, guard));
  EXPECT_EQ(older.version, NOFRAG_DEVICE_STATS_VERSION);
  EXPECT_EQ(older.requested_bytes, 1000U);
  EXPECT_EQ(older.guard, 0x5a5a5a5a5a5a5a5aU);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

TEST_F(ApiTest, NewerCallerGetsZerosForTheRest) {
  struct Newer {
    nofrag_device_stats known;
    std::uint64_t unknown[4];
  } newer{};
  std::memset(&newer, 0xff, sizeof newer);
  newer.known.struct_size = sizeof newer;
  ASSERT_EQ(nofrag_get_stats(0, &newer.known), NOFRAG_OK);
  EXPECT_EQ(newer.known.struct_size, sizeof(nofrag_device_stats));
  for (const std::uint64_t word : newer.unknown) {
    EXPECT_EQ(word, 0U);
  }
  EXPECT_EQ(newer.known.reserved[0], 0U);
}

TEST_F(ApiTest, StructSizeThatCannotBe) {
  for (const std::uint32_t size : {0U, 7U, 4097U, 0xffffffffU}) {
    nofrag_device_stats stats{};
    stats.struct_size = size;
    EXPECT_EQ(nofrag_get_stats(0, &stats), NOFRAG_INVALID_ARGUMENT) << size;
    EXPECT_NE(last_message().find("sizeof(nofrag_device_stats)"), std::string::npos);
  }
  EXPECT_EQ(nofrag_get_stats(0, nullptr), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_get_oom_report(0, nullptr), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_device_count(nullptr), NOFRAG_INVALID_ARGUMENT);
  void* block = nofrag_malloc(1, 0, nullptr);
  EXPECT_EQ(nofrag_find(block, nullptr), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

TEST_F(ApiTest, ConfigOfOtherVersions) {
  // nofrag is in use already, so a structure that is accepted ends as ALREADY_INITIALIZED.
  nofrag_config config = NOFRAG_CONFIG_INIT;
  EXPECT_EQ(nofrag_init(&config), NOFRAG_ALREADY_INITIALIZED);
  config.struct_size = offsetof(nofrag_config, conf);
  EXPECT_EQ(nofrag_init(&config), NOFRAG_ALREADY_INITIALIZED);
  struct Newer {
    nofrag_config known;
    std::uint64_t unknown;
  } newer{NOFRAG_CONFIG_INIT, 0};
  newer.known.struct_size = sizeof newer;
  EXPECT_EQ(nofrag_init(&newer.known), NOFRAG_ALREADY_INITIALIZED);
  newer.unknown = 1;
  EXPECT_EQ(nofrag_init(&newer.known), NOFRAG_NOT_SUPPORTED);
  config = NOFRAG_CONFIG_INIT;
  config.version = 0;
  EXPECT_EQ(nofrag_init(&config), NOFRAG_INVALID_ARGUMENT);
  config = NOFRAG_CONFIG_INIT;
  config.struct_size = 3;
  EXPECT_EQ(nofrag_init(&config), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_init(nullptr), NOFRAG_ALREADY_INITIALIZED);
}

TEST_F(ApiTest, TextIntoBuffersOfAnySize) {
  std::size_t needed = 0;
  ASSERT_EQ(nofrag_driver_name(nullptr, 0, &needed), NOFRAG_OK);
  const std::string name = "sim:h100-80g";
  EXPECT_EQ(needed, name.size() + 1);
  for (std::size_t capacity = 1; capacity <= needed + 2; ++capacity) {
    std::vector<char> buffer(capacity + 1, '#');
    const nofrag_status status = nofrag_driver_name(buffer.data(), capacity, nullptr);
    EXPECT_EQ(status, capacity >= needed ? NOFRAG_OK : NOFRAG_BUFFER_TOO_SMALL);
    EXPECT_EQ(std::string(buffer.data()), name.substr(0, capacity - 1));
    EXPECT_EQ(buffer[capacity], '#');
  }
  EXPECT_EQ(nofrag_driver_name(nullptr, 5, nullptr), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_driver_name(nullptr, 0, nullptr), NOFRAG_BUFFER_TOO_SMALL);
  const char* why = nullptr;
  EXPECT_EQ(nofrag_last_error(&why), NOFRAG_BUFFER_TOO_SMALL);
  EXPECT_STREQ(why, "the text takes a buffer of 13 bytes, not of 0");
}

TEST_F(ApiTest, JsonHoldsTheDeviceAndTheLedger) {
  void* block = nofrag_malloc(5 * kTestMiB, 0, nullptr);
  std::vector<char> buffer(1 << 16);
  ASSERT_EQ(nofrag_stats_json(buffer.data(), buffer.size(), nullptr), NOFRAG_OK);
  const nlohmann::json json = parse_json(buffer.data());
  EXPECT_EQ(json.at("devices").at(0).at("live_bytes"), 5 * kTestMiB);
  EXPECT_EQ(json.at("devices").at(0).at("backend"), "vmm");
  EXPECT_GT(json.at("driver").at("calls").at("create"), 0);
  EXPECT_GT(json.at("driver").at("total_microseconds"), 0.0);
  ASSERT_EQ(nofrag_stats_text(buffer.data(), buffer.size(), nullptr), NOFRAG_OK);
  EXPECT_NE(std::string(buffer.data()).find("live_bytes"), std::string::npos);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

TEST(StatusName, EveryStatusHasOne) {
  for (int status = NOFRAG_OK; status <= NOFRAG_BUFFER_TOO_SMALL; ++status) {
    EXPECT_STRNE(nofrag_status_name(static_cast<nofrag_status>(status)), "unknown status");
  }
  EXPECT_STREQ(nofrag_status_name(static_cast<nofrag_status>(NOFRAG_BUFFER_TOO_SMALL + 1)),
               "unknown status");
  EXPECT_STREQ(nofrag_version(), NOFRAG_VERSION_STRING);
}

}  // namespace
}  // namespace nofrag
