// What goes wrong around the allocator: streams that go away, captures at every rung, limits below what
// is held, sizes beyond 32 bits, memory that another process takes in the middle of an allocation.
#include <algorithm>

#include "device_fixture.h"
#include "forwarding_driver.h"

namespace nofrag {
namespace {

class TroubleTest : public DeviceFixture {};

// ---- streams that go away while their work runs

struct Departure {
  bool retired = false;         // retire_stream was called before
  bool own = false;             // the block's own stream goes, not the recorded one
  bool before_free = false;     // of the block
  bool handle_returns = false;  // the next stream made has the same handle
};

class StreamLeaves : public DeviceFixture, public testing::WithParamInterface<int> {};

TEST_P(StreamLeaves, ItsPendingMemoryServesInTheEnd) {
  const auto bits = static_cast<unsigned>(GetParam());
  const Departure how{(bits & 1U) != 0, (bits & 2U) != 0, (bits & 4U) != 0, (bits & 8U) != 0};
  start(16 * kMiB);
  const StreamId leaving = how.own ? kA : kB;
  const VirtAddr block = allocate(12 * kMiB, kA);
  use_on(block, kA, kB);
  const auto leave = [&] {
    if (how.retired) {
      ASSERT_TRUE(allocator_->retire_stream(leaving).ok());
    }
    sim_->destroy_stream(leaving);
  };
  if (how.before_free) {
    leave();
  }
  free(block);
  if (!how.before_free) {
    leave();
  }
  EXPECT_EQ(allocator_->stats().pending, 12 * kMiB) << "the old stream's work still runs";
  if (how.handle_returns) {
    const VirtAddr fresh = allocate(2 * kMiB, leaving);
    EXPECT_FALSE(fresh.is_null());
    free(fresh);
  }
  // The driver reports a violation if the old work is still on these bytes.
  EXPECT_FALSE(allocate(16 * kMiB, kC).is_null());
}

INSTANTIATE_TEST_SUITE_P(EveryWay, StreamLeaves, testing::Range(0, 16));

TEST_F(TroubleTest, ABlockOutlivesItsStream) {
  start(16 * kMiB);
  const VirtAddr block = allocate(16 * kMiB, kA);
  sim_->destroy_stream(kA);  // nobody said so
  EXPECT_TRUE(allocate(2 * kMiB, kA).is_null()) << "another stream, the memory is taken";
  free(block);
  EXPECT_FALSE(allocate(16 * kMiB, kB).is_null());
}

// ---- a capture while each rung is reached

class CaptureAtRung : public DeviceFixture, public testing::WithParamInterface<Rung> {
 protected:
  // The state in which a request on kA for what this returns ends at the rung.
  Bytes prepare(Rung rung) {
    start(16 * kMiB);
    switch (rung) {
      case Rung::kOwnFree:
        free(allocate(4 * kMiB));
        return 4 * kMiB;
      case Rung::kOwnMappable: {
        const VirtAddr blocks[] = {
            allocate(4 * kMiB), allocate(4 * kMiB), allocate(4 * kMiB), allocate(4 * kMiB)};
        free(blocks[0]);
        free(blocks[2]);
        return 8 * kMiB;
      }
      case Rung::kOtherPools: {
        begin_pool(kSecond, kB);
        const VirtAddr block = allocate(12 * kMiB, kB);
        EXPECT_TRUE(allocator_->end_allocate_to_pool(kSecond).ok());
        free(block);
        EXPECT_TRUE(allocator_->release_pool(kSecond).ok());
        return 16 * kMiB;
      }
      case Rung::kDeviceWait:
        free(allocate(16 * kMiB, kB));
        return 16 * kMiB;
      case Rung::kPressureCallbacks: {
        const VirtAddr kept = allocate(16 * kMiB);
        allocator_->add_pressure_callback([this, kept](DeviceOrdinal, Bytes) {
          if (relieved_) {
            return false;
          }
          relieved_ = true;
          free(kept);
          return true;
        });
        return 8 * kMiB;
      }
      case Rung::kFailed:
        allocate(14 * kMiB);
        return 4 * kMiB;
      default:
        return 4 * kMiB;
    }
  }

  bool relieved_ = false;  // the pressure callback has done its part
};

TEST_P(CaptureAtRung, TheRungIsReachedWithoutOne) {
  const Bytes size = prepare(GetParam());
  const std::uint64_t before = rung(GetParam());
  allocate(size, kA);
  EXPECT_EQ(rung(GetParam()), before + 1);
}

TEST_P(CaptureAtRung, TheCaptureStaysValid) {
  const Bytes size = prepare(GetParam());
  begin_pool(kFirst, kC);
  sim_->begin_capture(kC);
  const VirtAddr beside = allocate(size, kA);
  const Result<VirtAddr> captured = allocator_->allocate(size, kC);
  if (captured.ok()) {
    EXPECT_EQ(pool_of(captured.value()), kFirst);
    EXPECT_TRUE(allocator_->free(captured.value()).ok());
  }
  if (!beside.is_null()) {
    free(beside);
  }
  EXPECT_TRUE(sim_->end_capture(kC)) << "the capture was invalidated";
  EXPECT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  EXPECT_TRUE(allocator_->release_pool(kFirst).ok());
  EXPECT_EQ(allocate(size, kA).is_null(), GetParam() == Rung::kFailed) << "as if nothing had been";
}

INSTANTIATE_TEST_SUITE_P(Rungs,
                         CaptureAtRung,
                         testing::Values(Rung::kOwnFree,
                                         Rung::kOwnMappable,
                                         Rung::kGrow,
                                         Rung::kOtherPools,
                                         Rung::kDeviceWait,
                                         Rung::kPressureCallbacks,
                                         Rung::kFailed));

// ---- limits below what is held

TEST_F(TroubleTest, ALimitBelowWhatLivesHoldsAgainOnceThatIsFreed) {
  start(64 * kMiB);
  const VirtAddr blocks[] = {allocate(12 * kMiB), allocate(12 * kMiB), allocate(12 * kMiB)};
  allocator_->set_limit(16 * kMiB);
  EXPECT_EQ(allocator_->stats().live, 36 * kMiB);
  EXPECT_EQ(allocator_->allocate(16 * kMiB, kA).code(), Errc::kLimit);
  EXPECT_EQ(allocator_->allocate(2 * kMiB, kB).code(), Errc::kLimit);
  free(blocks[1]);  // 24 MiB live: still above
  EXPECT_EQ(allocator_->allocate(16 * kMiB, kA).code(), Errc::kLimit);
  free(blocks[0]);
  EXPECT_FALSE(allocate(4 * kMiB, kB).is_null()) << "12 MiB live of 16";
  free(blocks[2]);
  allocator_->trim(16 * kMiB);
  EXPECT_LE(allocator_->stats().reserved, 16 * kMiB);
}

TEST_F(TroubleTest, ALimitBelowPendingMemoryTakesItOnceItIsDone) {
  start(64 * kMiB);
  const VirtAddr block = allocate(24 * kMiB, kA);
  use_on(block, kA, kB);
  free(block);
  allocator_->set_limit(8 * kMiB);
  sim_->complete_all();
  allocator_->set_limit(8 * kMiB);
  EXPECT_LE(allocator_->stats().reserved, 8 * kMiB);
  EXPECT_FALSE(allocate(8 * kMiB, kC).is_null());
  EXPECT_EQ(allocator_->allocate(2 * kMiB, kC).code(), Errc::kLimit);
}

TEST_F(TroubleTest, ALimitLoweredDuringACaptureBreaksNothing) {
  start(64 * kMiB);
  free(allocate(16 * kMiB, kA));
  begin_pool(kFirst, kC);
  sim_->begin_capture(kC);
  const VirtAddr captured = allocator_->allocate(12 * kMiB, kC).value();
  allocator_->set_limit(8 * kMiB);
  EXPECT_FALSE(allocator_->allocate(8 * kMiB, kC).ok());
  EXPECT_TRUE(sim_->end_capture(kC));
  EXPECT_TRUE(allocator_->end_allocate_to_pool(kFirst).ok());
  EXPECT_TRUE(sim_->write(kB, captured, 12 * kMiB, 77).ok()) << "the graph's memory is still there";
  EXPECT_TRUE(allocator_->free(captured).ok());
  EXPECT_TRUE(allocator_->release_pool(kFirst).ok());
  allocator_->set_limit(8 * kMiB);
  EXPECT_LE(allocator_->stats().reserved, 8 * kMiB);
  EXPECT_FALSE(allocate(8 * kMiB, kA).is_null());
}

// ---- sizes beyond 32 bits

TEST_F(TroubleTest, SizesBeyond32BitsAreServed) {
  start(80 * kGiB, 16 * kMiB);
  constexpr std::uint64_t k31 = std::uint64_t{1} << 31;
  for (const std::uint64_t size : {k31 - 1, k31, k31 + 1, 2 * k31 - 1, 2 * k31 + 513, 20 * k31}) {
    const VirtAddr block = allocate(Bytes(size));
    ASSERT_FALSE(block.is_null()) << size;
    const BlockInfo info = allocator_->find(block + Bytes(size - 1)).value();
    EXPECT_EQ(info.requested, Bytes(size));
    EXPECT_EQ(info.address, block);
    free(block);
  }
}

TEST_F(TroubleTest, ALargeRequestIsMadeOfScatteredMemory) {
  start(16 * kGiB, 16 * kMiB);
  std::vector<VirtAddr> blocks(16);
  for (VirtAddr& block : blocks) {
    block = allocate(kGiB);
    ASSERT_FALSE(block.is_null());
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    free(blocks[i]);
  }
  EXPECT_FALSE(allocate(8 * kGiB).is_null()) << "eight holes of 1 GiB, nothing else";
  EXPECT_TRUE(allocate(Bytes(512)).is_null());
}

TEST_F(TroubleTest, RequestsThatNoDeviceHasAreRefusedCleanly) {
  start(64 * kMiB);
  const VirtAddr kept = allocate(4 * kMiB);
  const DeviceStats before = allocator_->stats();
  for (const Bytes size : {kGiB * 1024,
                           kGiB * 1024 * 100,
                           Bytes(std::uint64_t{1} << 48),
                           Bytes(std::uint64_t{1} << 63),
                           Bytes(UINT64_MAX - 511),
                           Bytes(UINT64_MAX - 1)}) {
    EXPECT_EQ(allocator_->allocate(size, kA).code(), Errc::kOutOfMemory) << size.count();
    EXPECT_EQ(allocator_->allocate(size, kB).code(), Errc::kOutOfMemory) << size.count();
  }
  EXPECT_EQ(allocator_->stats().reserved, before.reserved);
  EXPECT_EQ(allocator_->stats().live, before.live);
  EXPECT_FALSE(allocate(60 * kMiB).is_null());
  free(kept);
}

// ---- memory that another process takes between two driver calls of ours

// Takes memory right before the n-th call.
class ThievingDriver final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  // 1 = the next call. Takes at most what is free then.
  void take_before(std::uint64_t nth, Bytes size) {
    countdown_ = nth;
    size_ = size;
  }
  [[nodiscard]] bool has_taken() const { return countdown_ == 0; }

 protected:
  void before(DriverCall /*call*/) override {
    if (countdown_ != 0 && --countdown_ == 0) {
      const Bytes free = target().memory_info(DeviceOrdinal(0)).value().free;
      target().set_memory_of_others(DeviceOrdinal(0), std::min(free, size_));
    }
  }

 private:
  std::uint64_t countdown_ = 0;
  Bytes size_;
};

// 64 MiB: 32 live in pieces, 16 free in two holes, 16 never taken from the driver.
class Robbery {
 public:
  explicit Robbery(Bytes handle) : sim_(spec()), driver_(sim_) {
    sim_.set_completion(Completion::kByHand);
    Options options;
    options.thread_caches = false;
    options.handle_size = handle;
    allocator_ = std::move(DeviceAllocator::create(driver_, kDevice, options).value());
    for (int i = 0; i < 4; ++i) {
      keep(4 * kMiB);
    }
    const VirtAddr hole = allocator_->allocate(8 * kMiB, kStream).value();
    keep(8 * kMiB);
    const VirtAddr other = allocator_->allocate(8 * kMiB, kStream).value();
    keep(8 * kMiB);
    EXPECT_TRUE(allocator_->free(hole).ok());
    EXPECT_TRUE(allocator_->free(other).ok());
  }

  // False once the request makes fewer calls than that.
  bool request(Bytes size, std::uint64_t nth, Bytes taken) {
    const DeviceStats before = allocator_->stats();
    driver_.take_before(nth, taken);
    const Result<VirtAddr> got = allocator_->allocate(size, kStream);
    const bool robbed = driver_.has_taken();
    allocator_->check();
    if (got.ok()) {
      EXPECT_TRUE(allocator_->free(got.value()).ok());
    } else {
      EXPECT_TRUE(robbed) << "refused although nothing was taken";
      EXPECT_EQ(got.code(), Errc::kOutOfMemory) << nth;
      EXPECT_EQ(allocator_->stats().live, before.live);
      EXPECT_EQ(allocator_->stats().allocated, before.allocated);
    }
    driver_.take_before(0, Bytes(0));
    // The other process ends: what was possible before is again.
    sim_.set_memory_of_others(kDevice, Bytes(0));
    const Result<VirtAddr> again = allocator_->allocate(size, kStream);
    EXPECT_TRUE(again.ok()) << "lost for good after the theft at call " << nth;
    for (const auto& [address, block] : kept_) {
      EXPECT_TRUE(sim_.check_contents(VirtAddr(address), block.first, block.second).ok()) << nth;
    }
    allocator_->check();
    allocator_.reset();
    EXPECT_TRUE(sim_.leaks().none()) << nth;
    EXPECT_EQ(sim_.violation_count(), 0U) << nth;
    return robbed;
  }

 private:
  static constexpr DeviceOrdinal kDevice{0};
  static constexpr StreamId kStream{0x100};

  static SimulatedDeviceSpec spec() {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = 64 * kMiB;
    return spec;
  }
  void keep(Bytes size) {
    const VirtAddr address = allocator_->allocate(size, kStream).value();
    EXPECT_TRUE(sim_.write(kStream, address, size, ++tag_).ok());
    kept_[address.value()] = {size, tag_};
  }

  SimulatedDriver sim_;
  ThievingDriver driver_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::map<std::uint64_t, std::pair<Bytes, std::uint64_t>> kept_;
  std::uint64_t tag_ = 0;
};

TEST(Theft, AtEveryCallOfAnAllocationThatComposes) {
  for (const Bytes handle : {2 * kMiB, 4 * kMiB, 8 * kMiB}) {
    for (const Bytes size : {12 * kMiB, 24 * kMiB}) {
      for (const Bytes taken : {2 * kMiB, 8 * kMiB, 64 * kMiB}) {
        std::uint64_t calls = 0;
        while (Robbery(handle).request(size, calls + 1, taken) && !testing::Test::HasFailure()) {
          ++calls;
        }
        EXPECT_GT(calls, 2U) << "the request no longer needs the driver";
      }
    }
  }
}

}  // namespace
}  // namespace nofrag
