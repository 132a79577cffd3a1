#include "peers/loads.h"

#include <algorithm>
#include <random>

namespace nofrag::bench {
namespace {

class Pair final : public Load {
 public:
  explicit Pair(Door door) : door_(door) {}
  void pairs(std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      door_.free(door_.allocate(kSmallSize));
    }
  }

 private:
  Door door_;
};

// A random live block is freed and one of another size allocated.
class Mixed final : public Load {
 public:
  Mixed(Door door, std::uint64_t seed) : door_(door), sizes_(seed) {}
  void prepare() override {
    while (live_.size() < kMixedLive) {
      live_.push_back(door_.allocate(sizes_.next()));
    }
  }
  void pairs(std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      Block& block = live_[sizes_.below(kMixedLive)];
      door_.free(block);
      block = door_.allocate(sizes_.next());
    }
  }
  void finish() override {
    for (const Block& block : live_) {
      door_.free(block);
    }
  }

 private:
  Door door_;
  MixedSizes sizes_;
  std::vector<Block> live_;
};

// Large sizes in turn, each `repeats` times. All were live together before, so there is memory for
// each.
class Large final : public Load {
 public:
  Large(Door door, std::size_t repeats) : door_(door), repeats_(repeats) {}
  void prepare() override {
    std::vector<Block> live;
    for (const std::size_t size : kLargeSizes) {
      live.push_back(door_.allocate(size));
    }
    for (const Block& block : live) {
      door_.free(block);
    }
  }
  void pairs(std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      door_.free(door_.allocate(kLargeSizes[next_++ / repeats_ % kLargeSizes.size()]));
    }
  }

 private:
  Door door_;
  std::size_t repeats_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Load> make_load(const std::string& pattern, Door door, std::uint64_t seed) {
  if (pattern == "pair-4k") {
    return std::make_unique<Pair>(door);
  }
  if (pattern == "mixed") {
    return std::make_unique<Mixed>(door, seed);
  }
  if (pattern == "large-repeat") {
    return std::make_unique<Large>(door, 16);
  }
  if (pattern == "large-cycle") {
    return std::make_unique<Large>(door, 1);
  }
  return nullptr;
}

void Holes::prepare() {
  MixedSizes sizes(1);
  std::vector<Block> gaps;
  Clock::time_point begin = Clock::now();
  while (gaps.size() < kHoles && Clock::now() - begin < most_) {
    gaps.push_back(door_.allocate(sizes.next()));
    door_.allocate(512);
  }
  std::shuffle(gaps.begin(), gaps.end(), std::mt19937_64(1));
  begin = Clock::now();
  while (made_ < gaps.size() && Clock::now() - begin < most_) {
    door_.free(gaps[made_++]);
  }
}

void Holes::pairs(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    door_.free(door_.allocate(requests_.next()));
  }
}

void Producer::pairs(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    ring_.push(door_.allocate(kSmallSize));
  }
}

void consume(Door door, Ring<Block>& ring) {
  for (Block block = ring.pop(); block.address != nullptr; block = ring.pop()) {
    door.free(block);
  }
}

Tally run_for(Load& load, std::chrono::duration<double> length) {
  constexpr std::size_t kMostBatch = 4096;
  constexpr std::chrono::microseconds kBatchTime{20};
  Tally tally;
  std::size_t batch = 1;
  const Clock::time_point begin = Clock::now();
  Clock::time_point last = begin;
  while (last - begin < length) {
    load.pairs(batch);
    tally.pairs += batch;
    const Clock::time_point now = Clock::now();
    if (now - last < kBatchTime && batch < kMostBatch) {
      batch *= 2;
    }
    last = now;
  }
  tally.nanoseconds = std::chrono::duration<double, std::nano>(last - begin).count();
  return tally;
}

}  // namespace nofrag::bench
