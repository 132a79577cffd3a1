// Ring: the events of one thread on their way to the recorder's writer.
//
// Owns: its slots. Shared by its thread, which fills it, and the recorder, whose writer empties it.
// Layer: trace. Invariants: events are taken in the order in which they were put; none is overwritten.
// Threads: reserve and publish by one thread, drain by one other; no lock, no read-modify-write.
// Failure: reserve gives nullptr when the ring is full. Cost: one cache line written an event.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "trace/record/record_event.h"
#include "trace/stacks/stack_sampler.h"

namespace nofrag {

class Ring {
 public:
  static constexpr std::uint64_t kSlots = std::uint64_t{1} << 14;

  Ring(std::uint16_t thread_number, std::uint64_t kernel_id)
      : thread(thread_number),
        kernel_thread(kernel_id),
        slots_(std::make_unique_for_overwrite<RecordEvent[]>(kSlots)) {}
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // The owner: a slot to fill, which publish() hands over.
  [[nodiscard]] RecordEvent* reserve() {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_seen_ >= kSlots) [[unlikely]] {
      tail_seen_ = tail_.load(std::memory_order_acquire);
      if (head - tail_seen_ >= kSlots) {
        return nullptr;
      }
      stalled_ = false;
    }
    return &slots_[head % kSlots];
  }
  // True now and then, when the writer should come before its time.
  [[nodiscard]] bool publish() {
    const std::uint64_t head = head_.load(std::memory_order_relaxed) + 1;
    head_.store(head, std::memory_order_release);
    return head % (kSlots / 4) == 0;
  }
  // An event found no room, however long its thread waited; none has since.
  [[nodiscard]] bool stalled() const { return stalled_; }
  void note_lost() {
    stalled_ = true;
    lost_.store(lost_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // The writer: everything published so far.
  void drain(std::vector<RecordEvent>* events) {
    std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    const std::uint64_t head = head_.load(std::memory_order_acquire);
    for (; tail != head; ++tail) {
      events->push_back(slots_[tail % kSlots]);
    }
    tail_.store(tail, std::memory_order_release);
  }
  [[nodiscard]] std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

  void note_thread_ended(std::uint64_t tick) {
    end_tick_.store(tick, std::memory_order_relaxed);
    ended_.store(true, std::memory_order_release);
  }
  // Then nothing more comes, and drain() finds the last of it.
  [[nodiscard]] std::uint64_t end_tick() const { return end_tick_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool thread_ended() const { return ended_.load(std::memory_order_acquire); }

  const std::uint16_t thread;
  const std::uint64_t kernel_thread;
  // The owner's; nullptr if no call stacks are recorded, or the ring is that of threads which are ending.
  std::unique_ptr<StackSampler::Thread> stacks;

 private:
  const std::unique_ptr<RecordEvent[]> slots_;
  alignas(64) std::atomic<std::uint64_t> head_{0};  // Sync: written by the owner
  std::uint64_t tail_seen_ = 0;                     // the owner's
  bool stalled_ = false;                            // the owner's
  std::atomic<std::uint64_t> lost_{0};              // Sync: written by the owner
  alignas(64) std::atomic<std::uint64_t> tail_{0};  // Sync: written by the writer
  std::atomic<bool> ended_{false};
  std::atomic<std::uint64_t> end_tick_{0};
};

}  // namespace nofrag
