// The end of memory: limits, the error and who hears of it, PyTorch's callbacks that free.
#include <algorithm>

#include "native_fixture.h"

namespace nofrag::test {

// What torch's CUDA IPC registers: somebody who can free something when asked.
c10::DataPtr& spare() {
  static c10::DataPtr data;
  return data;
}
// Callbacks and observers are called by any number of threads at once.
std::mutex& test_mutex() {
  static std::mutex mutex;
  return mutex;
}
class FreesTheSpare : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    c10::DataPtr taken;
    {
      const std::lock_guard lock(test_mutex());
      std::swap(taken, spare());
    }
    return taken.get() != nullptr;
  }
};

}  // namespace nofrag::test

namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("nofrag_test", nofrag::test::FreesTheSpare)
}

namespace nofrag::test {
namespace {

struct Refusal {
  std::int64_t device;
  std::size_t requested;
  std::size_t total;
  std::size_t free;
};
std::vector<Refusal>& refusals() {
  static std::vector<Refusal> all;
  return all;
}

class NativeLimitsTest : public NativeTest {
 public:
  NativeLimitsTest() {
    static const bool attached = [] {
      allocator().attachOutOfMemoryObserver(
          [](std::int64_t device, std::size_t requested, std::size_t total, std::size_t free) {
            // Without any lock: an observer may look at the allocator.
            allocator().snapshot({0, 0}, true);
            const std::lock_guard lock(test_mutex());
            refusals().push_back({device, requested, total, free});
          });
      return true;
    }();
    EXPECT_TRUE(attached);
    refusals().clear();
  }
};

TEST_F(NativeLimitsTest, WantOfMemoryIsPyTorchsOwnErrorWithNofragsReport) {
  std::string text;
  try {
    allocator().allocate(100 * kGiB);
  } catch (const c10::OutOfMemoryError& error) {
    text = error.what_without_backtrace();
  }
  EXPECT_EQ(text.rfind("CUDA out of memory. Tried to allocate 100.00 GiB. GPU 0 has a total "
                       "capacity of ",
                       0),
            0U)
      << text;
  EXPECT_NE(text.find(" is free. "), std::string::npos);
  EXPECT_NE(text.find("is reserved by PyTorch but unallocated."), std::string::npos);
  EXPECT_NE(text.find("\nnofrag: out of memory on device 0"), std::string::npos) << text;
  ASSERT_EQ(refusals().size(), 1U);
  EXPECT_EQ(refusals()[0].device, 0);
  EXPECT_EQ(refusals()[0].requested, 100 * kGiB);
  EXPECT_GT(refusals()[0].total, 70 * kGiB);
  EXPECT_EQ(stats().num_ooms, 1);
  EXPECT_EQ(stats().num_alloc_retries, 1);
  allocator().resetAccumulatedStats(0);
  EXPECT_EQ(stats().num_ooms, 0);
}

TEST_F(NativeLimitsTest, MoreThanAnExabyteIsRefusedAtOnce) {
  EXPECT_NE(message_of([] {
              allocator().allocate(std::size_t{1} << 61);
            }).find("Tried to allocate more than 1EB memory"),
            std::string::npos);
  EXPECT_TRUE(refusals().empty());
}

TEST_F(NativeLimitsTest, TheTraceKeepsTheFailure) {
  allocator().recordHistory(true, nullptr, 100, torch_cuda::RecordContext::NEVER, true, {});
  EXPECT_THROW(allocator().allocate(100 * kGiB), c10::OutOfMemoryError);
  const std::vector<TraceEntry> entries = trace();
  const auto oom = std::find_if(entries.begin(), entries.end(), [](const TraceEntry& entry) {
    return entry.action_ == TraceEntry::OOM;
  });
  ASSERT_NE(oom, entries.end());
  EXPECT_EQ(oom->size_, 100 * kGiB);
  EXPECT_EQ(oom->addr_, refusals()[0].free);
}

TEST_F(NativeLimitsTest, AFractionIsKeptAndSaidBack) {
  EXPECT_EQ(allocator().getMemoryFraction(0), 1.0);
  allocator().setMemoryFraction(0.25, 0);
  EXPECT_EQ(allocator().getMemoryFraction(0), 0.25);
  const c10::DataPtr held = allocator().allocate(15 * kGiB);
  const std::string text = message_of([] { allocator().allocate(10 * kGiB); });
  EXPECT_NE(text.find(" allowed; "), std::string::npos) << text;
  EXPECT_LT(refusals()[0].total, 21 * kGiB);
  for (const double wrong : {-0.1, 1.1}) {
    EXPECT_NE(message_of([wrong] {
                allocator().setMemoryFraction(wrong, 0);
              }).find("Please set within [0, 1]"),
              std::string::npos);
  }
  EXPECT_EQ(allocator().getMemoryFraction(0), 0.25);
}

TEST_F(NativeLimitsTest, CallbacksAreAskedBeforeAnythingFails) {
  allocator().setMemoryFraction(0.25, 0);
  spare() = allocator().allocate(12 * kGiB);
  const c10::DataPtr data = allocator().allocate(15 * kGiB);
  EXPECT_NE(data.get(), nullptr);
  EXPECT_EQ(spare().get(), nullptr);
  EXPECT_TRUE(refusals().empty());
  EXPECT_EQ(stats().num_ooms, 0);
}

}  // namespace
}  // namespace nofrag::test
