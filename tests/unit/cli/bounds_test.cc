#include <gtest/gtest.h>

#include "cli/replay/replay_report.h"
#include "trace/trace_builder.h"

namespace nofrag {
namespace {

TEST(Bounds, LargeBlocksHaveGranulesOfTheirOwn) {
  TraceBuilder builder(TraceUnit::kEvent);
  ASSERT_TRUE(builder.add_allocation(0, 0, (3 * kMiB).count(), 0));        // 4 MiB
  ASSERT_TRUE(builder.add_allocation(0, 1, (2 * kMiB).count() - 512, 0));  // small
  ASSERT_TRUE(builder.add_allocation(0, 2, 512, 0));                       // beside it
  ASSERT_TRUE(builder.add_allocation(0, 3, 1, 0));                         // one granule more
  ASSERT_TRUE(builder.add_free(1, 0, 0, 0));
  ASSERT_TRUE(builder.add_allocation(1, 4, (4 * kMiB).count(), 0));
  const Trace trace = builder.finish(TraceFormat::kCsv);
  EXPECT_EQ(granule_bound(trace), 8 * kMiB);
  EXPECT_EQ(trace.peak_live, 6 * kMiB + Bytes(512));
}

}  // namespace
}  // namespace nofrag
