// What a trace did to memory until one of its requests failed, as a Failure's history.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "cli/explain/explain.h"
#include "cli/explain/hindsight.h"

namespace nofrag {
namespace {

constexpr std::size_t kMostHolders = 16;
constexpr std::uint64_t kLeastPauseUs = 500;
constexpr std::uint64_t kPauseOverUsual = 10;

Bytes rounded(std::uint64_t size) {
  return round_up(Bytes(size), kTraceRounding);
}

// A live block of the growth since the base.
struct Young {
  std::uint64_t size = 0;
  std::uint64_t born = 0;  // bytes allocated until then
};

class Walk {
 public:
  explicit Walk(Timeline* timeline) : timeline_(timeline) {}

  void play(const TraceEvent& event) {
    const std::uint64_t size = rounded(event.size).count();
    note_pause(event.time_us);
    if (event.is_free()) {
      live_ -= Bytes(size);
      --live_blocks_[size];
      young_.erase(event.block);
      timeline_->freed(size, live_.count(), --blocks_);
    } else {
      live_ += Bytes(size);
      ++live_blocks_[size];
      timeline_->allocated(size, live_.count(), ++blocks_);
      if (timeline_->live_at_first_churn() > 0) {
        since_base_ = since_base_ == 0 ? timeline_->allocated_bytes() : since_base_;
        young_[event.block] = {size, timeline_->allocated_bytes()};
      }
    }
    if (timeline_->due()) {
      timeline_->close_window(event.time_us);
    }
  }

  [[nodiscard]] Bytes live() const { return live_; }
  [[nodiscard]] const std::vector<std::uint64_t>& pauses() const { return pauses_; }

  [[nodiscard]] std::vector<Holder> holders() const {
    std::vector<Holder> all;
    for (const auto& [size, blocks] : live_blocks_) {
      if (blocks > 0) {
        all.push_back({Bytes(size), blocks, Bytes(size) * blocks});
      }
    }
    std::sort(
        all.begin(), all.end(), [](const Holder& a, const Holder& b) { return a.total > b.total; });
    all.resize(std::min(all.size(), kMostHolders));
    return all;
  }

  [[nodiscard]] std::optional<Holder> grown() const {
    std::map<std::uint64_t, std::uint64_t> blocks;
    const std::uint64_t over = step_under_way();
    for (const auto& [block, young] : young_) {
      blocks[young.size] += young.born <= over ? 1U : 0U;
    }
    std::optional<Holder> most;
    for (const auto& [size, count] : blocks) {
      if (count > 0 && (!most || Bytes(size) * count > most->total)) {
        most = {Bytes(size), count, Bytes(size) * count};
      }
    }
    return most;
  }

  // Of what was allocated in the later half of the work, without the step under way.
  [[nodiscard]] std::optional<double> growth_age() const {
    const std::uint64_t now = timeline_->allocated_bytes();
    const std::uint64_t half = since_base_ + (now - since_base_) / 2;
    const std::uint64_t step = step_under_way();
    double all = 0;
    double aged = 0;
    for (const auto& [block, young] : young_) {
      if (young.born >= half && young.born <= step) {
        all += static_cast<double>(young.size);
        aged += static_cast<double>(young.size) * static_cast<double>(now - young.born);
      }
    }
    const auto span = static_cast<double>(now - half);
    return all > 0 && span > 0 ? std::optional<double>(aged / all / span) : std::nullopt;
  }

 private:
  // When it began, in bytes allocated.
  [[nodiscard]] std::uint64_t step_under_way() const {
    const Track& cycles = timeline_->cycles();
    return cycles.size() > 1 ? cycles[cycles.size() - 1].allocated_bytes
                             : timeline_->allocated_bytes();
  }
  void note_pause(std::uint64_t now_us) {
    const std::uint64_t gap = now_us - last_us_;
    // By the mean of what came before: a pause must stand out, and be worth a wait.
    const std::uint64_t usual = events_ == 0 ? 0 : usual_gaps_us_ / events_;
    if (gap >= std::max(kLeastPauseUs, kPauseOverUsual * usual)) {
      if (timeline_->live_at_first_churn() > 0) {
        pauses_.push_back(timeline_->allocations());
      }
    } else {
      usual_gaps_us_ += gap;
      ++events_;
    }
    last_us_ = now_us;
  }

  std::uint64_t last_us_ = 0;
  std::uint64_t usual_gaps_us_ = 0;
  std::uint64_t events_ = 0;
  std::vector<std::uint64_t> pauses_;
  Timeline* timeline_;
  Bytes live_;
  std::uint64_t blocks_ = 0;
  std::map<std::uint64_t, std::uint64_t> live_blocks_;
  std::uint64_t since_base_ = 0;
  std::unordered_map<std::uint32_t, Young> young_;
};

}  // namespace

Explained trace_until(const Trace& trace, const FailedRequest& failed) {
  Explained explained;
  explained.kind = "trace";
  explained.timeline = std::make_unique<Timeline>();
  Walk walk(explained.timeline.get());
  std::uint64_t base = 0;
  for (std::uint64_t i = 0; i < failed.event; ++i) {
    walk.play(trace.events[i]);
    base = explained.timeline->live_at_first_churn() == 0 ? i + 1 : base;
  }
  explained.timeline->close_window(failed.time_us);
  Failure& f = explained.failure;
  f.source = "trace";
  f.requested = rounded(failed.size);
  f.live = walk.live();
  f.timeline = explained.timeline.get();
  f.holders = walk.holders();
  f.grown = walk.grown();
  f.growth_age = walk.growth_age();
  f.pauses = walk.pauses();
  const Hindsight seen = look_back(trace, base, failed.event);
  f.growth_kept = seen.growth_kept;
  f.growth_larger = seen.growth_larger;
  f.rise_kept = seen.rise_kept;
  f.repeats = seen.repeats;
  if (failed.goes_on) {
    f.fate = look_ahead(trace, base, failed.event);
  }
  return explained;
}

}  // namespace nofrag
