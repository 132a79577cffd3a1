// UnloadedCode: where modules were that are gone, so that an address of one is not taken for the same of the next there.
//
// Owns: a few ranges, which are never taken out, and how often each has been left. Layer: trace.
// Invariants: once add(range) has returned, the generation of each address in the range is another than ever before;
// those of all others stay as they were, until there are more ranges than have room: from then on each new range renews all.
// A range that is left again and again, as by a library that is opened for each use, takes one place.
// Threads: generation_of() by any; add() by one at a time. A thread that asks for an address in code that is loaded must
// have seen every add() for what was there before (StackSampler::follow_loader); then it gets one answer for as long as
// the code stays. Failure: none. Cost: one load where nothing has gone; else a compare or two a range, for each address.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "trace/stacks/native_stack.h"

namespace nofrag {

class UnloadedCode {
 public:
  static constexpr std::size_t kMostRanges = 32;

  // 0: nothing has gone from there.
  [[nodiscard]] std::uint64_t generation_of(std::uint64_t address) const {
    std::uint64_t generation = everywhere_.load(std::memory_order_relaxed);
    const std::size_t count = count_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i) {
      if (ranges_[i].holds(address)) {
        const std::uint64_t there = generations_[i].load(std::memory_order_relaxed);
        generation = there > generation ? there : generation;
      }
    }
    return generation;
  }

  void add(CodeRange gone) {
    ++last_;
    const std::size_t count = count_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < count; ++i) {
      if (ranges_[i] == gone) {
        generations_[i].store(last_, std::memory_order_relaxed);
        return;
      }
    }
    if (count == kMostRanges) {
      everywhere_.store(last_, std::memory_order_relaxed);
      return;
    }
    ranges_[count] = gone;
    generations_[count].store(last_, std::memory_order_relaxed);
    count_.store(count + 1, std::memory_order_release);
  }

 private:
  std::array<CodeRange, kMostRanges> ranges_{};  // Sync: the first count_ are never written again
  std::array<std::atomic<std::uint64_t>, kMostRanges> generations_{};
  std::atomic<std::size_t> count_{0};
  std::atomic<std::uint64_t> everywhere_{0};
  std::uint64_t last_ = 0;  // of the one that adds
};

}  // namespace nofrag
