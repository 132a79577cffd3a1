// Blocks as the caller sees them: sizes, addresses, look-up, limits, trim, events, the plain backend.
#include "device_fixture.h"
#include "range/address_space.h"

namespace nofrag {
namespace {

class BlocksTest : public DeviceFixture {};

TEST_F(BlocksTest, SizesAndAddressesAreMultiplesOf512) {
  start(256 * kMiB);
  for (const std::uint64_t size : {1U, 511U, 512U, 513U, 4097U, 2097151U, 2097153U, 20000001U}) {
    const VirtAddr block = allocate(Bytes(size));
    ASSERT_FALSE(block.is_null());
    const BlockInfo info = allocator_->find(block).value();
    EXPECT_EQ(block.value() % 512, 0U);
    EXPECT_EQ(info.size, round_up(Bytes(size), Bytes(512)));
    EXPECT_EQ(info.requested, Bytes(size));
  }
}

TEST_F(BlocksTest, SizeZeroIsTheDoorsBusiness) {
  start(64 * kMiB);
  EXPECT_EQ(allocator_->allocate(Bytes(0), kA).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allocator_->stats().failed_allocations, 0U);
}

TEST_F(BlocksTest, FindKnowsInteriorPointersAndNothingElse) {
  start(64 * kMiB);
  const VirtAddr block = allocate(3 * kMiB, kB);
  for (const std::uint64_t offset : {0U, 1U, 2097152U, 3145727U}) {
    const Result<BlockInfo> info = allocator_->find(block + Bytes(offset));
    ASSERT_TRUE(info.ok()) << offset;
    EXPECT_EQ(info.value().address, block);
    EXPECT_EQ(info.value().stream, kB);
  }
  EXPECT_EQ(allocator_->find(block + 3 * kMiB).code(), Errc::kUnknownPointer);
  EXPECT_TRUE(allocator_->owns(block + 3 * kMiB)) << "ours, though not live";
  EXPECT_EQ(allocator_->find(VirtAddr(std::uint64_t{4096})).code(), Errc::kUnknownPointer);
  EXPECT_FALSE(allocator_->owns(VirtAddr(std::uint64_t{4096})));
  free(block);
  EXPECT_EQ(allocator_->find(block).code(), Errc::kUnknownPointer);
}

TEST_F(BlocksTest, FreeTakesOnlyLiveBlocks) {
  start(64 * kMiB);
  const VirtAddr block = allocate(3 * kMiB);
  EXPECT_EQ(allocator_->free(block + Bytes(512)).code(), Errc::kUnknownPointer);
  EXPECT_EQ(allocator_->free(VirtAddr()).code(), Errc::kUnknownPointer);
  free(block);
  EXPECT_EQ(allocator_->free(block).code(), Errc::kUnknownPointer);
  EXPECT_EQ(allocator_->stats().frees, 1U);
}

TEST_F(BlocksTest, KeptAddressesOutliveTheAllocatorWithNothingInThem) {
  start(64 * kMiB);
  allocate(3 * kMiB);
  const VirtAddr block = allocate(20 * kMiB, kB);
  allocator_->keep_addresses();
  tags_.clear();
  allocator_.reset();
  EXPECT_EQ(sim_->leaks().reservations, 1U);
  EXPECT_EQ(sim_->leaks().reserved_bytes, 64 * kMiB * AddressSpace::kSpan);
  EXPECT_EQ(sim_->leaks().mappings + sim_->leaks().handles + sim_->leaks().events, 0U);
  auto created = DeviceAllocator::create(*recorder_, kDevice, Options());
  ASSERT_TRUE(created.ok());
  const auto next = std::move(created.value());
  next->share_addresses(64);
  EXPECT_TRUE(next->allocate(60 * kMiB, kA).ok());
  EXPECT_FALSE(next->owns(block));
  EXPECT_EQ(sim_->leaks().reserved_bytes,
            64 * kMiB * (AddressSpace::kSpan + AddressSpace::kFrugalSpan));
  EXPECT_EQ(sim_->violation_count(), 0U);
}

TEST_F(BlocksTest, TrimStopsAtWhatToKeep) {
  start(64 * kMiB);
  const VirtAddr blocks[] = {allocate(4 * kMiB), allocate(4 * kMiB), allocate(4 * kMiB)};
  const VirtAddr live = allocate(4 * kMiB);
  for (const VirtAddr block : blocks) {
    free(block);
  }
  EXPECT_EQ(allocator_->trim(16 * kMiB), Bytes(0));
  EXPECT_EQ(allocator_->trim(9 * kMiB), 8 * kMiB);
  EXPECT_EQ(allocator_->trim(), 4 * kMiB);
  EXPECT_EQ(allocator_->stats().reserved, 4 * kMiB);
  free(live);
}

TEST_F(BlocksTest, LoweringTheLimitTrimsWhatIsIdle) {
  start(64 * kMiB);
  const VirtAddr idle = allocate(12 * kMiB);
  const VirtAddr live = allocate(8 * kMiB);
  free(idle);
  allocator_->set_limit(10 * kMiB);
  EXPECT_LE(allocator_->stats().reserved, 10 * kMiB);
  allocator_->set_limit(4 * kMiB);
  EXPECT_EQ(allocator_->stats().reserved, 8 * kMiB) << "what lives stays";
  allocator_->set_memory_fraction(0.5);
  EXPECT_EQ(allocator_->stats().limit, 4 * kMiB) << "the lower of the two holds";
  allocator_->set_limit(kNoLimit);
  EXPECT_EQ(allocator_->stats().limit, 32 * kMiB);
  allocator_->set_memory_fraction(1.0);
  EXPECT_EQ(allocator_->stats().limit, kNoLimit);
  free(live);
}

TEST_F(BlocksTest, PeaksAreResetToTheirValues) {
  start(64 * kMiB);
  free(allocate(8 * kMiB));
  EXPECT_EQ(allocator_->stats().peak_live, 8 * kMiB);
  allocator_->trim();
  EXPECT_EQ(allocator_->stats().peak_reserved, 8 * kMiB);
  allocator_->reset_peaks();
  const DeviceStats s = allocator_->stats();
  EXPECT_EQ(s.peak_live, Bytes(0));
  EXPECT_EQ(s.peak_allocated, Bytes(0));
  EXPECT_EQ(s.peak_reserved, Bytes(0));
}

class Events final : public EventSink {
 public:
  void on_event(const AllocatorEvent& event) override { kinds.push_back(event.kind); }
  std::vector<EventKind> kinds;
};

TEST_F(BlocksTest, EventsTellTheStoryInOrder) {
  start(8 * kMiB);
  Events events;
  allocator_->set_event_sink(&events);
  const VirtAddr block = allocate(4 * kMiB, kA);
  EXPECT_EQ(
      events.kinds,
      (std::vector{EventKind::kCreate, EventKind::kMap, EventKind::kRung, EventKind::kAlloc}));
  events.kinds.clear();
  use_on(block, kA, kB);
  free(block);
  EXPECT_EQ(events.kinds, (std::vector{EventKind::kRecordStream, EventKind::kFreeRequested}));
  events.kinds.clear();
  allocator_->trim();
  EXPECT_EQ(
      events.kinds,
      (std::vector{
          EventKind::kTrim, EventKind::kFreeCompleted, EventKind::kUnmap, EventKind::kRelease}));
  events.kinds.clear();
  EXPECT_TRUE(allocate(9 * kMiB).is_null());
  EXPECT_EQ(events.kinds, (std::vector{EventKind::kRung, EventKind::kOutOfMemory}));
  allocator_->set_event_sink(nullptr);
}

TEST_F(BlocksTest, TheAllocatorGivesLiveBlocksBackWhenItGoes) {
  start(64 * kMiB);
  const VirtAddr a = allocate(4 * kMiB, kA);
  use_on(a, kA, kB);
  const VirtAddr b = allocate(4 * kMiB, kB);
  use_on(b, kB, kA);
  free(b);
  begin_pool({1, 1}, kC);
  allocate(4 * kMiB, kC);
}

TEST_F(BlocksTest, PlainBackendIsOneDriverAllocationABlock) {
  start(64 * kMiB, 4 * kMiB, false);
  EXPECT_FALSE(allocator_->uses_virtual_memory());
  const VirtAddr a = allocate(3 * kMiB, kA);
  EXPECT_EQ(recorder_->take(), (Calls{"event_record", "malloc 3"}));
  EXPECT_EQ(allocator_->find(a + kMiB).value().address, a);
  EXPECT_FALSE(allocator_->find(a + 3 * kMiB).ok());
  EXPECT_TRUE(allocator_->record_stream(a, kB).ok());
  allocator_->set_limit(4 * kMiB);
  EXPECT_EQ(allocator_->allocate(2 * kMiB, kA).code(), Errc::kLimit);
  free(a);
  EXPECT_EQ(recorder_->take(), (Calls{"free"}));
  EXPECT_FALSE(allocate(4 * kMiB).is_null());
  allocator_->set_limit(kNoLimit);
  EXPECT_EQ(allocator_->allocate(kGiB, kA).code(), Errc::kOutOfMemory);
  EXPECT_EQ(allocator_->stats().peak_reserved, 4 * kMiB) << "what was refused was never held";
}

TEST_F(BlocksTest, PlainBackendTriesARefusedFreeAgain) {
  start(8 * kMiB, 4 * kMiB, false);
  const VirtAddr a = allocate(8 * kMiB);
  sim_->fail_call(DriverCall::kFree, 1, Errc::kDriverFailure);
  free(a);
  EXPECT_EQ(allocator_->stats().reserved, 8 * kMiB);
  EXPECT_FALSE(allocate(8 * kMiB).is_null());
}

TEST(DeviceAllocatorCreation, VmmIsRefusedWhereThereIsNone) {
  SimulatedDeviceSpec spec;
  spec.info.virtual_memory = false;
  SimulatedDriver driver(spec);
  Options options;
  options.backend = Backend::kVmm;
  EXPECT_EQ(DeviceAllocator::create(driver, DeviceOrdinal(0), options).code(), Errc::kNotSupported);
  options.backend = Backend::kAuto;
  EXPECT_TRUE(DeviceAllocator::create(driver, DeviceOrdinal(0), options).ok());
  EXPECT_FALSE(DeviceAllocator::create(driver, DeviceOrdinal(1), options).ok());
}

}  // namespace
}  // namespace nofrag
