// What the engine's calls cost a program that needs the processor's caches itself: a recorded job is played through
// DeviceAllocator on a simulated device, and between any two calls a buffer is read that is as large as such a program's
// own data, and 128 KiB of other code are run; and a line of each of PAGES pages of data, and of as many of code (other code on x86-64 alone), which
// leaves the processor without the addresses of the allocator's pages. Median and mean nanoseconds of an allocation and
// of a free (all of them; those above 1 MiB), and how much reading the clock takes. A program in Python leaves little of
// the allocator's data in the caches, so that what counts is how many lines and pages a call touches; counted
// instructions do not tell.
//
//   cold_calls [TRACE] [KIB] [ROUNDS] [PAGES]     gpt_varlen, 1024, 5, 0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include "device/device_allocator.h"
#include "driver/simulated/device_spec.h"
#include "driver/simulated/simulated_driver.h"
#include "trace/load_trace.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};

double now_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// 128 KiB that do nothing.
[[gnu::noinline]] void run_other_code() {
#if defined(__x86_64__)
  asm volatile(".rept 16384\n .byte 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0\n .endr");
#endif
}

// Pages of which a line each is read or, where they are code, run.
class Pages {
 public:
  Pages(std::size_t count, bool code) : bytes_(count * kPage) {
    if (count == 0) {
      return;
    }
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::bad_alloc();
    }
    bytes_at_ = static_cast<unsigned char*>(memory);
    ::madvise(bytes_at_, bytes_, MADV_NOHUGEPAGE);
    for (std::size_t i = 0; i < count; ++i) {
      *line(i) = kReturn;
    }
    if (code && ::mprotect(bytes_at_, bytes_, PROT_READ | PROT_EXEC) != 0) {
      ::munmap(bytes_at_, bytes_);
      throw std::runtime_error(
          "the system runs no code that a program made: only with 0 pages here");
    }
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (bytes_at_ != nullptr) {
      ::munmap(bytes_at_, bytes_);
    }
  }
  template <typename Visit>
  void visit(Visit&& visit) const {
    for (std::size_t i = 0; i < bytes_ / kPage; ++i) {
      visit(line(i));
    }
  }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr unsigned char kReturn = 0xc3;  // a function of x86 that does nothing
  // Another line in each, so that they do not fight for the same place in the caches.
  [[nodiscard]] unsigned char* line(std::size_t i) const {
    return bytes_at_ + i * kPage + i * 13 % 64 * 64;
  }
  std::size_t bytes_;
  unsigned char* bytes_at_ = nullptr;
};

// Reads one word of every line of it, and runs other code.
class Pollution {
 public:
  Pollution(std::size_t kib, std::size_t pages)
      : words_(kib * 1024 / sizeof(std::uint64_t), 1), data_(pages, false), code_(pages, true) {}
  void take_caches() {
    for (std::size_t i = 0; i < words_.size(); i += 8) {
      sum_ += words_[i];
    }
    if (!words_.empty()) {
      run_other_code();
    }
    data_.visit([this](const unsigned char* line) { sum_ += *line; });
#if defined(__x86_64__)
    code_.visit([](unsigned char* line) { reinterpret_cast<void (*)()>(line)(); });
#endif
  }
  [[nodiscard]] std::uint64_t sum() const {
    return sum_;
  }

 private:
  std::vector<std::uint64_t> words_;
  Pages data_;
  Pages code_;
  std::uint64_t sum_ = 0;
};

struct Times {
  std::vector<double> allocations;
  std::vector<double> frees;
  std::vector<double> large_allocations;
  std::vector<double> large_frees;
};

void say(const char* what, std::vector<double> times, double clock) {
  if (times.empty()) {
    return;
  }
  double sum = 0;
  for (const double time : times) {
    sum += time;
  }
  const auto count = static_cast<double>(times.size());
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
  fmt::print("{:<22} median {:>7.0f} ns  mean {:>7.0f} ns  ({} calls)\n",
             what,
             times[times.size() / 2] - clock,
             sum / count - clock,
             times.size());
}

void play(const Trace& trace, const SimulatedDeviceSpec& spec, Pollution& pollution, Times& times) {
  SimulatedDriver driver(spec);
  const auto allocator = std::move(DeviceAllocator::create(driver, kDevice, Options{}).value());
  std::vector<VirtAddr> addresses(trace.allocations);
  std::size_t index = 0;
  for (const TraceEvent& event : trace.events) {
    driver.set_time_us(static_cast<double>(event.time_us));
    pollution.take_caches();
    const bool timed = ++index > trace.events.size() / 2;  // once it no longer grows
    const bool large = event.size > kMiB.count();
    const double begin = now_ns();
    if (event.is_free()) {
      if (!allocator->free(addresses[event.block]).ok()) {
        std::abort();
      }
    } else {
      const auto result =
          allocator->allocate(Bytes(event.size), StreamId(trace.streams[event.stream()]));
      addresses[event.block] = result.ok() ? result.value() : VirtAddr{};
    }
    const double took = now_ns() - begin;
    if (timed) {
      (event.is_free() ? times.frees : times.allocations).push_back(took);
      if (large) {
        (event.is_free() ? times.large_frees : times.large_allocations).push_back(took);
      }
    }
  }
}

int measure(const std::string& path, std::size_t kib, std::size_t rounds, std::size_t pages) {
  Trace trace;
  if (const auto failure = load_trace(path, TraceFormat::kAuto, &trace)) {
    fmt::print(stderr, "{}\n", failure->message());
    return 1;
  }
  SimulatedDeviceFile device;
  std::string error;
  if (!load_simulated_device("h100-80g", &device, &error)) {
    fmt::print(stderr, "{}\n", error);
    return 1;
  }
  Pollution pollution(kib, pages);
  std::vector<double> clocks;
  for (int i = 0; i < 1001; ++i) {
    pollution.take_caches();
    const double begin = now_ns();
    clocks.push_back(now_ns() - begin);
  }
  std::sort(clocks.begin(), clocks.end());
  Times times;
  for (std::size_t round = 0; round < rounds; ++round) {
    play(trace, device.spec, pollution, times);
  }
  fmt::print("{} KiB and {} pages between calls, clock {:.0f} ns (taken off){}\n",
             kib,
             pages,
             clocks[500],
             pollution.sum() == 0 ? " " : "");
  say("allocate", times.allocations, clocks[500]);
  say("free", times.frees, clocks[500]);
  say("allocate above 1 MiB", times.large_allocations, clocks[500]);
  say("free above 1 MiB", times.large_frees, clocks[500]);
  return 0;
}

}  // namespace
}  // namespace nofrag

int main(int argc, char** argv) {
  try {
    const std::string path = argc > 1 ? argv[1] : std::string(NOFRAG_TRACES) + "/gpt_varlen.nofrag";
    const long kib = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 1024;
    const long rounds = argc > 3 ? std::strtol(argv[3], nullptr, 10) : 5;
    const long pages = argc > 4 ? std::strtol(argv[4], nullptr, 10) : 0;
    return nofrag::measure(path,
                           static_cast<std::size_t>(std::clamp(kib, 0L, 1L << 20)),
                           static_cast<std::size_t>(std::clamp(rounds, 1L, 1000L)),
                           static_cast<std::size_t>(std::clamp(pages, 0L, 1L << 20)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
