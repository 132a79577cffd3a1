#include "base/timeline.h"

#include <algorithm>

namespace nofrag {
namespace {

// A rise or fall of less than this share of the peak is noise.
constexpr std::uint64_t kSwingShare = 2048;
// A fall this many times the usual one starts the count of cycles anew.
constexpr std::uint64_t kNewScale = 3;
// A large fall that does not come again is forgotten, by this share a cycle.
constexpr std::uint64_t kForget = 64;
constexpr std::uint64_t kLeastPauseUs = 500;
constexpr std::uint64_t kPauseOverUsual = 10;

std::uint32_t at_most_32_bits(std::uint64_t count) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, UINT32_MAX));
}

}  // namespace

Stretch merged(const Stretch& earlier, const Stretch& later) {
  Stretch both = later;
  both.start_us = earlier.start_us;
  both.max_live = std::max(earlier.max_live, later.max_live);
  both.min_live = std::min(earlier.min_live, later.min_live);
  both.low_blocks = earlier.min_live < later.min_live ? earlier.low_blocks : later.low_blocks;
  both.largest_request = std::max(earlier.largest_request, later.largest_request);
  return both;
}

void Track::add(const Stretch& stretch) {
  if (size_ == kMost) {
    constexpr std::size_t kQuarter = kMost / 4;
    for (std::size_t i = 0; i < kQuarter; ++i) {
      entries_[i] = merged(entries_[2 * i], entries_[2 * i + 1]);
    }
    std::copy(entries_.begin() + 2 * kQuarter, entries_.end(), entries_.begin() + kQuarter);
    size_ = kMost - kQuarter;
    ++merges_;
  }
  entries_[size_++] = stretch;
}

Stretch Timeline::current(std::uint64_t now_us) const {
  Stretch stretch;
  stretch.start_us = last_us_;
  stretch.end_us = now_us;
  stretch.max_live = std::max(max_live_, live_);
  stretch.min_live = std::min(min_live_, live_);
  stretch.end_live = live_;
  stretch.low_blocks = at_most_32_bits(live_ < min_live_ ? blocks_ : min_blocks_);
  stretch.largest_request = largest_request_;
  stretch.allocations = allocations_;
  stretch.frees = frees_;
  stretch.allocated_bytes = allocated_bytes_;
  stretch.pauses = at_most_32_bits(pauses_);
  return stretch;
}

// By the mean of what came before: a pause must stand out, and be worth a wait.
void Timeline::note_gap(std::uint64_t gap_us) {
  const std::uint64_t usual = usual_gaps_ == 0 ? 0 : usual_gaps_us_ / usual_gaps_;
  if (gap_us >= std::max(kLeastPauseUs, kPauseOverUsual * usual)) {
    pauses_ += churning_ ? 1U : 0U;
  } else {
    usual_gaps_us_ += gap_us;
    ++usual_gaps_;
  }
}

void Timeline::close_window(std::uint64_t now_us) {
  if (!started_) {
    started_ = true;
    start_us_ = now_us;
    last_us_ = now_us;
    cycle_start_us_ = now_us;
    tick_.start_us = now_us;
    tick_.min_live = UINT64_MAX;
  }
  ++closes_;
  note_gap(now_us - last_us_);
  if (now_us - last_us_ > pause_us_) {
    pause_us_ = now_us - last_us_;
    // It lay somewhere in this window: what is known for certain is how things stood before.
    live_at_pause_ = windows_.size() == 0 ? 0 : windows_[windows_.size() - 1].end_live;
    for (Seen& seen : seen_) {
      seen.before_pause = seen.at_close;
    }
    after_pause_bytes_ = 0;
    new_after_pause_bytes_ = 0;
  }
  const Stretch window = current(now_us);
  windows_.add(window);
  least_swing_ = std::max(least_swing_, window.max_live / kSwingShare);
  cycle_largest_ = std::max(cycle_largest_, largest_request_);
  const std::uint64_t tick_start = tick_.start_us;
  tick_ = tick_.end_us == 0 ? window : merged(tick_, window);
  tick_.start_us = tick_start;
  if (now_us - tick_.start_us >= kTickUs) {
    ticks_.add(tick_);
    tick_ = Stretch{};
    tick_.start_us = now_us;
    tick_.min_live = UINT64_MAX;
  }
  last_us_ = now_us;
  for (Seen& seen : seen_) {
    seen.at_close = seen.now;
  }
  largest_request_ = 0;
  max_live_ = live_;
  min_live_ = live_;
  min_blocks_ = blocks_;
  // Every event at first, so that a short job has a history too.
  if (windows_.size() == Track::kMost && window_events_ < kLongestWindow) {
    window_events_ *= 2;
  }
  until_window_ = window_events_;
}

void Timeline::rose(std::uint64_t live) {
  const std::uint64_t fall = high_ - low_;
  if (usual_fall_ > 0 && fall > kNewScale * usual_fall_) {
    // What were taken for units of work were parts of one.
    cycles_ = Track();
    cycle_count_ = 0;
  }
  usual_fall_ = std::max(fall, usual_fall_ - usual_fall_ / kForget);
  Stretch cycle = current(last_us_);
  cycle.start_us = cycle_start_us_;
  cycle.max_live = high_;
  cycle.min_live = low_;
  cycle.end_live = low_;
  cycle.low_blocks = at_most_32_bits(low_blocks_);
  cycle.largest_request = std::max(cycle_largest_, largest_request_);
  cycles_.add(cycle);
  ++cycle_count_;
  cycle_start_us_ = last_us_;
  cycle_largest_ = 0;
  falling_ = false;
  last_low_ = low_;
  high_ = live;
}

void Timeline::note_churn(std::uint64_t live) {
  constexpr std::uint64_t kLeastShare = 50;
  if (freed_bytes_ * kLeastShare >= live + freed_bytes_) {
    churning_ = true;
    live_at_churn_ = live;
    allocated_at_churn_ = allocated_bytes_;
    allocations_at_churn_ = allocations_;
    last_low_ = std::max(last_low_, live);
  }
}

}  // namespace nofrag
