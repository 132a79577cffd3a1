#include <cmath>
#include <vector>

#include "api_fixture.h"

namespace nofrag {
namespace {

struct Seen {
  int calls = 0;
  nofrag_oom_report report{};
};

void note_oom(int device, const nofrag_oom_report* report, void* user) {
  auto* seen = static_cast<Seen*>(user);
  ++seen->calls;
  seen->report = *report;
  EXPECT_EQ(device, report->device);
  // A callback may use nofrag, and what fails inside must not hide the failure outside.
  EXPECT_EQ(nofrag_free(user), NOFRAG_UNKNOWN_POINTER);
}

TEST_F(ApiTest, LimitRefusesAndReports) {
  ASSERT_EQ(nofrag_set_limit(0, 64 * kTestMiB), NOFRAG_OK);
  Seen seen;
  ASSERT_EQ(nofrag_add_oom_callback(note_oom, &seen), NOFRAG_OK);
  void* block = nofrag_malloc(40 * kTestMiB, 0, test_stream(1));
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(nofrag_malloc(40 * kTestMiB, 0, test_stream(2)), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_LIMIT);
  EXPECT_NE(last_message().find("40.00 MiB"), std::string::npos) << last_message();
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.report.requested_bytes, 40 * kTestMiB);
  EXPECT_EQ(seen.report.limit_reached, 1);
  EXPECT_EQ(seen.report.limit_bytes, 64 * kTestMiB);
  EXPECT_EQ(seen.report.live_bytes, 40 * kTestMiB);
  EXPECT_EQ(seen.report.stream, test_stream(2));

  nofrag_oom_report report{};
  report.struct_size = sizeof report;
  ASSERT_EQ(nofrag_get_oom_report(0, &report), NOFRAG_OK);
  EXPECT_EQ(report.requested_bytes, 40 * kTestMiB);
  char text[2048];
  ASSERT_EQ(nofrag_oom_message(0, text, sizeof text, nullptr), NOFRAG_OK);
  EXPECT_EQ(last_message().rfind(std::string(text) + "\ncause: ", 0), 0U) << last_message();

  ASSERT_EQ(nofrag_remove_oom_callback(note_oom, &seen), NOFRAG_OK);
  EXPECT_EQ(nofrag_remove_oom_callback(note_oom, &seen), NOFRAG_INVALID_ARGUMENT);
  EXPECT_EQ(nofrag_malloc(40 * kTestMiB, 0, test_stream(2)), nullptr);
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  EXPECT_GE(device_stats().failed_allocations, 2U);
}

void allocate_in_vain(int device, const nofrag_oom_report* /*report*/, void* user) {
  ++*static_cast<int*>(user);
  EXPECT_EQ(nofrag_malloc(100 * kTestGiB, device, nullptr), nullptr);
}

int free_in_vain(int device, uint64_t /*needed*/, void* user) {
  ++*static_cast<int*>(user);
  EXPECT_EQ(nofrag_malloc(100 * kTestGiB, device, nullptr), nullptr);
  return 0;
}

TEST_F(ApiTest, AFailureInsideACallbackStartsNoOther) {
  int observed = 0;
  int asked = 0;
  ASSERT_EQ(nofrag_add_oom_callback(allocate_in_vain, &observed), NOFRAG_OK);
  ASSERT_EQ(nofrag_add_pressure_callback(free_in_vain, &asked), NOFRAG_OK);
  EXPECT_EQ(nofrag_malloc(100 * kTestGiB, 0, nullptr), nullptr);
  ASSERT_EQ(nofrag_remove_oom_callback(allocate_in_vain, &observed), NOFRAG_OK);
  ASSERT_EQ(nofrag_remove_pressure_callback(free_in_vain, &asked), NOFRAG_OK);
  // Once for the request itself, and each kind once from inside the other.
  EXPECT_LE(observed, 2);
  EXPECT_LE(asked, 2);
  EXPECT_GE(observed, 1);
  EXPECT_GE(asked, 1);
}

TEST_F(ApiTest, DriverOutOfMemoryIsItsOwnStatus) {
  EXPECT_EQ(nofrag_malloc(100 * kTestGiB, 0, nullptr), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_OUT_OF_MEMORY);
  // And nothing is broken or lost after it.
  void* block = nofrag_malloc(60 * kTestGiB, 0, nullptr);
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

int free_one(int /*device*/, std::uint64_t needed, void* user) {
  auto* held = static_cast<std::vector<void*>*>(user);
  EXPECT_GE(needed, 30 * kTestMiB);
  if (held->empty()) {
    return 0;
  }
  EXPECT_EQ(nofrag_free(held->back()), NOFRAG_OK);
  held->pop_back();
  return 1;
}

TEST_F(ApiTest, PressureCallbackMakesRoom) {
  ASSERT_EQ(nofrag_set_limit(0, 64 * kTestMiB), NOFRAG_OK);
  std::vector<void*> held = {nofrag_malloc(40 * kTestMiB, 0, nullptr)};
  ASSERT_EQ(nofrag_add_pressure_callback(free_one, &held), NOFRAG_OK);
  ASSERT_EQ(nofrag_add_pressure_callback(free_one, &held), NOFRAG_OK);  // held once
  void* block = nofrag_malloc(30 * kTestMiB, 0, nullptr);
  EXPECT_NE(block, nullptr) << last_message();
  EXPECT_TRUE(held.empty());
  EXPECT_GE(device_stats().rung_pressure_callbacks, 1U);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  ASSERT_EQ(nofrag_remove_pressure_callback(free_one, &held), NOFRAG_OK);
  EXPECT_EQ(nofrag_remove_pressure_callback(free_one, &held), NOFRAG_INVALID_ARGUMENT);
}

TEST_F(ApiTest, CallbackListsAreBounded) {
  int users[33];
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(nofrag_add_oom_callback(note_oom, &users[i]), NOFRAG_OK);
  }
  EXPECT_EQ(nofrag_add_oom_callback(note_oom, &users[32]), NOFRAG_NOT_SUPPORTED);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(nofrag_remove_oom_callback(note_oom, &users[i]), NOFRAG_OK);
  }
  EXPECT_EQ(nofrag_add_oom_callback(nullptr, nullptr), NOFRAG_INVALID_ARGUMENT);
}

TEST_F(ApiTest, TrimGivesIdleMemoryBack) {
  void* block = nofrag_malloc(100 * kTestMiB, 0, nullptr);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
  const std::uint64_t reserved = device_stats().reserved_bytes;
  EXPECT_GE(reserved, 100 * kTestMiB);
  std::uint64_t given_back = 0;
  ASSERT_EQ(nofrag_trim(0, 0, &given_back), NOFRAG_OK);
  EXPECT_EQ(given_back, reserved);
  EXPECT_EQ(device_stats().reserved_bytes, 0U);
  EXPECT_EQ(device_stats().peak_reserved_bytes, reserved);
  ASSERT_EQ(nofrag_reset_peaks(0), NOFRAG_OK);
  EXPECT_EQ(device_stats().peak_reserved_bytes, 0U);
}

TEST_F(ApiTest, MemoryFraction) {
  for (const double bad : {-0.1, 1.1, std::nan(""), HUGE_VAL}) {
    EXPECT_EQ(nofrag_set_memory_fraction(0, bad), NOFRAG_INVALID_ARGUMENT) << bad;
  }
  ASSERT_EQ(nofrag_set_memory_fraction(0, 0.25), NOFRAG_OK);
  EXPECT_EQ(nofrag_malloc(30 * kTestGiB, 0, nullptr), nullptr);
  EXPECT_EQ(last_status(), NOFRAG_LIMIT);
  ASSERT_EQ(nofrag_set_memory_fraction(0, 1.0), NOFRAG_OK);
  void* block = nofrag_malloc(30 * kTestGiB, 0, nullptr);
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(nofrag_free(block), NOFRAG_OK);
}

TEST_F(ApiTest, LowerOfBothLimitsHoldsInAnyOrder) {
  ASSERT_EQ(nofrag_set_limit(0, kTestGiB), NOFRAG_OK);
  ASSERT_EQ(nofrag_set_memory_fraction(0, 0.5), NOFRAG_OK);
  EXPECT_EQ(device_stats().limit_bytes, kTestGiB);
  ASSERT_EQ(nofrag_set_limit(0, UINT64_MAX), NOFRAG_OK);
  const std::uint64_t half = device_stats().limit_bytes;
  EXPECT_GT(half, 30 * kTestGiB);
  EXPECT_LT(half, 40 * kTestGiB);
  ASSERT_EQ(nofrag_set_memory_fraction(0, 1.0), NOFRAG_OK);
  EXPECT_EQ(device_stats().limit_bytes, UINT64_MAX);
}

}  // namespace
}  // namespace nofrag
