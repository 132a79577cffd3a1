// Many threads through PyTorch's interface: blocks that others free, streams, pools, settings, and those who look on
// meanwhile. Under ThreadSanitizer this is what finds a race.
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "native_fixture.h"
#include "own_allocator.h"

namespace nofrag::test {
namespace {

constexpr unsigned kThreads = 6;
#if defined(__SANITIZE_THREAD__)
constexpr int kSteps = 1500;
#else
constexpr int kSteps = 6000;
#endif

struct Somewhere : c10::GatheredContext {};

std::shared_ptr<c10::GatheredContext> anywhere() {
  return std::make_shared<Somewhere>();
}

class NativeThreadsTest : public NativeTest {
 public:
  struct Held {
    c10::DataPtr data;
    std::size_t size = 0;
  };

  static constexpr PoolId kOwnPool{0, 99};
  static cudaStream_t own_stream() { return stream_number(30); }

  // Blocks that any thread may take and free; addresses that are somebody's, each with its end.
  void lay_down(Held held) {
    const std::lock_guard lock(mutex_);
    exchange_.push_back(std::move(held));
  }
  bool take(std::uint64_t random, Held* out) {
    const std::lock_guard lock(mutex_);
    if (exchange_.empty()) {
      return false;
    }
    std::swap(exchange_[random % exchange_.size()], exchange_.back());
    *out = std::move(exchange_.back());
    exchange_.pop_back();
    return true;
  }
  void note(const Held& held, bool mine) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<std::uintptr_t>(held.data.get());
    if (!mine) {
      wrong_ += live_.erase(begin) == 1 ? 0 : 1;
      return;
    }
    const auto after = live_.lower_bound(begin);
    wrong_ += after != live_.end() && after->first < begin + held.size ? 1 : 0;
    wrong_ += after != live_.begin() && std::prev(after)->second > begin ? 1 : 0;
    live_.emplace_hint(after, begin, begin + held.size);
  }

  void allocate(std::mt19937& random, std::vector<Held>* own) {
    const std::size_t size = 1 + random() % (std::size_t{512} << (random() % 14));
    Held held;
    try {
      held = {allocator().allocate(size), size};
    } catch (const c10::OutOfMemoryError&) {
      ++refused_;
      return;
    }
    note(held, true);
    if (random() % 4 == 0) {
      lay_down(std::move(held));
    } else {
      own->push_back(std::move(held));
    }
  }
  void free(Held held) {
    note(held, false);
    held.data.clear();
  }

  void fill_pool(unsigned thread, std::mt19937& random) {
    const PoolId pool{0, 100 + thread};
    const cudaStream_t stream = stream_number(20 + thread);
    const cudaStream_t before = std::exchange(current().stream, stream);
    allocator().beginAllocateToPool(0, pool, [stream](cudaStream_t s) { return s == stream; });
    std::vector<Held> own;
    for (int i = 0; i < 3; ++i) {
      allocate(random, &own);
    }
    allocator().endAllocateToPool(0, pool);
    segments(pool);
    for (Held& held : own) {
      free(std::move(held));
    }
    allocator().releasePool(0, pool);
    current().stream = before;
  }

  // From the pool that brings its own allocator; any thread may free it.
  void allocate_in_own_pool(std::mt19937& random, std::vector<Held>* own) {
    const cudaStream_t before = std::exchange(current().stream, own_stream());
    allocate(random, own);
    current().stream = before;
  }

  // With another process: what it would open, opened here.
  static void share(const c10::DataPtr& data) {
    if (data.get() == nullptr) {
      return;
    }
    const torch_cuda::ShareableHandle shared = allocator().shareIpcHandle(data.get());
    const std::shared_ptr<void> opened = allocator().getIpcDevPtr(shared.handle);
    EXPECT_NE(opened, nullptr);
  }

  // Nothing where memory is short.
  static c10::DataPtr allocate_if_possible(std::size_t size) {
    try {
      return allocator().allocate(size);
    } catch (const c10::OutOfMemoryError&) {
      return {};
    }
  }

  // For whoever runs short.
  static void lay_up() {
    c10::DataPtr more = allocate_if_possible(8 * kMiB);
    const std::lock_guard lock(test_mutex());
    std::swap(more, spare());
  }

  // What a walk tells is what was there at one moment: of each block whether it is in use, and with what request.
  static void walk() {
    nofrag_walk(
        0,
        [](const nofrag_span* span, void*) {
          EXPECT_EQ(span->requested_size > 0, span->state == NOFRAG_SPAN_LIVE)
              << span->requested_size;
          EXPECT_LE(span->requested_size, span->size);
        },
        nullptr);
  }

  void other_call(unsigned thread, std::mt19937& random, std::vector<Held>* own) {
    switch (random() % 22) {
      case 0:
        EXPECT_GE(stats().reserved_bytes[0].current, 0);
        break;
      case 1:
        expect_tiled(allocator().snapshot({0, 0}, true).segments);
        break;
      case 2:
        allocator().emptyCache({0, 0});
        break;
      case 3:
        fill_pool(thread, random);
        break;
      case 4:
        allocator().recordHistory(random() % 2 == 0,
                                  &anywhere,
                                  200,
                                  torch_cuda::RecordContext::ALL,
                                  random() % 8 == 0,
                                  {});
        break;
      case 5:
        allocator().setMemoryFraction(random() % 4 == 0 ? 0.0005 : 1.0, 0);
        break;
      case 6:
        allocator().resetPeakStats(0);
        break;
      case 7:
        allocator().resetAccumulatedStats(0);
        break;
      case 8:
        finish_events();
        break;
      case 9: {
        std::size_t largest = 0;
        allocator().cacheInfo(0, &largest);
        break;
      }
      case 10:
        share(allocate_if_possible(kMiB));
        break;
      case 11:
        allocator().setUserMetadata("by " + std::to_string(thread));
        EXPECT_FALSE(allocator().getUserMetadata().empty());
        break;
      case 12:
        allocator().recordAnnotation({{"thread", std::to_string(thread)}});
        break;
      case 13:
        segments({0, 100 + random() % kThreads});  // another's pool, which may be gone
        break;
      case 14:
      case 15:
        allocate_in_own_pool(random, own);
        break;
      case 16:
        lay_up();
        break;
      case 17:
      case 18:
      case 19:
        walk();
        break;
      case 20:
        nofrag_trim(0, random() % (64 * kMiB), nullptr);
        break;
      default:
        EXPECT_EQ(nofrag_check(0), NOFRAG_OK);
        break;
    }
  }

  void worker(unsigned thread) {
    std::mt19937 random(thread + 1);
    current().stream = stream_number(1 + thread % 3);
    std::vector<Held> own;
    for (int step = 0; step < kSteps; ++step) {
      const auto dice = static_cast<unsigned>(random() % 100);
      Held held;
      if (dice < 45) {
        allocate(random, &own);
      } else if (dice < 72 && !own.empty()) {
        std::swap(own[random() % own.size()], own.back());
        free(std::move(own.back()));
        own.pop_back();
      } else if (dice < 85) {
        if (take(random(), &held)) {
          free(std::move(held));
        }
      } else if (dice < 92 && !own.empty()) {
        const Held& used = own[random() % own.size()];
        allocator().recordStream(used.data, stream(10 + random() % 3));
        std::size_t size = 0;
        EXPECT_EQ(allocator().getBaseAllocation(used.data.get(), &size) == nullptr, false);
      } else {
        other_call(thread, random, &own);
      }
      if (own.size() > 60) {
        free(std::move(own.front()));
        own.erase(own.begin());
      }
    }
    for (Held& held : own) {
      free(std::move(held));
    }
  }

  static void expect_tiled(const std::vector<SegmentInfo>& all) {
    std::size_t end = 0;
    for (const SegmentInfo& segment : all) {
      EXPECT_GE(segment.address, end) << "segments overlap";
      end = segment.address + segment.total_size;
      std::size_t tiled = 0;
      std::size_t active = 0;
      for (const auto& block : segment.blocks) {
        tiled += block.size;
        active += block.active ? block.size : 0;
        EXPECT_LE(block.requested_size, block.size);
      }
      EXPECT_EQ(tiled, segment.total_size);
      EXPECT_EQ(active, segment.active_size);
    }
  }

  std::mutex mutex_;
  std::vector<Held> exchange_;
  std::map<std::uintptr_t, std::uintptr_t> live_;
  int wrong_ = 0;
  std::atomic<int> refused_{0};
};

TEST_F(NativeThreadsTest, NobodysBlockIsGivenOutTwiceAndNothingStays) {
  const auto own = std::make_shared<OwnAllocator>();
  allocator().createOrIncrefPool(0, kOwnPool, own);
  allocator().beginAllocateToPool(
      0, kOwnPool, [](cudaStream_t stream) { return stream == own_stream(); });
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] { worker(thread); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  Held held;
  while (take(0, &held)) {
    free(std::move(held));
  }
  spare().clear();
  allocator().endAllocateToPool(0, kOwnPool);
  while (allocator().getPoolUseCount(0, kOwnPool) > 0) {
    allocator().releasePool(0, kOwnPool);
  }
  EXPECT_EQ(wrong_, 0) << "blocks overlap";
  EXPECT_TRUE(live_.empty());
  EXPECT_LT(refused_.load(), kSteps);
  finish_events();
  allocator().setMemoryFraction(1.0, 0);
  allocator().setUserMetadata("");
  allocator().emptyCache({0, 0});
  allocator().emptyCache(kOwnPool);
  EXPECT_EQ(reserved(), 0);
  EXPECT_EQ(own->freed, static_cast<int>(own->sizes.size()));
  expect_consistent(segments(), stats());
}

}  // namespace
}  // namespace nofrag::test
