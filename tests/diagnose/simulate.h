// simulate: memory use over time of made-up jobs, fed into a Timeline with a clock of its own.
//
// Layer: tests of diagnose. Units: bytes, microseconds. Threads: none. Failure: none.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "base/timeline.h"

namespace nofrag {

class SimulatedJob {
 public:
  explicit SimulatedJob(std::uint64_t seed) : random_(seed) {}

  void alloc(std::uint64_t size) {
    blocks_.push_back(size);
    live_ += size;
    peak_ = live_ > peak_ ? live_ : peak_;
    timeline_.allocated(size, live_, ++count_);
    end_event();
  }
  void free_newest() { free_at(blocks_.size() - 1); }
  void free_at(std::size_t i) {
    const std::uint64_t size = blocks_[i];
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
    live_ -= size;
    timeline_.freed(size, live_, --count_);
    end_event();
  }
  void wait(std::uint64_t us) { now_us_ += us; }

  // A load, in equal layers.
  void load(std::uint64_t total, int layers) {
    for (int i = 0; i < layers; ++i) {
      alloc(total / static_cast<std::uint64_t>(layers));
    }
    wait(200'000);
  }
  // Blocks of a step come and go; `peak` is their sum.
  void step(std::uint64_t peak, int blocks) {
    for (int i = 0; i < blocks; ++i) {
      alloc(peak / static_cast<std::uint64_t>(blocks));
    }
    for (int i = 0; i < blocks; ++i) {
      free_newest();
    }
  }
  double uniform(double low, double high) {
    return std::uniform_real_distribution<>(low, high)(random_);
  }

  [[nodiscard]] const Timeline& timeline() const { return timeline_; }
  [[nodiscard]] std::uint64_t live() const { return live_; }
  [[nodiscard]] std::uint64_t peak() const { return peak_; }
  [[nodiscard]] std::uint64_t now_us() const { return now_us_; }
  [[nodiscard]] std::size_t blocks() const { return blocks_.size(); }

 private:
  void end_event() {
    now_us_ += 8 + random_() % 8;
    if (timeline_.due()) {
      timeline_.close_window(now_us_);
    }
  }

  std::mt19937_64 random_;
  Timeline timeline_;
  std::deque<std::uint64_t> blocks_;
  std::uint64_t live_ = 0;
  std::uint64_t peak_ = 0;
  std::uint64_t count_ = 0;
  std::uint64_t now_us_ = 1'000'000;
};

}  // namespace nofrag
