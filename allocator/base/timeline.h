// Timeline: how a device's memory use went, in a few kilobytes, from the first allocation on.
//
// Owns: three tracks of at most kMost entries. `windows` covers all of the job by work (a number of
// allocations and frees), `ticks` by time (for forecasts), `cycles` by rises and falls of live memory
// (a training step, a request). When a track is full, the older half is merged two by two: what is
// recent stays fine, what is old gets coarse, and maxima and minima are never lost.
// Layer: base; arithmetic only. The device feeds it under its lock; `nofrag explain` from a trace.
// Units: bytes; microseconds of any clock that does not fall. Invariants: entries are in order of time
// and do not overlap; min_live <= max_live. Threads: none of its own.
// Failure: none. Cost: some ten instructions an event; a window's end costs the caller a clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace nofrag {

struct Stretch {
  std::uint64_t start_us = 0;
  std::uint64_t end_us = 0;
  std::uint64_t max_live = 0;
  std::uint64_t min_live = 0;
  std::uint64_t end_live = 0;
  // Two in eight bytes, so that they are moved 16 at a time (5 % of a large pair's instructions); no more than 2^32-1.
  std::uint32_t low_blocks = 0;  // live blocks when live memory was lowest
  std::uint32_t pauses = 0;      // since the start: those of Timeline::pauses()
  std::uint64_t largest_request = 0;
  // Since the start, at the end of the stretch.
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t allocated_bytes = 0;
};

class Track {
 public:
  static constexpr std::size_t kMost = 192;

  void add(const Stretch& stretch);
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const Stretch& operator[](std::size_t i) const { return entries_[i]; }
  [[nodiscard]] const Stretch* begin() const { return entries_.data(); }
  [[nodiscard]] const Stretch* end() const { return entries_.data() + size_; }
  [[nodiscard]] std::uint64_t merges() const { return merges_; }

 private:
  std::array<Stretch, kMost> entries_{};
  std::size_t size_ = 0;
  std::uint64_t merges_ = 0;
};

// Two neighbours as one.
[[nodiscard]] Stretch merged(const Stretch& earlier, const Stretch& later);

class Timeline {
 public:
  // `live` and `blocks`: after the event.
  void allocated(std::uint64_t size, std::uint64_t live, std::uint64_t blocks) {
    // What caches held went back unseen.
    if (live < live_ + size) [[unlikely]] {
      freed(live_ + size - live, live - size, blocks - 1);
    }
    ++allocations_;
    allocated_bytes_ += size;
    const std::uint64_t bit = bit_of(size);
    Seen& seen = seen_[bit / 64];
    seen.now |= std::uint64_t{1} << bit % 64;
    after_pause_bytes_ += size;
    if ((seen.before_pause >> bit % 64 & 1) == 0) {
      new_after_pause_bytes_ += size;
    }
    largest_request_ = size > largest_request_ ? size : largest_request_;
    max_live_ = live > max_live_ ? live : max_live_;
    blocks_ = blocks;
    if (falling_) {
      if (live > low_ + rise_) [[unlikely]] {
        rose(live);
      }
    } else if (live > high_) {
      high_ = live;
    }
    live_ = live;
    --until_window_;
  }
  void freed(std::uint64_t size, std::uint64_t live, std::uint64_t blocks) {
    ++frees_;
    freed_bytes_ += size;
    if (live < min_live_) {
      min_live_ = live;
      min_blocks_ = blocks;
    }
    blocks_ = blocks;
    if (falling_) {
      if (live < low_) {
        fell_to(live);
      }
    } else if (live + least_swing_ < high_ && 2 * live < high_ + last_low_ &&
               high_ - live > usual_fall_ / 2) [[unlikely]] {
      falling_ = true;
      fell_to(live);
    }
    if (!churning_) [[unlikely]] {
      note_churn(live);
    }
    live_ = live;
    --until_window_;
  }
  // Time to call close_window: after every event.
  [[nodiscard]] bool due() const { return until_window_ <= 0; }
  void close_window(std::uint64_t now_us);

  [[nodiscard]] const Track& windows() const { return windows_; }
  [[nodiscard]] const Track& ticks() const { return ticks_; }
  // Complete ones: each from one low of live memory to the next.
  [[nodiscard]] const Track& cycles() const { return cycles_; }
  [[nodiscard]] std::uint64_t cycle_count() const { return cycle_count_; }
  // Live memory when frees first weighed anything: what was there before any work repeated. 0: not yet.
  [[nodiscard]] std::uint64_t live_at_first_churn() const { return live_at_churn_; }
  [[nodiscard]] std::uint64_t allocated_since_churn() const {
    return churning_ ? allocated_bytes_ - allocated_at_churn_ : 0;
  }
  [[nodiscard]] std::uint64_t allocations_at_first_churn() const { return allocations_at_churn_; }
  [[nodiscard]] std::uint64_t allocations_since_churn() const {
    return churning_ ? allocations_ - allocations_at_churn_ : 0;
  }
  // The longest time between two windows, what was live then, and the mean time between all others.
  [[nodiscard]] std::uint64_t longest_pause_us() const { return pause_us_; }
  [[nodiscard]] std::uint64_t live_at_longest_pause() const { return live_at_pause_; }
  // Of the bytes allocated after it, those in sizes that had not come before it.
  [[nodiscard]] double new_share_after_pause() const {
    return after_pause_bytes_ == 0 ? 0
                                   : static_cast<double>(new_after_pause_bytes_) /
                                         static_cast<double>(after_pause_bytes_);
  }
  [[nodiscard]] std::uint64_t usual_pause_us() const {
    return closes_ < 2 ? 0 : (last_us_ - start_us_ - pause_us_) / (closes_ - 1);
  }
  // How often, since the first churn, the time between two windows stood out: a step ended, a result was
  // waited for.
  [[nodiscard]] std::uint64_t pauses() const { return pauses_; }
  [[nodiscard]] std::uint64_t allocations() const { return allocations_; }
  [[nodiscard]] std::uint64_t frees() const { return frees_; }
  [[nodiscard]] std::uint64_t allocated_bytes() const { return allocated_bytes_; }
  [[nodiscard]] std::uint64_t freed_bytes() const { return freed_bytes_; }
  [[nodiscard]] std::uint64_t live() const { return live_; }

 private:
  static constexpr int kLongestWindow = 64;  // events; shorter at the start
  static constexpr std::size_t kSizeBits = 1024;
  static constexpr std::uint64_t kTickUs = 20'000;
  static constexpr std::uint64_t kLeastSwing = std::uint64_t{1} << 20;

  // Of 64 sizes: which came so far, until the last window's end, before the longest pause. In one cache line.
  struct alignas(32) Seen {
    std::uint64_t now = 0;
    std::uint64_t at_close = 0;
    std::uint64_t before_pause = 0;
  };
  // Sizes are remembered by hash: one in kSizeBits unseen ones is taken for seen.
  static std::uint64_t bit_of(std::uint64_t size) { return (size * 0x9e3779b97f4a7c15U) >> 54; }
  void rose(std::uint64_t live);
  void fell_to(std::uint64_t live) {
    low_ = live;
    low_blocks_ = blocks_;
    rise_ = (high_ - live) / 4;
    rise_ = rise_ > least_swing_ ? rise_ : least_swing_;
  }
  void note_churn(std::uint64_t live);
  void note_gap(std::uint64_t gap_us);
  [[nodiscard]] Stretch current(std::uint64_t now_us) const;

  // What every event looks at or changes is in the first lines: each is a journey to memory in a program that needs
  // the processor's caches itself (decision 0006).
  alignas(64) std::uint64_t live_ = 0;
  std::uint64_t blocks_ = 0;
  // The cycle under way: its highest live so far and, once half of its rise is gone, its lowest since. It
  // ends when a quarter of that fall is taken back: temporaries inside a step are not cycles of their own.
  std::uint64_t high_ = 0;
  std::uint64_t low_ = 0;
  std::uint64_t rise_ = 0;
  std::uint64_t max_live_ = 0;  // since the last window's end, as least and largest request
  std::uint64_t min_live_ = 0;
  int until_window_ = 1;
  bool falling_ = false;
  bool churning_ = false;
  // Of allocations.
  std::uint64_t allocations_ = 0;
  std::uint64_t allocated_bytes_ = 0;
  std::uint64_t largest_request_ = 0;
  std::uint64_t after_pause_bytes_ = 0;
  // Of frees.
  std::uint64_t low_blocks_ = 0;
  std::uint64_t min_blocks_ = 0;
  std::uint64_t frees_ = 0;
  std::uint64_t freed_bytes_ = 0;
  std::uint64_t last_low_ = 0;  // where the cycle rose from
  // The fall of a whole unit of work: what falls much less is a part of one.
  std::uint64_t usual_fall_ = 0;
  std::uint64_t least_swing_ = kLeastSwing;
  std::uint64_t new_after_pause_bytes_ = 0;  // of allocations, but hardly ever touched
  std::array<Seen, kSizeBits / 64> seen_{};

  Track windows_;
  Track ticks_;
  Track cycles_;
  Stretch tick_;
  std::uint64_t cycle_count_ = 0;
  std::uint64_t start_us_ = 0;
  std::uint64_t last_us_ = 0;
  std::uint64_t closes_ = 0;
  std::uint64_t pause_us_ = 0;
  std::uint64_t live_at_pause_ = 0;
  std::uint64_t pauses_ = 0;
  std::uint64_t usual_gaps_ = 0;  // and their sum
  std::uint64_t usual_gaps_us_ = 0;
  int window_events_ = 1;
  bool started_ = false;
  std::uint64_t live_at_churn_ = 0;
  std::uint64_t allocated_at_churn_ = 0;
  std::uint64_t allocations_at_churn_ = 0;
  std::uint64_t cycle_largest_ = 0;
  std::uint64_t cycle_start_us_ = 0;
};

}  // namespace nofrag
