// The paths whose instructions are counted (golden.py) and looked at (no_lock.py), through the C interface of
// libnofrag.so and through DeviceAllocator, on the simulated driver.
//
// usage: fast_path caches|locked
//   caches  thread caches as they are by default
//   locked  without them: every call takes the device's lock
//
// Each path goes through nofrag_golden_region kRounds times, on which callgrind turns its collection on and
// off and writes a profile; all but the last warm up. Standard output says in which order, by lines
// "path NAME OPERATIONS": kRounds profiles of so many operations each. (The loop around them is in the counts.)
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <semaphore>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nofrag/nofrag.h>

#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"
#include "patterns/sizes.h"

// Where collection begins and ends. The statement behind the call keeps it from being a jump.
extern "C" [[gnu::noinline]] void nofrag_golden_region(void (*body)(void*), void* context) {
  body(context);
  asm volatile("" ::: "memory");
}

namespace nofrag::bench {
namespace {

// Known to callgrind.py.
constexpr int kRounds = 8;
constexpr std::size_t kBatch = 32;  // of 4 KiB: half of what the cache holds at hand
// Between threads whole stacks of 64 blocks are passed on, so a round takes a few of them.
constexpr std::size_t kBetweenThreads = 256;
constexpr std::size_t kPairs = 256;
constexpr std::size_t kLargeSize = 64 * kMiB;
constexpr std::uint64_t kStream = 0x100;

[[noreturn]] void stop(const char* why) {
  std::fprintf(stderr, "fast_path: %s\n", why);
  std::exit(1);
}

template <typename Body>
void measure(Body body) {
  nofrag_golden_region([](void* context) { (*static_cast<Body*>(context))(); }, &body);
}

class DeviceDoor {
 public:
  explicit DeviceDoor(const Options& options) {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = 80 * nofrag::kGiB;
    driver_ = std::make_unique<SimulatedDriver>(spec);
    driver_->set_stream_lag_us(0);  // nothing runs on the streams
    allocator_ = std::move(DeviceAllocator::create(*driver_, DeviceOrdinal{0}, options).value());
  }
  std::uint64_t allocate(std::size_t size) {
    const Result<VirtAddr> block = allocator_->allocate(Bytes(size), StreamId(kStream));
    if (!block) {
      stop("an allocation failed");
    }
    return block.value().value();
  }
  void free(std::uint64_t block) {
    if (!allocator_->free(VirtAddr(block))) {
      stop("a free failed");
    }
  }

 private:
  std::unique_ptr<SimulatedDriver> driver_;
  std::unique_ptr<DeviceAllocator> allocator_;
};

class CApiDoor {
 public:
  explicit CApiDoor(bool thread_caches) {
    nofrag_config config = NOFRAG_CONFIG_INIT;
    config.conf = thread_caches ? "driver:sim:h100-80g,thread_caches:true"
                                : "driver:sim:h100-80g,thread_caches:false";
    if (nofrag_init(&config) != NOFRAG_OK) {
      stop("nofrag could not be started on the simulated device");
    }
  }
  std::uint64_t allocate(std::size_t size) {
    void* const block = nofrag_malloc(size, 0, VirtAddr(kStream).pointer());
    if (block == nullptr) {
      stop("an allocation failed");
    }
    return VirtAddr(block).value();
  }
  void free(std::uint64_t block) {
    if (nofrag_free(VirtAddr(block).pointer()) != NOFRAG_OK) {
      stop("a free failed");
    }
  }
};

void announce(const std::string& path, std::size_t operations) {
  std::printf("path %s %zu\n", path.c_str(), operations);
}

template <typename Door>
void fill(Door& door, std::span<std::uint64_t> blocks) {
  for (std::uint64_t& block : blocks) {
    block = door.allocate(kSmallSize);
  }
}

template <typename Door>
void empty(Door& door, std::span<const std::uint64_t> blocks) {
  for (const std::uint64_t block : blocks) {
    door.free(block);
  }
}

template <typename Door>
void batches(Door& door, const std::string& group) {
  std::array<std::uint64_t, kBatch> blocks{};
  const auto allocate_all = [&door, &blocks] { fill(door, blocks); };
  const auto free_all = [&door, &blocks] { empty(door, blocks); };
  announce(group + "/alloc_4k", kBatch);
  for (int round = 0; round < kRounds; ++round) {
    measure(allocate_all);
    free_all();
  }
  announce(group + "/free_4k", kBatch);
  for (int round = 0; round < kRounds; ++round) {
    allocate_all();
    measure(free_all);
  }
}

template <typename Door>
void pairs(Door& door, const std::string& path, std::size_t size) {
  announce(path, kPairs);
  for (int round = 0; round < kRounds; ++round) {
    measure([&door, size] {
      for (std::size_t i = 0; i < kPairs; ++i) {
        door.free(door.allocate(size));
      }
    });
  }
}

// Runs what it is given on a thread of its own, which stays the same, and waits for it.
class OtherThread {
 public:
  OtherThread() : thread_([this] { run(); }) {}
  OtherThread(const OtherThread&) = delete;
  OtherThread& operator=(const OtherThread&) = delete;
  ~OtherThread() {
    (*this)({});
    thread_.join();
  }
  void operator()(std::function<void()> task) {
    task_ = std::move(task);
    given_.release();
    done_.acquire();
  }

 private:
  void run() {
    for (bool more = true; more;) {
      given_.acquire();
      more = task_ != nullptr;
      if (more) {
        task_();
      }
      done_.release();
    }
  }

  std::function<void()> task_;
  std::binary_semaphore given_{0};
  std::binary_semaphore done_{0};
  std::thread thread_;
};

// This thread allocates, another frees: what it frees comes back to this one.
template <typename Door>
void between_threads(Door& door, OtherThread& other, const std::string& group) {
  std::vector<std::uint64_t> blocks(kBetweenThreads);
  const auto allocate_all = [&door, &blocks] { fill(door, blocks); };
  const auto free_all = [&door, &blocks] { empty(door, blocks); };
  announce(group + "/alloc_4k_freed_by_another_thread", kBetweenThreads);
  for (int round = 0; round < kRounds; ++round) {
    measure(allocate_all);
    other(free_all);
  }
  announce(group + "/free_4k_by_another_thread", kBetweenThreads);
  for (int round = 0; round < kRounds; ++round) {
    allocate_all();
    other([&free_all] { measure(free_all); });
  }
}

template <typename Door>
void all_paths(Door& door, OtherThread& other, const std::string& group) {
  batches(door, group);
  pairs(door, group + "/pair_1m", kMiB);
  pairs(door, group + "/pair_64m", kLargeSize);
  between_threads(door, other, group);
}

void run(bool thread_caches) {
  const std::string group = thread_caches ? "caches" : "locked";
  Options options;
  options.thread_caches = thread_caches;
  // From the beginning: the C library does without atomic instructions while there is one thread.
  OtherThread other;
  CApiDoor c_api(thread_caches);
  all_paths(c_api, other, group + "/c_api");
  DeviceDoor device(options);
  all_paths(device, other, group + "/device");
  if (thread_caches) {
    // Asks the driver each time whether the stream is the one it knows: for no_lock.py to find.
    options.check_streams = true;
    DeviceDoor checked(options);
    batches(checked, "checked/device");
  }
}

}  // namespace
}  // namespace nofrag::bench

int main(int argc, char** argv) {
  const std::string mode = argc == 2 ? argv[1] : "";
  if (mode != "caches" && mode != "locked") {
    std::fprintf(stderr, "usage: fast_path caches|locked\n");
    return 2;
  }
  nofrag::bench::run(mode == "caches");
  return 0;
}
