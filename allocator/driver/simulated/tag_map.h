// TagMap: which tag every byte of a handle holds, as intervals.
//
// Owns: the written intervals of one handle; bytes outside them hold 0. Layer: driver. Units:
// byte offsets. Invariants: intervals are disjoint, non-empty and hold non-zero tags.
// Threads: none. Cost: O(log intervals + intervals replaced). Nothing is allocated before the first
// write, so that replays, which never write, do not pay for it.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace nofrag {

class TagMap {
 public:
  void fill(std::uint64_t begin, std::uint64_t end, std::uint64_t tag) {
    split(begin);
    split(end);
    intervals_.erase(intervals_.lower_bound(begin), intervals_.lower_bound(end));
    if (tag != 0) {
      intervals_.emplace(begin, Interval{end, tag});
    }
  }

  // The one tag of [begin, end), or none if the bytes differ.
  [[nodiscard]] std::optional<std::uint64_t> tag_of(std::uint64_t begin, std::uint64_t end) const {
    auto it = intervals_.upper_bound(begin);
    if (it != intervals_.begin() && std::prev(it)->second.end > begin) {
      --it;
    }
    if (it == intervals_.end() || it->first >= end) {
      return 0;
    }
    const std::uint64_t tag = it->second.tag;
    std::uint64_t covered = begin;
    for (; it != intervals_.end() && it->first <= covered && covered < end; ++it) {
      if (it->second.tag != tag) {
        return std::nullopt;
      }
      covered = it->second.end;
    }
    return covered >= end ? std::optional(tag) : std::nullopt;
  }

 private:
  struct Interval {
    std::uint64_t end;
    std::uint64_t tag;
  };

  // Makes `at` a boundary of whatever interval it lies in.
  void split(std::uint64_t at) {
    auto it = intervals_.lower_bound(at);
    if (it == intervals_.begin()) {
      return;
    }
    --it;
    if (it->second.end > at) {
      intervals_.emplace(at, it->second);
      it->second.end = at;
    }
  }

  std::map<std::uint64_t, Interval> intervals_;
};

}  // namespace nofrag
