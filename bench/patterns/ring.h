// Ring: a bounded queue from one thread to one other, without a lock, for the benchmarks in which one
// thread allocates and another frees.
//
// Owns: the queued values. Threads: push from one, pop from one other. Each end keeps its last view of
// the other's position and looks again only when it must wait: the price measured is the allocator's.
// A thread that waits spins, then gives its processor away (there may be fewer of them than threads).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <thread>

namespace nofrag::bench {

template <typename T, std::size_t kCapacity = 1024>
class Ring {
  static_assert((kCapacity & (kCapacity - 1)) == 0);

 public:
  void push(const T& value) {
    const std::size_t position = written_.load(std::memory_order_relaxed);
    if (position - seen_read_ == kCapacity) {
      seen_read_ = wait(read_, position - kCapacity);
    }
    slots_[position % kCapacity] = value;
    written_.store(position + 1, std::memory_order_release);
  }

  T pop() {
    const std::size_t position = read_.load(std::memory_order_relaxed);
    if (position == seen_written_) {
      seen_written_ = wait(written_, position);
    }
    const T value = slots_[position % kCapacity];
    read_.store(position + 1, std::memory_order_release);
    return value;
  }

 private:
  // Until `position` is no longer `value`.
  static std::size_t wait(const std::atomic<std::size_t>& position, std::size_t value) {
    for (unsigned spins = 0;; ++spins) {
      const std::size_t now = position.load(std::memory_order_acquire);
      if (now != value) {
        return now;
      }
      if (spins > 4096) {
        std::this_thread::yield();
      }
    }
  }

  std::array<T, kCapacity> slots_{};
  alignas(128) std::atomic<std::size_t> written_{0};
  std::size_t seen_read_ = 0;  // the pushing thread's
  alignas(128) std::atomic<std::size_t> read_{0};
  std::size_t seen_written_ = 0;  // the popping thread's
};

}  // namespace nofrag::bench
