// The main() of every test program: GoogleTest's, plus an honest exit status for skips.
//
// A program whose every test was skipped (no GPU, no PyTorch) exits with 77, which ctest counts as
// skipped. With GoogleTest's own main it would count as passed. A program that ran no test fails.
#include <gtest/gtest.h>

namespace {
constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in cmake/NofragTargets.cmake
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  if (status != 0 || testing::GTEST_FLAG(list_tests)) {
    return status;
  }
  if (program.test_to_run_count() == 0) {
    return 1;
  }
  return program.skipped_test_count() == program.test_to_run_count() ? kSkipped : 0;
}
