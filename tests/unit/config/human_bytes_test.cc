#include "config/human_bytes.h"

#include <gtest/gtest.h>

namespace nofrag {
namespace {

TEST(HumanBytes, BelowOneKiBInBytes) {
  EXPECT_EQ(human_bytes(Bytes(0)), "0 B");
  EXPECT_EQ(human_bytes(Bytes(1)), "1 B");
  EXPECT_EQ(human_bytes(Bytes(512)), "512 B");
  EXPECT_EQ(human_bytes(Bytes(1023)), "1023 B");
}

TEST(HumanBytes, AboveWithTwoDigits) {
  EXPECT_EQ(human_bytes(kKiB), "1.00 KiB");
  EXPECT_EQ(human_bytes(Bytes(1500)), "1.46 KiB");
  EXPECT_EQ(human_bytes(kMiB), "1.00 MiB");
  EXPECT_EQ(human_bytes(20 * kMiB), "20.00 MiB");
  EXPECT_EQ(human_bytes(1536 * kMiB), "1.50 GiB");
  EXPECT_EQ(human_bytes(Bytes(24180194304)), "22.52 GiB");
  EXPECT_EQ(human_bytes(1023 * kGiB), "1023.00 GiB");
  EXPECT_EQ(human_bytes(1024 * kGiB), "1.00 TiB");
  EXPECT_EQ(human_bytes(1536 * kGiB), "1.50 TiB");
  EXPECT_EQ(human_bytes(kNoLimit), "16777216.00 TiB");
}

TEST(TorchBytes, AsPyTorchWritesThem) {
  EXPECT_EQ(torch_bytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(torch_bytes(kKiB), "1.00 KiB");
  EXPECT_EQ(torch_bytes(20 * kMiB), "20.00 MiB");
  EXPECT_EQ(torch_bytes(Bytes(24180194304)), "22.52 GiB");
  EXPECT_EQ(torch_bytes(1536 * kGiB), "1536.00 GiB") << "no TiB there";
  EXPECT_EQ(torch_bytes(kNoLimit), "17179869184.00 GiB");
}

}  // namespace
}  // namespace nofrag
