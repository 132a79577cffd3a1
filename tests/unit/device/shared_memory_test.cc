// Memory for others: parts, descriptors, imports, access for other devices.
#include <fcntl.h>
#include <unistd.h>

#include "device_fixture.h"

namespace nofrag {
namespace {

class SharedMemoryTest : public testing::Test {
 protected:
  SharedMemoryTest() {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = 128 * kMiB;
    sim_ = std::make_unique<SimulatedDriver>(std::vector<SimulatedDeviceSpec>{spec, spec});
    options_.handle_size = 4 * kMiB;
    owner_ = std::move(DeviceAllocator::create(*sim_, DeviceOrdinal(0), options_).value());
    user_ = std::move(DeviceAllocator::create(*sim_, DeviceOrdinal(1), options_).value());
  }
  ~SharedMemoryTest() override {
    sim_->clear_faults();
    owner_->check();
    owner_.reset();
    user_.reset();
    EXPECT_TRUE(sim_->leaks().none());
    EXPECT_EQ(sim_->violation_count(), 0U)
        << (sim_->violations().empty() ? "" : sim_->violations().front());
  }

  struct Exported {
    std::vector<ImportedPart> parts;
    Bytes offset;
  };
  Exported export_all(VirtAddr block) {
    Exported exported;
    const std::vector<MemoryPart> parts = owner_->parts_of(block).value();
    for (const MemoryPart& part : parts) {
      const Result<int> descriptor = owner_->export_part(block, part.handle);
      EXPECT_TRUE(descriptor.ok());
      exported.parts.push_back({descriptor.value(), part.size});
    }
    exported.offset = block - parts.front().address;
    return exported;
  }
  static void close_all(const Exported& exported) {
    for (const ImportedPart& part : exported.parts) {
      ::close(part.descriptor);
    }
  }

  Options options_;
  std::unique_ptr<SimulatedDriver> sim_;
  std::unique_ptr<DeviceAllocator> owner_;
  std::unique_ptr<DeviceAllocator> user_;
  const StreamId stream_{0x100};
};

TEST_F(SharedMemoryTest, AnImportIsTheSameMemory) {
  const VirtAddr first = owner_->allocate(kMiB, stream_).value();
  const VirtAddr block = owner_->allocate(10 * kMiB, stream_).value();
  ASSERT_TRUE(sim_->write(stream_, block, 10 * kMiB, 77).ok());
  const Exported exported = export_all(block);
  EXPECT_GT(exported.parts.size(), 1U);
  const Result<VirtAddr> there = owner_->import(exported.parts);
  close_all(exported);
  ASSERT_TRUE(there.ok());
  EXPECT_TRUE(sim_->check_contents(there.value() + exported.offset, 10 * kMiB, 77).ok());
  EXPECT_FALSE(owner_->owns(there.value()));
  sim_->complete_all();
  ASSERT_TRUE(sim_->write(stream_, there.value() + exported.offset, 10 * kMiB, 78).ok());
  EXPECT_TRUE(sim_->check_contents(block, 10 * kMiB, 78).ok());
  EXPECT_EQ(owner_->close_import(there.value() + kMiB).code(), Errc::kUnknownPointer);
  EXPECT_TRUE(owner_->close_import(there.value()).ok());
  EXPECT_EQ(owner_->close_import(there.value()).code(), Errc::kUnknownPointer);
  EXPECT_TRUE(owner_->free(block).ok());
  EXPECT_TRUE(owner_->free(first).ok());
}

TEST_F(SharedMemoryTest, AnImportOutlivesItsOwnersFree) {
  const VirtAddr block = owner_->allocate(4 * kMiB, stream_).value();
  ASSERT_TRUE(sim_->write(stream_, block, 4 * kMiB, 5).ok());
  const Exported exported = export_all(block);
  const VirtAddr there = owner_->import(exported.parts).value();
  close_all(exported);
  EXPECT_TRUE(owner_->free(block).ok());
  sim_->complete_all();
  owner_->trim();
  EXPECT_EQ(owner_->stats().reserved, Bytes(0));
  EXPECT_EQ(sim_->physical_in_use(DeviceOrdinal(0)), 4 * kMiB) << "the import holds it";
  EXPECT_TRUE(sim_->check_contents(there, 4 * kMiB, 5).ok());
  EXPECT_TRUE(owner_->close_import(there).ok());
  EXPECT_EQ(sim_->physical_in_use(DeviceOrdinal(0)), Bytes(0));
}

TEST_F(SharedMemoryTest, WrongPartsAreRefusedAndLeaveNothing) {
  const VirtAddr block = owner_->allocate(4 * kMiB, stream_).value();
  const Exported exported = export_all(block);
  const ImportedPart good = exported.parts.front();
  EXPECT_EQ(owner_->import({}).code(), Errc::kInvalidArgument);
  const std::vector<ImportedPart> odd{{good.descriptor, good.size - Bytes(512)}};
  EXPECT_EQ(owner_->import(odd).code(), Errc::kInvalidArgument);
  const std::vector<ImportedPart> wrong_size{{good.descriptor, 2 * good.size}};
  EXPECT_FALSE(owner_->import(wrong_size).ok());
  const std::vector<ImportedPart> second_bad{good, {::open("/dev/null", O_RDONLY), good.size}};
  EXPECT_FALSE(owner_->import(second_bad).ok());
  ::close(second_bad[1].descriptor);
  EXPECT_EQ(owner_->export_part(block, 12345).code(), Errc::kInvalidArgument);
  EXPECT_EQ(owner_->export_part(VirtAddr(0x10), 1).code(), Errc::kUnknownPointer);
  EXPECT_EQ(owner_->parts_of(VirtAddr(0x10)).code(), Errc::kUnknownPointer);
  close_all(exported);
  EXPECT_TRUE(owner_->free(block).ok());
}

// The wait that an unmapping takes would end a capture.
TEST_F(SharedMemoryTest, AnImportIsNotClosedWhileAStreamIsCaptured) {
  const VirtAddr block = owner_->allocate(4 * kMiB, stream_).value();
  const VirtAddr freed = owner_->allocate(4 * kMiB, stream_).value();
  EXPECT_TRUE(owner_->free(freed).ok());  // something of the stream's is still to be known
  const Exported exported = export_all(block);
  const VirtAddr there = owner_->import(exported.parts).value();
  close_all(exported);
  sim_->begin_capture(stream_);
  EXPECT_EQ(owner_->close_import(there).code(), Errc::kCapturing);
  EXPECT_FALSE(sim_->capture_invalidated(stream_));
  EXPECT_TRUE(sim_->end_capture(stream_));
  // Of a stream that was never seen only the pool that is filled tells.
  const StreamId unseen(0x900);
  ASSERT_TRUE(owner_->begin_allocate_to_pool(PoolKey{1, 1}, [](StreamId) { return false; }).ok());
  sim_->begin_capture(unseen);
  EXPECT_EQ(owner_->close_import(there).code(), Errc::kCapturing);
  EXPECT_TRUE(sim_->end_capture(unseen));
  ASSERT_TRUE(owner_->end_allocate_to_pool(PoolKey{1, 1}).ok());
  ASSERT_TRUE(owner_->release_pool(PoolKey{1, 1}).ok());
  EXPECT_TRUE(owner_->close_import(there).ok());
  EXPECT_TRUE(owner_->free(block).ok());
}

TEST_F(SharedMemoryTest, AnImportThatIsHalfUndoneGoesOnWhereItStopped) {
  const VirtAddr block = owner_->allocate(14 * kMiB, stream_).value();
  const Exported exported = export_all(block);
  ASSERT_GE(exported.parts.size(), 3U);
  const SimulatedLeaks before = sim_->leaks();
  const VirtAddr there = owner_->import(exported.parts).value();
  close_all(exported);
  for (const std::uint64_t nth : {2U, 1U}) {
    sim_->fail_call(DriverCall::kUnmap, nth, Errc::kDriverFailure);
    EXPECT_EQ(owner_->close_import(there).code(), Errc::kDriverFailure);
  }
  EXPECT_EQ(sim_->leaks().mappings, before.mappings + exported.parts.size() - 1);
  EXPECT_TRUE(owner_->close_import(there).ok());
  EXPECT_EQ(sim_->leaks().mappings, before.mappings);
  EXPECT_EQ(sim_->leaks().reservations, before.reservations);
  EXPECT_EQ(owner_->close_import(there).code(), Errc::kUnknownPointer);
  EXPECT_TRUE(owner_->free(block).ok());
}

// Every driver call of an import fails once; whatever it was, nothing stays behind.
TEST_F(SharedMemoryTest, AnImportIsAllOrNothing) {
  const VirtAddr block = owner_->allocate(14 * kMiB, stream_).value();
  const Exported exported = export_all(block);
  const SimulatedLeaks before = sim_->leaks();
  std::uint64_t nth = 1;
  for (;; ++nth) {
    sim_->fail_any_call(nth, Errc::kDriverFailure);
    const Result<VirtAddr> there = owner_->import(exported.parts);
    sim_->clear_faults();
    if (there.ok()) {
      EXPECT_TRUE(owner_->close_import(there.value()).ok());
      if (sim_->leaks().mappings == before.mappings) {
        break;
      }
    }
    ASSERT_EQ(sim_->leaks().mappings, before.mappings) << "call " << nth;
    ASSERT_EQ(sim_->leaks().reservations, before.reservations) << "call " << nth;
    if (nth > 40) {
      break;
    }
  }
  EXPECT_GT(nth, 4U);
  close_all(exported);
  EXPECT_TRUE(owner_->free(block).ok());
}

TEST_F(SharedMemoryTest, APeerMayUseWhatIsMappedAndWhatWillBe) {
  const VirtAddr before = owner_->allocate(4 * kMiB, stream_).value();
  ASSERT_TRUE(owner_->grant_access(DeviceOrdinal(1)).ok());
  ASSERT_TRUE(owner_->grant_access(DeviceOrdinal(1)).ok()) << "twice is no fault";
  const VirtAddr after = owner_->allocate(40 * kMiB, stream_).value();
  for (const VirtAddr block : {before, after}) {
    EXPECT_TRUE(sim_->write(stream_, block, 4 * kMiB, 9, DeviceOrdinal(1)).ok());
    sim_->complete_all();
    EXPECT_EQ(sim_->read_tag(block).value(), 9U);
  }
  EXPECT_TRUE(owner_->free(before).ok());
  EXPECT_TRUE(owner_->free(after).ok());
}

TEST_F(SharedMemoryTest, ARefusedGrantCanBeAskedForAgain) {
  const VirtAddr block = owner_->allocate(4 * kMiB, stream_).value();
  sim_->fail_call(DriverCall::kSetAccess, 1, Errc::kDriverFailure);
  EXPECT_FALSE(owner_->grant_access(DeviceOrdinal(1)).ok());
  EXPECT_TRUE(owner_->grant_access(DeviceOrdinal(1)).ok());
  // A mapping whose peer cannot be let in is undone, and the request fails or goes elsewhere.
  sim_->fail_call(DriverCall::kSetAccess, 2, Errc::kDriverFailure);
  const Result<VirtAddr> more = owner_->allocate(8 * kMiB, stream_);
  if (more.ok()) {
    EXPECT_TRUE(sim_->write(stream_, more.value(), 8 * kMiB, 3, DeviceOrdinal(1)).ok());
    sim_->complete_all();
    EXPECT_TRUE(owner_->free(more.value()).ok());
  }
  EXPECT_TRUE(owner_->free(block).ok());
}

}  // namespace
}  // namespace nofrag
