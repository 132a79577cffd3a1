#include "driver_conformance.h"

#include <vector>

#include <gtest/gtest.h>

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};

class DriverConformance : public testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    driver_ = conformance_driver(&why_not);
    if (driver_ == nullptr) {
      GTEST_SKIP() << why_not;
    }
    info_ = driver_->device_info(kDevice).value();
    if (!info_.virtual_memory) {
      GTEST_SKIP() << "no virtual memory on " << info_.name;
    }
    unit_ = info_.granularity;
    range_ = driver_->reserve(unit_ * kRangeUnits, Bytes(0)).value();
  }

  void TearDown() override {
    if (driver_ == nullptr || range_.is_null()) {
      return;
    }
    for (const auto& [address, size] : mapped_) {
      EXPECT_TRUE(driver_->unmap(address, size));
    }
    for (const HandleId handle : handles_) {
      EXPECT_TRUE(driver_->release(handle));
    }
    EXPECT_TRUE(driver_->free_range(range_, unit_ * kRangeUnits));
  }

  HandleId create(std::uint64_t units) {
    const Result<HandleId> handle = driver_->create(kDevice, unit_ * units);
    EXPECT_TRUE(handle);
    handles_.push_back(handle.value());
    return handle.value();
  }
  void map(std::uint64_t at, std::uint64_t units, HandleId handle) {
    ASSERT_TRUE(driver_->map(at_unit(at), unit_ * units, handle));
    mapped_.emplace_back(at_unit(at), unit_ * units);
  }
  [[nodiscard]] VirtAddr at_unit(std::uint64_t units) const { return range_ + unit_ * units; }

  static constexpr std::uint64_t kRangeUnits = 64;
  std::unique_ptr<Driver> driver_;
  DeviceInfo info_;
  Bytes unit_;
  VirtAddr range_;
  std::vector<HandleId> handles_;
  std::vector<std::pair<VirtAddr, Bytes>> mapped_;
};

TEST_F(DriverConformance, MapsAndGrantsAccess) {
  map(0, 1, create(1));
  EXPECT_TRUE(driver_->set_access(at_unit(0), unit_, kDevice));
}

TEST_F(DriverConformance, RefusesSizesThatAreNotMultiples) {
  EXPECT_EQ(driver_->create(kDevice, unit_ - Bytes(4096)).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver_->create(kDevice, Bytes(0)).code(), Errc::kInvalidArgument);
}

TEST_F(DriverConformance, RefusesAddressesThatAreNotMultiples) {
  const HandleId handle = create(1);
  EXPECT_EQ(driver_->map(at_unit(0) + Bytes(4096), unit_, handle).code(), Errc::kInvalidArgument);
}

TEST_F(DriverConformance, RefusesPartOfAHandle) {
  const HandleId handle = create(4);
  EXPECT_EQ(driver_->map(at_unit(0), unit_, handle).code(), Errc::kNotSupported);
  map(0, 4, handle);  // and the refusal changed nothing
}

TEST_F(DriverConformance, RefusesMoreThanAHandle) {
  EXPECT_EQ(driver_->map(at_unit(0), unit_ * 2, create(1)).code(), Errc::kNotSupported);
}

TEST_F(DriverConformance, RefusesOverlappingMappings) {
  map(0, 4, create(4));
  const HandleId other = create(2);
  EXPECT_FALSE(driver_->map(at_unit(0), unit_ * 2, other));
  EXPECT_FALSE(driver_->map(at_unit(3), unit_ * 2, other));
  map(4, 2, other);
}

TEST_F(DriverConformance, RefusesMapOutsideOfReservations) {
  EXPECT_FALSE(driver_->map(VirtAddr(unit_.count()), unit_ * 2, create(2)));
}

TEST_F(DriverConformance, RefusesPartOfAMapping) {
  map(0, 4, create(4));
  EXPECT_EQ(driver_->set_access(at_unit(0), unit_, kDevice).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver_->unmap(at_unit(0), unit_).code(), Errc::kInvalidArgument);
  EXPECT_EQ(driver_->unmap(at_unit(1), unit_ * 3).code(), Errc::kInvalidArgument);
}

TEST_F(DriverConformance, RefusesAccessToUnmappedRange) {
  map(0, 1, create(1));
  EXPECT_FALSE(driver_->set_access(at_unit(0), unit_ * 2, kDevice));
  EXPECT_FALSE(driver_->set_access(at_unit(8), unit_, kDevice));
}

TEST_F(DriverConformance, OneCallCoversSeveralMappings) {
  map(0, 1, create(1));
  map(1, 4, create(4));
  map(5, 2, create(2));
  EXPECT_TRUE(driver_->set_access(at_unit(0), unit_ * 7, kDevice));
  EXPECT_TRUE(driver_->unmap(at_unit(0), unit_ * 5));
  mapped_ = {{at_unit(5), unit_ * 2}};
}

TEST_F(DriverConformance, OneHandleAtSeveralAddresses) {
  const HandleId handle = create(2);
  map(0, 2, handle);
  map(8, 2, handle);
  map(16, 2, handle);
  EXPECT_TRUE(driver_->set_access(at_unit(8), unit_ * 2, kDevice));
}

TEST_F(DriverConformance, RefusesFreeingARangeWithMappings) {
  map(0, 1, create(1));
  EXPECT_FALSE(driver_->free_range(range_, unit_ * kRangeUnits));
}

TEST_F(DriverConformance, RefusesFreeingPartOfAReservation) {
  EXPECT_FALSE(driver_->free_range(range_, unit_));
  EXPECT_FALSE(driver_->free_range(at_unit(1), unit_ * (kRangeUnits - 1)));
}

TEST_F(DriverConformance, ReleasedHandleLivesUntilItsLastUnmap) {
  const HandleId handle = create(1);
  map(0, 1, handle);
  EXPECT_TRUE(driver_->set_access(at_unit(0), unit_, kDevice));
  EXPECT_TRUE(driver_->release(handle));
  handles_.clear();
  EXPECT_TRUE(driver_->set_access(at_unit(0), unit_, kDevice));
}

TEST_F(DriverConformance, UnmappedHandleCanBeMappedElsewhere) {
  const HandleId handle = create(1);
  map(0, 1, handle);
  EXPECT_TRUE(driver_->unmap(at_unit(0), unit_));
  mapped_.clear();
  map(3, 1, handle);
  EXPECT_FALSE(driver_->set_access(at_unit(0), unit_, kDevice));
  EXPECT_TRUE(driver_->set_access(at_unit(3), unit_, kDevice));
}

TEST_F(DriverConformance, PhysicalMemoryReturnsAfterRelease) {
  const Bytes size = unit_ * 64;
  const Bytes before = driver_->memory_info(kDevice).value().free;
  const HandleId handle = driver_->create(kDevice, size).value();
  EXPECT_LE(driver_->memory_info(kDevice).value().free + size, before);
  EXPECT_TRUE(driver_->release(handle));
  EXPECT_EQ(driver_->memory_info(kDevice).value().free, before);
}

TEST_F(DriverConformance, MoreThanTheDeviceHasIsOutOfMemory) {
  const Bytes size = round_up(info_.total_memory * 2, unit_);
  EXPECT_EQ(driver_->create(kDevice, size).code(), Errc::kOutOfMemory);
  EXPECT_EQ(driver_->malloc(kDevice, size).code(), Errc::kOutOfMemory);
}

TEST_F(DriverConformance, AddressSpaceHasAnEnd) {
  const Result<VirtAddr> large = driver_->reserve(Bytes(std::uint64_t{1} << 46), Bytes(0));
  ASSERT_TRUE(large);
  EXPECT_TRUE(driver_->free_range(large.value(), Bytes(std::uint64_t{1} << 46)));
  const Result<VirtAddr> too_large = driver_->reserve(Bytes(std::uint64_t{1} << 47), Bytes(0));
  EXPECT_FALSE(too_large);
  EXPECT_NE(too_large.code(), Errc::kOutOfMemory);  // that word is kept for device memory
}

TEST_F(DriverConformance, ReservationsAreAligned) {
  const Bytes alignment = unit_ * 16;
  const VirtAddr address = driver_->reserve(unit_ * 2, alignment).value();
  EXPECT_EQ(address.value() % alignment.count(), 0U);
  EXPECT_TRUE(driver_->free_range(address, unit_ * 2));
}

TEST_F(DriverConformance, PlainMemory) {
  const VirtAddr address = driver_->malloc(kDevice, Bytes(1000)).value();
  EXPECT_EQ(address.value() % 256, 0U);
  EXPECT_TRUE(driver_->free(kDevice, address));
  EXPECT_EQ(driver_->malloc(kDevice, Bytes(0)).code(), Errc::kInvalidArgument);
}

TEST_F(DriverConformance, EventsOfIdleStreamsAreDone) {
  const EventId event = driver_->event_create(kDevice).value();
  EXPECT_TRUE(driver_->event_query(kDevice, event)) << "an event never recorded is done";
  EXPECT_TRUE(driver_->event_record(kDevice, event, StreamId(0)));
  EXPECT_TRUE(driver_->event_synchronize(kDevice, event));
  EXPECT_TRUE(driver_->event_query(kDevice, event));
  EXPECT_TRUE(driver_->stream_wait(kDevice, StreamId(0), event));
  EXPECT_FALSE(driver_->stream_is_capturing(kDevice, StreamId(0)).value());
  EXPECT_TRUE(driver_->stream_synchronize(kDevice, StreamId(0)));
  EXPECT_TRUE(driver_->device_synchronize(kDevice));
  EXPECT_TRUE(driver_->event_destroy(kDevice, event));
}

TEST_F(DriverConformance, CreatedStreamsAreStreamsOfTheirOwn) {
  const StreamId first = driver_->stream_create(kDevice).value();
  const StreamId second = driver_->stream_create(kDevice).value();
  EXPECT_GT(first.value(), 2U) << "0, 1 and 2 mean default streams";
  EXPECT_GT(second.value(), 2U);
  EXPECT_NE(first, second);
  const Result<std::uint64_t> identity = driver_->stream_identity(kDevice, first);
  if (identity) {  // before CUDA 12 the driver cannot tell
    EXPECT_NE(identity.value(), driver_->stream_identity(kDevice, second).value());
  }
  EXPECT_FALSE(driver_->stream_is_capturing(kDevice, first).value());
  const EventId event = driver_->event_create(kDevice).value();
  EXPECT_TRUE(driver_->event_record(kDevice, event, first));
  EXPECT_TRUE(driver_->stream_wait(kDevice, second, event));
  EXPECT_TRUE(driver_->stream_synchronize(kDevice, second));
  EXPECT_TRUE(driver_->event_query(kDevice, event)) << "the second stream waited for it";
  EXPECT_TRUE(driver_->stream_destroy(kDevice, first));
  EXPECT_TRUE(driver_->stream_destroy(kDevice, second));
  EXPECT_TRUE(driver_->event_query(kDevice, event)) << "an event outlives its stream";
  EXPECT_TRUE(driver_->event_destroy(kDevice, event));
}

TEST_F(DriverConformance, ADestroyedStreamsHandleComesBackAsAnotherStream) {
  const StreamId old = driver_->stream_create(kDevice).value();
  const Result<std::uint64_t> before = driver_->stream_identity(kDevice, old);
  EXPECT_TRUE(driver_->stream_destroy(kDevice, old));
  const StreamId next = driver_->stream_create(kDevice).value();
  EXPECT_EQ(next, old);
  if (before) {
    EXPECT_NE(driver_->stream_identity(kDevice, next).value(), before.value());
  }
  EXPECT_TRUE(driver_->stream_destroy(kDevice, next));
}

TEST_F(DriverConformance, MakingStreamsIsNotInTheLedger) {
  const DriverLedger before = driver_->ledger();
  EXPECT_TRUE(driver_->stream_destroy(kDevice, driver_->stream_create(kDevice).value()));
  EXPECT_EQ(driver_->ledger().total_calls(), before.total_calls());
  EXPECT_EQ(driver_->ledger().since(before).total_microseconds(), 0);
}

TEST_F(DriverConformance, RefusesDevicesThatAreNotThere) {
  const DeviceOrdinal beyond(driver_->device_count().value());
  EXPECT_FALSE(driver_->device_info(beyond));
  EXPECT_FALSE(driver_->memory_info(beyond));
  EXPECT_FALSE(driver_->create(beyond, unit_));
  EXPECT_FALSE(driver_->stream_create(beyond));
  EXPECT_FALSE(driver_->device_synchronize(DeviceOrdinal(-1)));
}

TEST_F(DriverConformance, LedgerCountsEveryCall) {
  const DriverLedger before = driver_->ledger();
  map(0, 1, create(1));
  const DriverLedger after = driver_->ledger();
  EXPECT_EQ(after.count(DriverCall::kCreate), before.count(DriverCall::kCreate) + 1);
  EXPECT_EQ(after.count(DriverCall::kMap), before.count(DriverCall::kMap) + 1);
  EXPECT_EQ(after.total_calls(), before.total_calls() + 2);
  EXPECT_EQ(after.since(before).count(DriverCall::kMap), 1U);
  EXPECT_EQ(after.since(before).total_calls(), 2U);
  EXPECT_GT(after.total_microseconds(), before.total_microseconds());
}

}  // namespace
}  // namespace nofrag
