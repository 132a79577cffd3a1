// What threads keep (device/caching.cc), through the allocator.
#include <thread>
#include <vector>

#include "device_fixture.h"

namespace nofrag {
namespace {

class Caching : public DeviceFixture {
 protected:
  Caching() { caches_ = true; }

  void keep(int blocks, Bytes size, StreamId stream = kA) {
    std::vector<VirtAddr> all;
    for (int i = 0; i < blocks; ++i) {
      all.push_back(allocator_->allocate(size, stream).value());
    }
    for (const VirtAddr address : all) {
      EXPECT_TRUE(allocator_->free(address).ok());
    }
  }
};

TEST_F(Caching, NothingIsNoRequestForACacheEither) {
  start(kGiB);
  keep(4, Bytes(512));
  EXPECT_EQ(allocator_->allocate(Bytes(0), kA).code(), Errc::kInvalidArgument);
}

}  // namespace
}  // namespace nofrag
