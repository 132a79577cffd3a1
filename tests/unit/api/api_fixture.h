// ApiTest: leaves the process-wide allocator as it found it, and checks it after every test.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include <nofrag/nofrag.h>

namespace nofrag {

inline constexpr std::uint64_t kTestMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kTestGiB = std::uint64_t{1} << 30;

inline void* test_stream(std::uintptr_t number) {
  return reinterpret_cast<void*>(number << 8);
}

inline nofrag_device_stats device_stats() {
  nofrag_device_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(nofrag_get_stats(0, &stats), NOFRAG_OK);
  return stats;
}

inline nofrag_status last_status() {
  return nofrag_last_error(nullptr);
}

inline std::string last_message() {
  const char* message = nullptr;
  nofrag_last_error(&message);
  return message;
}

class ApiTest : public testing::Test {
 protected:
  void TearDown() override {
    const nofrag_device_stats stats = device_stats();
    EXPECT_EQ(stats.live_blocks, 0U);
    EXPECT_LE(stats.requested_bytes, stats.live_bytes);
    EXPECT_LE(stats.live_bytes, stats.allocated_bytes);
    EXPECT_LE(stats.allocated_bytes, stats.mapped_in_use_bytes);
    EXPECT_LE(stats.mapped_in_use_bytes, stats.reserved_bytes);
    EXPECT_EQ(stats.allocated_bytes, stats.live_bytes + stats.pending_bytes);
    EXPECT_EQ(stats.reserved_bytes,
              stats.allocated_bytes + stats.kept_bytes + stats.stranded_bytes +
                  stats.free_ends_bytes + stats.free_handles_bytes);
    EXPECT_EQ(nofrag_check(0), NOFRAG_OK);
    EXPECT_EQ(nofrag_set_limit(0, UINT64_MAX), NOFRAG_OK);
    EXPECT_EQ(nofrag_trim(0, 0, nullptr), NOFRAG_OK);
    EXPECT_EQ(nofrag_reset_peaks(0), NOFRAG_OK);
  }
};

}  // namespace nofrag
