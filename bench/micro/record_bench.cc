// What recording costs a thread: an event by itself, and a pair of allocation and free from a thread cache,
// recorded and not; and an event with its call stack. The counter `event` is the time that recording adds to an event; the file's bytes an event are
// printed at the end.
//
// The recorder's writer needs a core of its own: what it cannot take from the rings, threads wait for.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <benchmark/benchmark.h>

#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"
#include "trace/record/recorder.h"

namespace nofrag::bench {
namespace {

std::string file_name() {
  return "/tmp/record_bench." + std::to_string(::getpid());
}

std::unique_ptr<Recorder> start_recorder(std::uint32_t stacks = 0) {
  RecorderSettings settings;
  settings.stacks = {stacks, UINT64_MAX};
  settings.path = file_name();
  std::string problem;
  std::unique_ptr<Recorder> recorder = Recorder::start(std::move(settings), &problem);
  if (recorder == nullptr) {
    std::fprintf(stderr, "record_bench: %s\n", problem.c_str());
    std::exit(1);
  }
  return recorder;
}

std::unique_ptr<Recorder> shared_recorder;

// Bursts that the ring has room for, as a job's are; the writer has time between them.
void event(benchmark::State& state) {
  if (state.thread_index() == 0) {
    shared_recorder = start_recorder();
  }
  AllocatorEvent allocation;
  allocation.size = Bytes(4096);
  allocation.requested = Bytes(4000);
  constexpr std::int64_t kBurst = 4096;
  for (auto _ : state) {
    state.PauseTiming();
    if (state.thread_index() == 0) {
      shared_recorder->flush();
    }
    state.ResumeTiming();
    for (std::int64_t i = 0; i < kBurst; ++i) {
      allocation.address = VirtAddr(0x7f0000000000 + static_cast<std::uint64_t>(i % 512) * 4096);
      allocation.kind = (i & 512) == 0 ? EventKind::kAlloc : EventKind::kFreeRequested;
      shared_recorder->on_event(allocation);
    }
  }
  state.counters["event"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kBurst),
                         benchmark::Counter::kAvgThreadsRate | benchmark::Counter::kInvert);
  if (state.thread_index() == 0) {
    shared_recorder->stop(NOFRAG_TRACE_STOP_ASKED);
    shared_recorder.reset();
    std::remove(file_name().c_str());
  }
}
BENCHMARK(event)->Threads(1)->Threads(2)->UseRealTime();

// An allocation's event under so many calls, where the stack of one in `every` is kept.
[[gnu::noinline]] void at_depth(Recorder& recorder, const AllocatorEvent& allocation, int depth) {
  if (depth == 0) {
    recorder.on_event(allocation);
  } else {
    at_depth(recorder, allocation, depth - 1);
  }
  __asm__ volatile("");
}

void event_with_stack(benchmark::State& state) {
  const std::unique_ptr<Recorder> recorder =
      start_recorder(static_cast<std::uint32_t>(state.range(0)));
  AllocatorEvent allocation;
  allocation.kind = EventKind::kAlloc;
  allocation.size = Bytes(4096);
  allocation.requested = Bytes(4000);
  constexpr std::int64_t kBurst = 4096;
  for (auto _ : state) {
    state.PauseTiming();
    recorder->flush();
    state.ResumeTiming();
    for (std::int64_t i = 0; i < kBurst; ++i) {
      allocation.address = VirtAddr(0x7f0000000000 + static_cast<std::uint64_t>(i % 512) * 4096);
      at_depth(*recorder, allocation, static_cast<int>(state.range(1)));
    }
  }
  state.counters["event"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kBurst),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  recorder->stop(NOFRAG_TRACE_STOP_ASKED);
  std::remove(file_name().c_str());
}
BENCHMARK(event_with_stack)
    ->ArgNames({"every", "depth"})
    ->Args({0, 10})
    ->Args({1, 10})
    ->Args({1, 40})
    ->Args({100, 10})
    ->Args({100, 40});

void pairs(benchmark::State& state) {
  const bool recorded = state.range(0) != 0;
  SimulatedDeviceSpec spec;
  spec.info.total_memory = 80 * nofrag::kGiB;
  SimulatedDriver driver(spec);
  driver.set_stream_lag_us(0);
  const auto allocator =
      std::move(DeviceAllocator::create(driver, DeviceOrdinal{0}, Options{}).value());
  std::unique_ptr<Recorder> recorder;
  if (recorded) {
    recorder = start_recorder();
    allocator->set_event_sink(recorder.get());
  }
  constexpr std::int64_t kBurst = 2048;
  for (auto _ : state) {
    state.PauseTiming();
    if (recorder != nullptr) {
      recorder->flush();
    }
    state.ResumeTiming();
    for (std::int64_t i = 0; i < kBurst; ++i) {
      allocator->free(allocator->allocate(Bytes(4096), StreamId(0x100)).value()).ignore();
    }
  }
  state.counters["pair"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kBurst),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  allocator->set_event_sink(nullptr);
  if (recorder != nullptr) {
    recorder->stop(NOFRAG_TRACE_STOP_ASKED);
    state.counters["bytes_an_event"] =
        static_cast<double>(recorder->bytes()) / static_cast<double>(recorder->events());
    std::remove(file_name().c_str());
  }
}
BENCHMARK(pairs)->ArgName("recorded")->Arg(0)->Arg(1);

}  // namespace
}  // namespace nofrag::bench

BENCHMARK_MAIN();
