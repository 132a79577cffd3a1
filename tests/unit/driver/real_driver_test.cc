// What the real driver does around the calls of libcuda, on a libcuda in software.
#include "driver/real/real_driver.h"

#include <dlfcn.h>

#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "fake_libcuda.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice0{0};
constexpr DeviceOrdinal kDevice1{1};
constexpr Bytes kUnit = 2 * kMiB;

void* lookup_without_map(void* library, const char* symbol) {
  return std::strcmp(symbol, "cuMemMap") == 0 ? nullptr : dlsym(library, symbol);
}

class RealDriverTest : public testing::Test {
 protected:
  RealDriverTest() {
    void* library = dlopen(NOFRAG_FAKE_LIBCUDA, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();
    const auto get = reinterpret_cast<FakeCudaState>(dlsym(library, kFakeCudaStateSymbol));
    cuda_ = get();
    *cuda_ = FakeCuda();
    options_.library = NOFRAG_FAKE_LIBCUDA;
  }

  void open() {
    std::string error;
    Result<std::unique_ptr<RealDriver>> opened = RealDriver::open(options_, &error);
    ASSERT_TRUE(opened) << error;
    driver_ = std::move(opened.value());
  }
  Error open_fails(std::string* error) { return RealDriver::open(options_, error).error(); }

  FakeCuda* cuda_ = nullptr;
  RealDriverOptions options_;
  std::unique_ptr<RealDriver> driver_;
};

TEST_F(RealDriverTest, MissingLibraryNamesItself) {
  options_.library = "libcuda-that-is-not-there.so.1";
  std::string error;
  EXPECT_EQ(open_fails(&error).code, Errc::kNotInitialized);
  EXPECT_NE(error.find("libcuda-that-is-not-there.so.1"), std::string::npos) << error;
}

TEST_F(RealDriverTest, MissingSymbolNamesItself) {
  options_.lookup = &lookup_without_map;
  std::string error;
  EXPECT_EQ(open_fails(&error).code, Errc::kNotInitialized);
  EXPECT_NE(error.find("no symbol cuMemMap"), std::string::npos) << error;
}

TEST_F(RealDriverTest, TooOldDriverNamesItsVersion) {
  cuda_->driver_version = 9020;
  std::string error;
  EXPECT_EQ(open_fails(&error).code, Errc::kNotSupported);
  EXPECT_NE(error.find("CUDA 9.2"), std::string::npos) << error;
}

TEST_F(RealDriverTest, NoDeviceNamesTheDriversError) {
  cuda_->init_result = 100;
  std::string error;
  const Error failure = open_fails(&error);
  EXPECT_EQ(failure.code, Errc::kNotInitialized);
  EXPECT_EQ(failure.driver_code, 100);
  EXPECT_NE(error.find("CUDA_ERROR_NO_DEVICE (100)"), std::string::npos) << error;

  cuda_->init_result = 0;
  cuda_->devices = 0;
  EXPECT_EQ(open_fails(&error).driver_code, 100);
}

TEST_F(RealDriverTest, InfoNeedsNoContext) {
  open();
  const DeviceInfo info = driver_->device_info(kDevice1).value();
  EXPECT_EQ(info.name, "Fake GPU");
  EXPECT_EQ(info.total_memory, 8 * kGiB);
  EXPECT_EQ(info.granularity, kUnit);
  EXPECT_TRUE(info.virtual_memory && info.shareable_fd && info.rdma_with_vmm);
  EXPECT_FALSE(info.shareable_fabric || info.compression || info.host_numa_vmm)
      << "an attribute that the driver does not know counts as absent";
  EXPECT_FALSE(info.rdma_in_use) << "not tried yet";
  EXPECT_EQ(cuda_->retains, 0);
  EXPECT_EQ(cuda_->pushes, 0);
}

TEST_F(RealDriverTest, NoVirtualMemoryMeansNoGranularity) {
  cuda_->virtual_memory = false;
  open();
  const DeviceInfo info = driver_->device_info(kDevice0).value();
  EXPECT_FALSE(info.virtual_memory);
  EXPECT_TRUE(info.granularity.is_zero());
}

TEST_F(RealDriverTest, ThePrimaryContextIsNotPushedWhereItIsCurrent) {
  open();
  cuda_->current_device = 1;
  EXPECT_TRUE(driver_->malloc(kDevice1, kUnit));
  EXPECT_EQ(cuda_->retains, 1);
  EXPECT_EQ(cuda_->pushes, 0);
}

// A green context, say: events and waits must still mean the whole device.
TEST_F(RealDriverTest, AnotherContextOfTheDeviceIsNotThePrimaryOne) {
  open();
  cuda_->current_device = 1;
  cuda_->own_context = true;
  EXPECT_TRUE(driver_->event_create(kDevice1));
  EXPECT_EQ(cuda_->pushes, 1);
  EXPECT_TRUE(driver_->device_synchronize(kDevice1));
  EXPECT_EQ(cuda_->synchronized, (std::vector<std::string>{"primary", "own"}));
  EXPECT_EQ(cuda_->pops, cuda_->pushes);
}

TEST_F(RealDriverTest, PrimaryContextIsPushedAndPopped) {
  open();
  cuda_->current_device = 0;
  EXPECT_TRUE(driver_->malloc(kDevice1, kUnit));
  EXPECT_TRUE(driver_->memory_info(kDevice1));
  EXPECT_EQ(cuda_->retains, 1) << "kept for the next call";
  EXPECT_EQ(cuda_->pushes, 2);
  EXPECT_EQ(cuda_->pops, 2);
  cuda_->fail["cuMemAlloc"] = 2;
  EXPECT_FALSE(driver_->malloc(kDevice1, kUnit));
  EXPECT_EQ(cuda_->pops, cuda_->pushes) << "a failing call pops, too";
  EXPECT_TRUE(cuda_->wrong_context.empty());
  driver_.reset();
  EXPECT_EQ(cuda_->releases, 1);
}

TEST_F(RealDriverTest, MemoryAndMappingsNeedNoContext) {
  open();
  const HandleId handle = driver_->create(kDevice1, kUnit).value();
  const VirtAddr range = driver_->reserve(kUnit, Bytes(0)).value();
  EXPECT_TRUE(driver_->map(range, kUnit, handle));
  EXPECT_TRUE(driver_->set_access(range, kUnit, kDevice1));
  EXPECT_TRUE(driver_->unmap(range, kUnit));
  EXPECT_TRUE(driver_->release(handle));
  EXPECT_TRUE(driver_->free_range(range, kUnit));
  EXPECT_TRUE(driver_->stream_is_capturing(kDevice1, StreamId(0x5000)));
  EXPECT_EQ(cuda_->retains, 0) << "no context was made, which would take device memory";
  EXPECT_TRUE(driver_->stream_is_capturing(kDevice1, StreamId(0)));
  EXPECT_EQ(cuda_->retains, 1) << "stream 0 is the current context's";
  EXPECT_EQ(cuda_->pops, cuda_->pushes);
}

TEST_F(RealDriverTest, DevicesThatAreNotThereAreRefused) {
  open();
  for (const int number : {-1, 2, 1000}) {
    const DeviceOrdinal device(number);
    EXPECT_EQ(driver_->device_info(device).error().driver_code, 101);
    EXPECT_EQ(driver_->create(device, kUnit).error().driver_code, 101);
    EXPECT_EQ(driver_->set_access(VirtAddr(), kUnit, device).error().driver_code, 101);
    EXPECT_EQ(driver_->malloc(device, kUnit).error().driver_code, 101);
    EXPECT_EQ(driver_->stream_is_capturing(device, StreamId(0)).error().driver_code, 101);
    EXPECT_EQ(driver_->device_synchronize(device).error().driver_code, 101);
    EXPECT_EQ(driver_->stream_create(device).error().driver_code, 101);
    EXPECT_EQ(driver_->stream_destroy(device, StreamId(16)).error().driver_code, 101);
  }
  EXPECT_TRUE(cuda_->calls.empty());
}

// Every call of the seam once, so that rules about all calls can be checked.
void call_everything(RealDriver& driver) {
  const HandleId handle = driver.create(kDevice0, kUnit).value();
  const VirtAddr range = driver.reserve(kUnit, Bytes(0)).value();
  ASSERT_TRUE(driver.map(range, kUnit, handle));
  ASSERT_TRUE(driver.set_access(range, kUnit, kDevice0));
  ASSERT_TRUE(driver.unmap(range, kUnit));
  ASSERT_TRUE(driver.release(handle));
  ASSERT_TRUE(driver.free_range(range, kUnit));
  ASSERT_TRUE(driver.free(kDevice0, driver.malloc(kDevice0, kUnit).value()));
  const EventId event = driver.event_create(kDevice0).value();
  ASSERT_TRUE(driver.event_record(kDevice0, event, StreamId(0)));
  ASSERT_TRUE(driver.event_query(kDevice0, event));
  ASSERT_TRUE(driver.event_synchronize(kDevice0, event));
  ASSERT_TRUE(driver.stream_wait(kDevice0, StreamId(0), event));
  ASSERT_FALSE(driver.stream_is_capturing(kDevice0, StreamId(0)).value());
  const StreamId stream = driver.stream_create(kDevice0).value();
  ASSERT_TRUE(driver.stream_synchronize(kDevice0, stream));
  ASSERT_TRUE(driver.stream_destroy(kDevice0, stream));
  ASSERT_TRUE(driver.device_synchronize(kDevice0));
  ASSERT_TRUE(driver.event_destroy(kDevice0, event));
  ASSERT_TRUE(driver.memory_info(kDevice0));
}

TEST_F(RealDriverTest, UnsafeCallsRunInRelaxedCaptureMode) {
  open();
  call_everything(*driver_);
  const std::map<std::string, int> harmless = {
      {"cuEventRecord", 1}, {"cuStreamIsCapturing", 1}, {"cuStreamWaitEvent", 1}};
  EXPECT_EQ(cuda_->unrelaxed, harmless);
  EXPECT_EQ(cuda_->mode_changes % 2, 0) << "the thread's mode is given back";
  EXPECT_TRUE(cuda_->wrong_context.empty());
}

TEST_F(RealDriverTest, LedgerHasEveryCallOnce) {
  options_.rdma = false;
  open();
  call_everything(*driver_);
  const DriverLedger ledger = driver_->ledger();
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    EXPECT_EQ(ledger.calls[i], 1U) << to_string(static_cast<DriverCall>(i));
    const bool timed = static_cast<DriverCall>(i) != DriverCall::kStreamCaptureQuery;
    EXPECT_EQ(ledger.microseconds[i] > 0.0, timed) << to_string(static_cast<DriverCall>(i));
  }
}

TEST_F(RealDriverTest, RdmaFlagIsAskedForWhereItWorks) {
  open();
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  EXPECT_TRUE(cuda_->rdma_flag);
  EXPECT_TRUE(driver_->device_info(kDevice0).value().rdma_in_use);
  EXPECT_EQ(cuda_->handles, 1) << "the trial left nothing behind";
  EXPECT_EQ(cuda_->mappings, 0);
  EXPECT_EQ(cuda_->reservations, 0);
}

TEST_F(RealDriverTest, RdmaFlagRefusedByCreateIsDropped) {
  cuda_->rdma_create_result = 801;
  open();
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  EXPECT_FALSE(cuda_->rdma_flag);
  EXPECT_FALSE(driver_->device_info(kDevice0).value().rdma_in_use);
  cuda_->calls.clear();
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  EXPECT_EQ(cuda_->calls.size(), 1U) << "remembered, not tried again";
}

TEST_F(RealDriverTest, RdmaFlagRefusedBySetAccessIsDropped) {
  cuda_->rdma_access_result = 801;
  open();
  const HandleId handle = driver_->create(kDevice0, kUnit).value();
  EXPECT_FALSE(cuda_->rdma_flag);
  const VirtAddr range = driver_->reserve(kUnit, Bytes(0)).value();
  EXPECT_TRUE(driver_->map(range, kUnit, handle));
  EXPECT_TRUE(driver_->set_access(range, kUnit, kDevice0));
}

TEST_F(RealDriverTest, RdmaFlagRefusedLaterIsDropped) {
  open();
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  cuda_->rdma_create_result = 801;
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  EXPECT_FALSE(driver_->device_info(kDevice0).value().rdma_in_use);
}

TEST_F(RealDriverTest, RdmaTrialWithoutMemoryDecidesNothing) {
  open();
  cuda_->fail["cuMemCreate"] = 2;
  EXPECT_EQ(driver_->create(kDevice0, kUnit).code(), Errc::kOutOfMemory);
  cuda_->fail.clear();
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  EXPECT_TRUE(driver_->device_info(kDevice0).value().rdma_in_use);
}

TEST_F(RealDriverTest, RdmaIsNotTriedWhereUnwantedOrAbsent) {
  cuda_->rdma_attribute = false;
  open();
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  EXPECT_EQ(cuda_->calls.size(), 1U);
  cuda_->rdma_attribute = true;
  options_.rdma = false;
  open();
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  EXPECT_EQ(cuda_->calls.size(), 2U);
  EXPECT_FALSE(cuda_->rdma_flag);
}

TEST_F(RealDriverTest, ShareableHandlesOnRequest) {
  open();
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  EXPECT_EQ(cuda_->handle_types, 0U);
  options_.shareable_fd = true;
  open();
  EXPECT_TRUE(driver_->create(kDevice0, kUnit));
  EXPECT_EQ(cuda_->handle_types, 1U);
}

TEST_F(RealDriverTest, ErrorsKeepTheDriversNumber) {
  const std::map<int, Errc> expected = {{1, Errc::kInvalidArgument},
                                        {2, Errc::kOutOfMemory},
                                        {3, Errc::kNotInitialized},
                                        {4, Errc::kNotInitialized},
                                        {400, Errc::kInvalidArgument},
                                        {600, Errc::kNotReady},
                                        {700, Errc::kDriverFailure},
                                        {801, Errc::kNotSupported},
                                        {900, Errc::kCapturing},
                                        {907, Errc::kCapturing},
                                        {999, Errc::kDriverFailure}};
  open();
  const EventId event = driver_->event_create(kDevice0).value();
  for (const auto& [number, code] : expected) {
    cuda_->fail["cuEventQuery"] = number;
    const Error error = driver_->event_query(kDevice0, event).error();
    EXPECT_EQ(error.code, code) << number;
    EXPECT_EQ(error.driver_code, number);
  }
}

TEST_F(RealDriverTest, OutOfAddressSpaceIsNotOutOfMemory) {
  open();
  cuda_->fail["cuMemAddressReserve"] = 2;
  const Error error = driver_->reserve(kUnit, Bytes(0)).error();
  EXPECT_EQ(error.code, Errc::kDriverFailure);
  EXPECT_EQ(error.driver_code, 2);
}

TEST_F(RealDriverTest, LegacyStreamBesideACaptureCountsAsCapturing) {
  open();
  cuda_->implicit_capture = true;
  EXPECT_TRUE(driver_->stream_is_capturing(kDevice0, StreamId(0)).value());
}

TEST_F(RealDriverTest, StreamsKeepTheDriversNumberAndStayOutOfTheLedger) {
  open();
  const StreamId stream = driver_->stream_create(kDevice1).value();
  EXPECT_TRUE(driver_->stream_destroy(kDevice1, stream));
  cuda_->fail["cuStreamCreate"] = 2;
  EXPECT_EQ(driver_->stream_create(kDevice1).code(), Errc::kOutOfMemory);
  cuda_->fail["cuStreamDestroy"] = 400;
  EXPECT_EQ(driver_->stream_destroy(kDevice1, stream).error().driver_code, 400);
  EXPECT_EQ(driver_->ledger().total_calls(), 0U);
  EXPECT_EQ(cuda_->pops, cuda_->pushes);
  EXPECT_TRUE(cuda_->wrong_context.empty());
}

}  // namespace
}  // namespace nofrag
