// The promise of docs/design.md, by brute force on small memories: a request is refused only if nothing
// that can be had covers it. What can be had is worked out from the driver calls and the test's own
// live blocks (physical_ledger.h), never from what the allocator says about itself.
//
//   promise_test                     some hundred random programs
//   promise_test --seeds=N           so many; --first=N starts there
//   promise_test --seed=N            one program again
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "device/device_allocator.h"
#include "physical_ledger.h"

namespace nofrag::model {
namespace {

// With the alias arena free ends of used handles count: a request is refused only if the best free
// suffix and free prefix of two handles, the idle handles and what the driver and the limit still allow
// do not cover it. Without, only whole handles count.
constexpr bool kAliasEngine = true;
// `stranded` are the free bytes between the first and the last used byte of a handle; without, all free
// bytes of used handles.
constexpr bool kStrandedBetween = true;
constexpr std::size_t kMostMappings = kAliasEngine ? 8 : 1;  // addresses of one handle

constexpr DeviceOrdinal kDevice(0);
constexpr Bytes kUnit(512);

std::uint64_t first_seed = 1;
std::uint64_t seed_count = 400;
std::uint64_t running_seed = 0;  // for the message of a check that aborts

struct Setting {
  Bytes memory;
  Bytes granularity;
  Bytes handle;
  Bytes limit;
  Completion completion = Completion::kClock;
  std::uint64_t streams = 1;
  std::uint64_t mix = 0;  // of sizes
  bool recorded = false;  // blocks are used on other streams too
  bool private_pool = false;
  bool others = false;   // another process comes and goes
  bool pins = false;     // some blocks are pinned, and stay so beyond their free
  bool singles = false;  // some blocks must lie in one handle
  bool caches = false;   // threads keep freed blocks
};

Setting setting_of(std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919);
  Setting s;
  s.memory = (32 + 16 * (random() % 15)) * kMiB;
  s.granularity = (random() % 4 == 0 ? 4 : 2) * kMiB;
  s.handle = (std::uint64_t{2} << (random() % 5)) * kMiB;
  s.limit =
      random() % 3 == 0 ? Bytes(s.memory.count() / 4 * 3 + 512 * (random() % 9000)) : kNoLimit;
  s.completion = random() % 2 == 0 ? Completion::kClock : Completion::kByHand;
  s.streams = random() % 2 == 0 ? 1 : 2 + random() % 3;
  s.mix = random() % 4;
  s.recorded = s.streams > 1 && random() % 2 == 0;
  s.private_pool = random() % 4 == 0;
  s.others = random() % 4 == 0;
  s.pins = random() % 3 == 0;
  s.singles = random() % 3 == 0;
  s.caches = random() % 2 == 0;
  return s;
}

// Written so that it compiles before DeviceStats has the field.
template <typename Stats>
bool composable_differs(const Stats& stats, const Layout& layout) {
  if constexpr (requires { stats.composable; }) {
    return stats.composable != layout.composable_ends;
  }
  return false;
}

class Program {
 public:
  explicit Program(std::uint64_t seed)
      : setting_(setting_of(seed)), random_(seed), sim_(spec()), ledger_(sim_) {
    sim_.set_completion(setting_.completion);
    Options options;
    options.handle_size = setting_.handle;
    options.limit = setting_.limit;
    options.thread_caches = setting_.caches;
    allocator_ = std::move(DeviceAllocator::create(ledger_, kDevice, options).value());
  }

  void run() {
    for (int round = 0; round < 3 && failure_.empty(); ++round) {
      // Fill and thin out, then ask for just what can be had.
      for (int step = 0; step < 160 && failure_.empty(); ++step) {
        this->step(round == 0 || step < 40 ? 75 : 52);
      }
      end_filling();
      allocate(obtainable(layout()));
      if (round == 1) {
        release_pool();
      }
    }
    finish();
  }

  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] std::uint64_t served() const { return served_; }
  [[nodiscard]] std::uint64_t refused() const { return refused_; }
  [[nodiscard]] std::uint64_t compared() const { return compared_; }
  [[nodiscard]] std::string describe() const {
    const auto mib = [](Bytes size) { return std::to_string(size / kMiB) + " MiB"; };
    return mib(setting_.memory) + " in granules of " + mib(setting_.granularity) + ", handles of " +
           mib(setting_.handle) + ", " + std::to_string(setting_.streams) + " streams" +
           (setting_.limit == kNoLimit ? "" : ", limit " + mib(setting_.limit)) +
           (setting_.private_pool ? ", a private pool" : "") +
           (setting_.recorded ? ", recorded streams" : "") +
           (setting_.others ? ", another process" : "") + (setting_.pins ? ", pins" : "") +
           (setting_.singles ? ", single handles" : "");
  }

 private:
  struct Block {
    VirtAddr address;
    Bytes size;  // rounded
    std::uint64_t stream = 0;
    std::uint64_t tag = 0;
    bool in_pool = false;  // made while a private pool was being filled
  };
  // Pins of overlapping blocks are one, and hold until the last is undone.
  struct Pinned {
    Extent extent;
    int count = 1;
    std::vector<std::uint64_t> handles;  // what lies there, in order
  };

  [[nodiscard]] SimulatedDeviceSpec spec() const {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = setting_.memory;
    spec.info.granularity = setting_.granularity;
    return spec;
  }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  static StreamId id(std::uint64_t stream) { return StreamId(0x1000 + 0x10 * stream); }

  void expect(bool condition, const std::string& what) {
    if (!condition && failure_.empty()) {
      failure_ = what;
    }
  }

  [[nodiscard]] Layout layout() const {
    std::vector<Extent> extents;
    extents.reserve(live_.size());
    std::set<std::uint64_t> exempt = held_;
    for (const Block& block : live_) {
      extents.push_back({block.address.value(), (block.address + block.size).value()});
      if (block.in_pool) {
        ledger_.handles_of(extents.back(), &exempt);
      }
    }
    return ledger_.layout(extents, exempt, pinned_handles());
  }
  [[nodiscard]] std::set<std::uint64_t> pinned_handles() const {
    std::set<std::uint64_t> handles;
    for (const Pinned& pinned : pinned_) {
      handles.insert(pinned.handles.begin(), pinned.handles.end());
    }
    return handles;
  }

  // ---- pins: from pin to unpin the same handles lie there, and nowhere new
  void pin_some() {
    if (!live_.empty() && below(2) == 0 && pinned_.size() < 4) {
      const Block& block = live_[below(live_.size())];
      const Extent extent{block.address.value(), (block.address + block.size).value()};
      expect(allocator_->pin(block.address + Bytes(below(block.size.count()))).ok(),
             "a live block could not be pinned");
      Pinned pinned{extent, 1, {}};
      std::erase_if(pinned_, [&](const Pinned& other) {
        const bool overlaps =
            other.extent.begin < pinned.extent.end && pinned.extent.begin < other.extent.end;
        if (overlaps) {
          pinned.extent.begin = std::min(pinned.extent.begin, other.extent.begin);
          pinned.extent.end = std::max(pinned.extent.end, other.extent.end);
          pinned.count += other.count;
        }
        return overlaps;
      });
      pinned.handles = ledger_.behind(pinned.extent);
      pinned_.push_back(pinned);
      for (const std::uint64_t handle : pinned_.back().handles) {
        most_places_.try_emplace(handle, ledger_.mappings_of(handle));
      }
    } else if (!pinned_.empty()) {
      unpin(below(pinned_.size()));
    }
  }
  void unpin(std::size_t index) {
    expect(allocator_->unpin(VirtAddr(pinned_[index].extent.begin)).ok(), "unpin failed");
    if (--pinned_[index].count > 0) {
      return;
    }
    pinned_.erase(pinned_.begin() + static_cast<std::ptrdiff_t>(index));
    const std::set<std::uint64_t> still = pinned_handles();
    std::erase_if(most_places_, [&](const auto& entry) { return !still.contains(entry.first); });
  }
  void check_pins() {
    for (const Pinned& pinned : pinned_) {
      expect(ledger_.behind(pinned.extent) == pinned.handles, "pinned memory is not where it was");
    }
    for (const auto& [handle, places] : most_places_) {
      expect(ledger_.mappings_of(handle) <= places, "a pinned handle was mapped once more");
    }
  }

  // The most that one request may be, by the promise.
  Bytes obtainable(const Layout& layout) {
    const Bytes device = sim_.memory_info(kDevice).value().free;
    const Bytes limit = std::min(setting_.limit, setting_.memory);
    const Bytes more = limit > layout.handles ? limit - layout.handles : Bytes(0);
    return layout.composable_whole + round_down(std::min(device, more), setting_.granularity) +
           (kAliasEngine ? layout.composable_ends : Bytes(0));
  }

  Bytes some_size() {
    const Bytes most = std::min(setting_.memory, setting_.limit);
    switch (setting_.mix) {
      case 0:  // mostly small, some large
        return below(8) != 0 ? Bytes(1 + below(std::uint64_t{1} << (9 + below(12))))
                             : Bytes(1 + below(most.count() / 2));
      case 1:  // every order of magnitude
        return Bytes(1 + below(std::min(std::uint64_t{1} << (10 + below(18)), most.count() / 2)));
      case 2:  // about a handle
        return Bytes(setting_.handle.count() / 4 + below(setting_.handle.count() * 2));
      default:  // steps: many alike, then many of another size
        return (1 + (served_ / 60) % 5) * setting_.handle.count() / 3 * Bytes(1) +
               Bytes(below(5000));
    }
  }

  void step(std::uint64_t allocate_percent) {
    const std::uint64_t what = below(100);
    if (what < 4) {
      environment();
    } else if (live_.empty() || below(100) < allocate_percent) {
      allocate(some_size());
    } else {
      free(below(live_.size()));
    }
    if (setting_.private_pool && below(40) == 0) {
      filling_ ? end_filling() : begin_filling();
    }
    if (setting_.completion == Completion::kClock) {
      sim_.advance_us(20);
    } else if (below(10) == 0) {
      sim_.complete_stream(id(below(setting_.streams)));
    }
    if (setting_.pins && below(30) == 0) {
      pin_some();
    }
    check_pins();
    if (below(8) == 0) {
      compare();
    }
  }

  void environment() {
    const std::uint64_t what = below(3);
    if (what == 0) {
      allocator_->trim(Bytes(below(setting_.memory.count())));
    } else if (what == 1 && setting_.others) {
      // Never more than there is.
      sim_.set_memory_of_others(kDevice, Bytes(0));
      sim_.set_memory_of_others(kDevice,
                                Bytes(below(sim_.memory_info(kDevice).value().free.count() + 1)));
    } else if (!live_.empty() && setting_.recorded) {
      use_elsewhere(live_[below(live_.size())]);
    }
  }

  void use_elsewhere(const Block& block) {
    const std::uint64_t other = below(setting_.streams);
    const EventId event = sim_.event_create(kDevice).value();
    expect(sim_.event_record(kDevice, event, id(block.stream)).ok() &&
               sim_.stream_wait(kDevice, id(other), event).ok() &&
               sim_.event_destroy(kDevice, event).ok(),
           "the program's own event failed");
    expect(allocator_->record_stream(block.address, id(other)).ok(), "record_stream failed");
    expect(sim_.launch(id(other), block.address, block.size, block.tag).ok(), "a use failed");
  }

  void allocate(Bytes requested) {
    if (requested.is_zero()) {
      return;
    }
    const Layout before = layout();
    const Bytes size = round_up(requested, kUnit);
    const std::uint64_t stream = below(setting_.streams);
    const bool single = setting_.singles && below(4) == 0;
    const Bytes could = obtainable(before) - (single ? before.composable_ends : Bytes(0));
    const Result<VirtAddr> address = single ? allocator_->allocate_single(requested, id(stream))
                                            : allocator_->allocate(requested, id(stream));
    expect(before.problem.empty(), before.problem);
    note_held();
    if (address.ok()) {
      ++served_;
      serve(address.value(), size, stream, single);
      return;
    }
    ++refused_;
    compare();
    // While a pool is being filled nothing may be waited for, and what it keeps is its own.
    const Bytes whole = round_up(size, setting_.granularity);
    const Bytes needed = kAliasEngine && !single ? size : whole;
    expect(filling_ || could < needed,
           std::to_string(size.count()) + " bytes were refused although " +
               std::to_string(could.count()) + " could be had (" +
               std::to_string(before.composable_whole.count()) + " in whole handles, " +
               std::to_string(before.composable_ends.count()) +
               " at their ends; a handle lies at up to " + std::to_string(ledger_.most_mappings()) +
               " addresses)");
    expect(allocator_->last_oom().requested == requested, "the report is of another request");
  }

  void serve(VirtAddr address, Bytes least, std::uint64_t stream, bool single) {
    // A block that a thread kept may be larger than was asked for.
    const Result<BlockInfo> found = allocator_->find(address);
    const Bytes size = found.ok() ? found.value().size : least;
    expect(size >= least && (setting_.caches || size == least), "a block has the wrong size");
    live_.push_back({address, size, stream, ++tag_, filling_});
    const Extent extent{address.value(), (address + size).value()};
    expect(!single || ledger_.behind(extent).size() == 1, "a single block lies in two handles");
    expect(sim_.write(id(stream), address, size, tag_).ok(),
           "the block's first kernel meets memory that is not its own");
  }

  void free(std::size_t index) {
    const Block block = live_[index];
    expect(sim_.check_contents(block.address, block.size, block.tag).ok(),
           "a live block's bytes were overwritten");
    expect(allocator_->free(block.address).ok(), "free of a live block failed");
    live_[index] = live_.back();
    live_.pop_back();
  }

  // ---- the private pool: what it ever touched is exempt until it is released, and after that what its
  // blocks still lie in
  void begin_filling() {
    note_held();
    filling_ = allocator_->begin_allocate_to_pool(pool_, nullptr).ok();
    expect(filling_, "a pool could not be begun");
    ++pool_uses_;
  }
  void end_filling() {
    if (filling_) {
      expect(allocator_->end_allocate_to_pool(pool_).ok(), "a pool could not be ended");
      filling_ = false;
    }
  }
  void release_pool() {
    end_filling();
    for (; pool_uses_ > 0; --pool_uses_) {
      expect(allocator_->release_pool(pool_).ok(), "a pool could not be released");
    }
    held_.clear();
    ++pool_.second;  // the next one has nothing of this one's
  }
  void note_held() {
    std::set<std::uint64_t> touched;
    ledger_.take_touched(&touched);
    if (filling_) {
      held_.insert(touched.begin(), touched.end());
    }
  }

  // What the allocator says about itself is what the handles show.
  void compare() {
    const DeviceStats s = allocator_->stats();
    const Layout shown = layout();
    expect(shown.problem.empty(), shown.problem);
    expect(s.reserved == shown.handles, "reserved is not the sum of the handles");
    expect(ledger_.most_mappings() <= kMostMappings, "a handle is mapped too often");
    if (s.pending > Bytes(0) || s.kept > Bytes(0)) {
      return;  // which blocks those are the test does not know
    }
    ++compared_;
    const Bytes stranded = kStrandedBetween ? shown.stranded : shown.beside;
    expect(s.stranded == stranded,
           "stranded is " + std::to_string(s.stranded.count()) + ", the handles show " +
               std::to_string(stranded.count()));
    expect(s.free_handles == shown.idle, "free_handles is not the sum of the idle handles");
    expect(s.mapped_in_use == shown.in_use, "mapped_in_use is not the sum of the used handles");
    expect(s.pinned == shown.pinned, "pinned is not the sum of the pinned handles");
    expect(!composable_differs(s, shown), "composable is not the best pair of ends");
  }

  void finish() {
    release_pool();
    sim_.set_memory_of_others(kDevice, Bytes(0));
    while (!pinned_.empty()) {
      unpin(pinned_.size() - 1);
    }
    setting_.singles = false;
    while (!live_.empty() && failure_.empty()) {
      free(below(live_.size()));
    }
    allocate(obtainable(layout()));
    expect(live_.size() == 1, "the whole capacity is not one block's");
    allocator_->check();
    allocator_.reset();
    expect(sim_.leaks().none(), "something leaked");
    expect(sim_.violation_count() == 0, "the driver saw a violation");
    if (sim_.violation_count() != 0) {
      failure_ += ": " + sim_.violations().front();
    }
  }

  Setting setting_;
  std::mt19937_64 random_;
  SimulatedDriver sim_;
  PhysicalLedger ledger_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::vector<Block> live_;
  std::vector<Pinned> pinned_;
  std::map<std::uint64_t, std::size_t> most_places_;  // of each pinned handle
  std::set<std::uint64_t> held_;                      // handles of the private pool
  PoolKey pool_{7, 1};
  bool filling_ = false;
  int pool_uses_ = 0;
  std::uint64_t tag_ = 0;
  std::uint64_t served_ = 0;
  std::uint64_t refused_ = 0;
  std::uint64_t compared_ = 0;
  std::string failure_;
};

TEST(Promise, WhatCanBeHadIsServed) {
  std::uint64_t served = 0;
  std::uint64_t refused = 0;
  std::uint64_t compared = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + seed_count; ++seed) {
    running_seed = seed;
    Program program(seed);
    program.run();
    served += program.served();
    refused += program.refused();
    compared += program.compared();
    ASSERT_TRUE(program.failure().empty())
        << program.failure() << "\n"
        << program.describe() << "\nreplay: promise_test --seed=" << seed;
  }
  std::printf("%llu programs: %llu requests served, %llu refused, stranded compared %llu times\n",
              static_cast<unsigned long long>(seed_count),
              static_cast<unsigned long long>(served),
              static_cast<unsigned long long>(refused),
              static_cast<unsigned long long>(compared));
  // Programs that are never refused, or hardly ever served, would test nothing.
  if (seed_count >= 100) {
    EXPECT_GT(refused, seed_count * 10);
    EXPECT_GT(served, refused);
    EXPECT_GT(compared, seed_count * 10);
  }
}

void on_abort(int) {
  std::fprintf(stderr,
               "a check failed; replay: promise_test --seed=%llu\n",
               static_cast<unsigned long long>(running_seed));
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

bool number_argument(const char* argument, const char* name, std::uint64_t* out) {
  const std::size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0) {
    return false;
  }
  *out = std::strtoull(argument + length, nullptr, 10);
  return true;
}

}  // namespace
}  // namespace nofrag::model

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  using namespace nofrag::model;  // NOLINT(google-build-using-namespace): the program's own names
  for (int i = 1; i < argc; ++i) {
    if (number_argument(argv[i], "--seed=", &first_seed)) {
      seed_count = 1;
    } else if (!number_argument(argv[i], "--first=", &first_seed) &&
               !number_argument(argv[i], "--seeds=", &seed_count)) {
      std::fprintf(stderr, "promise_test: unknown argument '%s'\n", argv[i]);
      return 2;
    }
  }
  std::signal(SIGABRT, on_abort);
  return RUN_ALL_TESTS();
}
