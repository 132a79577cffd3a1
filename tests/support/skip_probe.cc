// Run by exit_status_test.py under filters: what a program with skipped tests says to ctest.
#include <gtest/gtest.h>

TEST(Probe, Passes) {}
TEST(Probe, Skips) {
  GTEST_SKIP() << "always";
}
TEST(Probe, Fails) {
  FAIL() << "always";
}
