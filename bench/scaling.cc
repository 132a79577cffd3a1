// Does the price of an allocation grow? Nanoseconds for an alloc+free pair through DeviceAllocator,
// by the number of live blocks and by the number of holes; the price of a miss; host metadata.
//
//   scaling [ROUNDS]   11 rounds by default; prints medians and the lowest and highest round, in
//                      processor time
//
// On a simulated 1 TiB device whose calls cost nothing, so that what is measured is the allocator's
// own work (and, for a miss, the simulated driver's). Sizes are log-uniform between 512 B and 1 MiB.
// "hot": a block is allocated and freed at once. "churn": a random live block is freed and one of a
// random size allocated, so nothing is in the processor's caches but by luck; "of 1,000": always one of the
// same thousand, so that only what the allocator itself looks at grows with what lies beside them.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/object_pool.h"
#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr DeviceOrdinal kDevice{0};
constexpr StreamId kStream{0x100};
constexpr std::size_t kSizes = 65536;

// Of this thread: what other programs took from it does not count. (Nothing here waits.)
double now_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

class Bench {
 public:
  Bench() : host_before_(host_page_bytes()), sim_(spec()) {
    allocator_ = std::move(DeviceAllocator::create(sim_, kDevice, Options{}).value());
    sizes_.reserve(kSizes);
    for (std::size_t i = 0; i < kSizes; ++i) {
      const auto octave = std::uint64_t{512} << (random_() % 11);
      sizes_.push_back(round_up(Bytes(octave + random_() % octave), Bytes(512)));
    }
  }

  Bytes next_size() { return sizes_[next_++ % kSizes]; }
  std::uint64_t random(std::size_t below) { return random_() % below; }
  DeviceAllocator& allocator() { return *allocator_; }
  std::vector<VirtAddr>& live() { return live_; }

  VirtAddr allocate(Bytes size) { return allocator_->allocate(size, kStream).value(); }
  void free(VirtAddr address) {
    if (!allocator_->free(address).ok()) {
      std::abort();
    }
  }
  void fill(std::size_t blocks) {
    live_.reserve(blocks);
    while (live_.size() < blocks) {
      live_.push_back(allocate(next_size()));
    }
  }
  // Exactly `holes` of them, kept apart by live blocks of 512 B; sizes as requests or 64 KiB.
  void make_holes(std::size_t holes, bool one_size) {
    std::vector<VirtAddr> gaps;
    for (std::size_t i = 0; i < holes; ++i) {
      gaps.push_back(allocate(one_size ? 64 * kKiB : next_size()));
      live_.push_back(allocate(Bytes(512)));
    }
    std::shuffle(gaps.begin(), gaps.end(), random_);
    for (const VirtAddr gap : gaps) {
      free(gap);
    }
  }

  double hot_pairs(std::size_t pairs) {
    const double start = now_ns();
    for (std::size_t i = 0; i < pairs; ++i) {
      free(allocate(next_size()));
    }
    return (now_ns() - start) / static_cast<double>(pairs);
  }
  double churn(std::size_t pairs, std::size_t among) {
    const double start = now_ns();
    for (std::size_t i = 0; i < pairs; ++i) {
      VirtAddr& block = live_[random(among)];
      free(block);
      block = allocate(next_size());
    }
    return (now_ns() - start) / static_cast<double>(pairs);
  }
  // A request that no free run holds; only the allocation is timed.
  double misses(std::size_t count) {
    double total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      allocator_->trim();
      const double start = now_ns();
      const VirtAddr block = allocate(64 * kMiB);
      total += (now_ns() - start);
      free(block);
    }
    return total / static_cast<double>(count);
  }
  [[nodiscard]] std::size_t host_bytes() const { return host_page_bytes() - host_before_; }

 private:
  static SimulatedDeviceSpec spec() {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = 1024 * kGiB;
    return spec;
  }

  std::size_t host_before_;
  std::mt19937_64 random_{1};
  SimulatedDriver sim_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::vector<Bytes> sizes_;
  std::size_t next_ = 0;
  std::vector<VirtAddr> live_;
};

struct Spread {
  double lowest = 0;
  double median = 0;
  double highest = 0;
};

Spread measure(std::size_t rounds, const std::function<double()>& round) {
  round();  // warm-up
  std::vector<double> times;
  for (std::size_t i = 0; i < rounds; ++i) {
    times.push_back(round());
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2], times.back()};
}

// One column of the table: a figure for every row, and largest/smallest of the medians.
struct Column {
  std::string name;
  std::vector<Spread> figures;
};

void print_table(const std::string& title,
                 const std::vector<std::string>& rows,
                 const std::vector<Column>& columns) {
  fmt::print("\n{:<26}", title);
  for (const Column& column : columns) {
    fmt::print(" {:>30}", column.name);
  }
  fmt::print("\n");
  for (std::size_t row = 0; row < rows.size(); ++row) {
    fmt::print("{:<26}", rows[row]);
    for (const Column& column : columns) {
      const Spread& s = column.figures[row];
      fmt::print(" {:>30}", fmt::format("{:.0f} ({:.0f}..{:.0f})", s.median, s.lowest, s.highest));
    }
    fmt::print("\n");
  }
  fmt::print("{:<26}", "largest/smallest");
  for (const Column& column : columns) {
    const auto [low, high] = std::minmax_element(
        column.figures.begin(), column.figures.end(), [](const Spread& a, const Spread& b) {
          return a.median < b.median;
        });
    fmt::print(" {:>30.2f}", high->median / low->median);
  }
  fmt::print("\n");
}

void by_live_blocks(std::size_t rounds) {
  std::vector<std::string> rows;
  std::vector<Column> columns{
      {"hot ns/pair", {}}, {"churn ns/pair", {}}, {"miss ns", {}}, {"churn of 1,000 ns/pair", {}}};
  std::vector<std::string> metadata;
  for (const std::size_t blocks : {1000U, 10000U, 100000U, 1000000U}) {
    Bench bench;
    bench.fill(blocks);
    const auto managed = static_cast<double>(bench.allocator().stats().reserved.count());
    const auto host = static_cast<double>(bench.host_bytes());
    metadata.push_back(fmt::format("{:<26} {:>18.0f} {:>18.0f} {:>18.4f}",
                                   blocks,
                                   host / 1024,
                                   host / static_cast<double>(blocks),
                                   100 * host / managed));
    rows.push_back(fmt::format("{}", blocks));
    columns[0].figures.push_back(measure(rounds, [&] { return bench.hot_pairs(100000); }));
    columns[1].figures.push_back(measure(rounds, [&] { return bench.churn(100000, blocks); }));
    columns[3].figures.push_back(measure(rounds, [&] { return bench.churn(100000, 1000); }));
    columns[2].figures.push_back(measure(rounds, [&] { return bench.misses(20); }));
  }
  print_table("live blocks", rows, columns);
  fmt::print(
      "\n{:<26} {:>18} {:>18} {:>18}\n", "live blocks", "metadata KiB", "B/block", "% of device");
  for (const std::string& line : metadata) {
    fmt::print("{}\n", line);
  }
}

void by_holes(std::size_t rounds, bool one_size) {
  std::vector<std::string> rows;
  std::vector<Column> columns{{"hot ns/pair", {}}, {"churn ns/pair", {}}, {"miss ns", {}}};
  for (const std::size_t holes : {0U, 1024U, 65536U}) {
    Bench bench;
    // The same number of live blocks whatever the number of holes.
    bench.fill(65536 - holes);
    bench.make_holes(holes, one_size);
    rows.push_back(fmt::format("{}", holes));
    columns[0].figures.push_back(measure(rounds, [&] { return bench.hot_pairs(100000); }));
    columns[2].figures.push_back(measure(rounds, [&] { return bench.misses(20); }));
    columns[1].figures.push_back(
        measure(rounds, [&] { return bench.churn(100000, bench.live().size()); }));
  }
  print_table(one_size ? "holes, all of 64 KiB" : "holes, mixed sizes", rows, columns);
}

}  // namespace
}  // namespace nofrag

int main(int argc, char** argv) {
  const long asked = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 11;
  const auto rounds = static_cast<std::size_t>(std::clamp(asked, 1L, 1000L));
  nofrag::by_live_blocks(rounds);
  nofrag::by_holes(rounds, false);
  nofrag::by_holes(rounds, true);
  return 0;
}
