// RequestMix: which requests a job makes, small or large ones, counted and not timed, so that a replay tells what a
// job will do.
//
// Where large requests are many, small blocks that lie apart for a while decide where those go, and nearly none of
// the small requests meets one of its size; where small ones are many it is the other way round.
// Owns: two counts. Layer: device (private header). Units: requests.
// Invariants: none. Threads: none (the device lock). Failure: none.
// Decision: docs/decisions/0006-thread-caches.md
#pragma once

#include <algorithm>
#include <cstdint>

namespace nofrag {

class RequestMix {
 public:
  // Small requests that missed come thick and fast, with hardly any large one.
  [[nodiscard]] bool hot() const { return hot_; }
  // With several streams: small requests, hits too, are many more than large ones. Taken for so until the second
  // large one; with one stream always.
  [[nodiscard]] bool fine() const { return fine_; }

  // A request that no cache served, after so many `hits` of its thread. True if an answer changed.
  bool note(bool small, std::int64_t hits, bool several) {
    misses_ =
        small ? std::min(misses_ + 1, 2 * kManyMisses) : misses_ - std::min(misses_, kMissesALarge);
    // (One stream's hits may be large ones.)
    const auto hit = static_cast<std::uint32_t>(std::clamp<std::int64_t>(hits, 0, kMostSmall));
    const std::uint32_t all = std::min(several ? small_ + hit : kFirst, kMostSmall);
    small_ = !several ? kFirst
             : small  ? std::min(all + 1, kMostSmall)
                      : all - std::min(all, kSmallALarge);
    const bool hot = misses_ >= (hot_ ? kManyMisses / 2 : kManyMisses);
    const bool fine = !several || small_ >= (fine_ ? kManySmall / 2 : kManySmall);
    const bool changed = hot != hot_ || fine != fine_;
    hot_ = hot;
    fine_ = fine;
    return changed;
  }

 private:
  // A large request undoes so many small ones that missed, or so many small ones.
  static constexpr std::uint32_t kManyMisses = 512;
  static constexpr std::uint32_t kMissesALarge = 64;
  static constexpr std::uint32_t kManySmall = 256;
  static constexpr std::uint32_t kSmallALarge = 8;
  static constexpr std::uint32_t kMostSmall = 2 * kManySmall;
  static constexpr std::uint32_t kFirst = kManySmall / 2 + kSmallALarge;

  std::uint32_t misses_ = 0;
  std::uint32_t small_ = kFirst;
  bool hot_ = false;
  bool fine_ = true;
};

}  // namespace nofrag
