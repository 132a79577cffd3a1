// What a pair of allocation and free costs, by pattern and by number of threads: through
// DeviceAllocator ("device/...") and through the C interface of libnofrag.so ("c_api/...").
//
// On a simulated device whose calls take no time, so that what is measured is nofrag's own work. The
// same patterns beside other allocators, on a GPU: bench/peers. The counter `pair` is the time that a
// pair takes a thread; with several threads the column Time is that by their number.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <nofrag/nofrag.h>

#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"
#include "patterns/ring.h"
#include "patterns/sizes.h"

namespace nofrag::bench {
namespace {

[[noreturn]] void stop(const char* why) {
  std::fprintf(stderr, "allocator_bench: %s\n", why);
  std::exit(1);
}

// The doors have one shape: open and close around a benchmark, allocate and free inside. A stream is
// any number: the simulated driver makes it when it is first named.

class DeviceDoor {
 public:
  static void open() {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = 1024 * nofrag::kGiB;
    driver_ = std::make_unique<SimulatedDriver>(spec);
    driver_->set_stream_lag_us(0);  // nothing runs on the streams
    allocator_ = std::move(DeviceAllocator::create(*driver_, DeviceOrdinal{0}, Options{}).value());
  }
  static void close() {
    allocator_.reset();
    driver_.reset();
  }
  static std::uint64_t allocate(std::size_t size, std::uint64_t stream) {
    const Result<VirtAddr> block = allocator_->allocate(Bytes(size), StreamId(stream));
    if (!block) {
      stop("an allocation failed");
    }
    return block.value().value();
  }
  static void free(std::uint64_t block) {
    if (!allocator_->free(VirtAddr(block))) {
      stop("a free failed");
    }
  }

 private:
  static std::unique_ptr<SimulatedDriver> driver_;
  static std::unique_ptr<DeviceAllocator> allocator_;
};
std::unique_ptr<SimulatedDriver> DeviceDoor::driver_;
std::unique_ptr<DeviceAllocator> DeviceDoor::allocator_;

class CApiDoor {
 public:
  static void open() {
    static const nofrag_status started = [] {
      nofrag_config config = NOFRAG_CONFIG_INIT;
      config.conf = "driver:sim:h100-80g";
      return nofrag_init(&config);
    }();
    if (started != NOFRAG_OK) {
      stop("nofrag could not be started on the simulated device");
    }
  }
  // Every benchmark begins with nothing held.
  static void close() { nofrag_trim(0, 0, nullptr); }
  static std::uint64_t allocate(std::size_t size, std::uint64_t stream) {
    void* const block = nofrag_malloc(size, 0, VirtAddr(stream).pointer());
    if (block == nullptr) {
      stop("an allocation failed");
    }
    return VirtAddr(block).value();
  }
  static void free(std::uint64_t block) {
    if (nofrag_free(VirtAddr(block).pointer()) != NOFRAG_OK) {
      stop("a free failed");
    }
  }
};

enum class Streams { kOwn, kOne };  // a stream a thread, or all threads on one

std::uint64_t stream_of(const benchmark::State& state, Streams streams) {
  return 0x100 + (streams == Streams::kOwn ? static_cast<std::uint64_t>(state.thread_index()) : 0);
}

void report(benchmark::State& state) {
  using benchmark::Counter;
  state.counters["pair"] =
      Counter(static_cast<double>(state.iterations()), Counter::kAvgThreadsRate | Counter::kInvert);
}

// One block is allocated and freed at once.
template <class Door>
void pair(benchmark::State& state, std::size_t size, Streams streams) {
  const std::uint64_t stream = stream_of(state, streams);
  for (auto _ : state) {
    Door::free(Door::allocate(size, stream));
  }
  report(state);
}

// A random live block of this thread is freed and one of another size allocated.
template <class Door>
void mixed(benchmark::State& state, Streams streams) {
  const std::uint64_t stream = stream_of(state, streams);
  MixedSizes sizes(1 + static_cast<std::uint64_t>(state.thread_index()));
  std::vector<std::uint64_t> live;
  while (live.size() < kMixedLive) {
    live.push_back(Door::allocate(sizes.next(), stream));
  }
  for (auto _ : state) {
    std::uint64_t& block = live[sizes.below(kMixedLive)];
    Door::free(block);
    block = Door::allocate(sizes.next(), stream);
  }
  for (const std::uint64_t block : live) {
    Door::free(block);
  }
  report(state);
}

// One large size after the other, a pair each. All of them were live together before, so there is
// memory for each.
template <class Door>
void large_cycle(benchmark::State& state) {
  const std::uint64_t stream = stream_of(state, Streams::kOne);
  std::vector<std::uint64_t> live;
  for (const std::size_t size : kLargeSizes) {
    live.push_back(Door::allocate(size, stream));
  }
  for (const std::uint64_t block : live) {
    Door::free(block);
  }
  std::size_t next = 0;
  for (auto _ : state) {
    Door::free(Door::allocate(kLargeSizes[next++ % kLargeSizes.size()], stream));
  }
  report(state);
}

// Thread 0 allocates on its stream, thread 1 frees. Both come to the same number of iterations, so
// the ring is empty at the end.
template <class Door>
void producer_consumer(benchmark::State& state) {
  static Ring<std::uint64_t> ring;
  if (state.thread_index() == 0) {
    for (auto _ : state) {
      ring.push(Door::allocate(kSmallSize, 0x100));
    }
  } else {
    for (auto _ : state) {
      Door::free(ring.pop());
    }
  }
  report(state);
}

// Pairs of mixed sizes while 65,536 free holes of mixed sizes lie between live blocks.
template <class Door>
void holes(benchmark::State& state) {
  const std::uint64_t stream = stream_of(state, Streams::kOne);
  MixedSizes sizes(1);
  std::vector<std::uint64_t> gaps;
  std::vector<std::uint64_t> live;
  for (std::size_t i = 0; i < kHoles; ++i) {
    gaps.push_back(Door::allocate(sizes.next(), stream));
    live.push_back(Door::allocate(512, stream));
  }
  std::shuffle(gaps.begin(), gaps.end(), std::mt19937_64(1));
  for (const std::uint64_t gap : gaps) {
    Door::free(gap);
  }
  MixedSizes requests(2, 10);  // up to half of what the largest holes have: each fits somewhere
  for (auto _ : state) {
    Door::free(Door::allocate(requests.next(), stream));
  }
  for (const std::uint64_t block : live) {
    Door::free(block);
  }
  report(state);
}

template <class Door>
void open(const benchmark::State& /*state*/) {
  Door::open();
}
template <class Door>
void close(const benchmark::State& /*state*/) {
  Door::close();
}

template <class Door, class Body>
benchmark::internal::Benchmark* add(const std::string& name, Body body) {
  return benchmark::RegisterBenchmark(name.c_str(), body)->Setup(open<Door>)->Teardown(close<Door>);
}

template <class Door>
void add_all(const std::string& door) {
  using benchmark::State;
  for (const std::size_t size : kLargeSizes) {
    add<Door>(door + "/large_repeat/MiB:" + std::to_string(size / kMiB),
              [size](State& state) { pair<Door>(state, size, Streams::kOne); });
  }
  add<Door>(door + "/large_cycle", large_cycle<Door>);
  add<Door>(door + "/holes_65536", holes<Door>);
  add<Door>(door + "/producer_consumer", producer_consumer<Door>)->Threads(2)->UseRealTime();
  for (const Streams streams : {Streams::kOwn, Streams::kOne}) {
    const std::string suffix = streams == Streams::kOwn ? "/own_streams" : "/one_stream";
    for (const int threads : {1, 2, 4, 8, 16}) {
      add<Door>(door + "/pair_4k" + suffix,
                [streams](State& state) { pair<Door>(state, kSmallSize, streams); })
          ->Threads(threads)
          ->UseRealTime();
      add<Door>(door + "/mixed" + suffix, [streams](State& state) { mixed<Door>(state, streams); })
          ->Threads(threads)
          ->UseRealTime();
    }
  }
}

}  // namespace
}  // namespace nofrag::bench

int main(int argc, char** argv) {
  nofrag::bench::add_all<nofrag::bench::DeviceDoor>("device");
  nofrag::bench::add_all<nofrag::bench::CApiDoor>("c_api");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  if (benchmark::RunSpecifiedBenchmarks() == 0) {
    std::fprintf(stderr, "allocator_bench: no benchmark matches the filter\n");
    return 1;
  }
  return 0;
}
