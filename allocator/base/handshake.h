// Handshake: a door that one thread passes all the time and others close now and then. The owner passes
// with two plain stores and a load; whoever closes pays for the order of memory between them.
//
// Owns: two flags. Layer: base.
// Invariants: while a closer holds the door (close() and await() have returned, open() not yet) the owner is
// outside; what either did inside happens before what the other does there next.
// Threads: enter and leave by the owner; close, await and open by one closer at a time (a lock of theirs). The
// owner must not wait for the closers' lock inside.
// Failure: none. Where the kernel has no membarrier for processes the owner pays a fence each time instead; if a
// sandbox forbids it later, whoever closes waits for two milliseconds.
// Cost: enter and leave about a nanosecond each; close_all some microseconds.
// Decision: docs/decisions/0006-thread-caches.md
#pragma once

#include <atomic>

namespace nofrag {

// Every other thread of the process has executed a full fence since the call began.
void fence_everywhere();
// Whether fence_everywhere works here; asked of the kernel once.
bool can_fence_everywhere();

class Handshake {
 public:
  Handshake() : light_(can_fence_everywhere()) {}
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  // False: the door is closed, stay outside.
  bool enter() {
    if (light_) [[likely]] {
      inside_.store(true, std::memory_order_relaxed);
      // For the compiler alone: the closer's fence_everywhere orders the processor.
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      inside_.exchange(true, std::memory_order_seq_cst);
    }
    if (closed_.load(std::memory_order_seq_cst)) [[unlikely]] {
      inside_.store(false, std::memory_order_release);
      return false;
    }
    return true;
  }
  void leave() { inside_.store(false, std::memory_order_release); }

  // First for each door, then once fence_everywhere, then await for each.
  void close() { closed_.store(true, std::memory_order_seq_cst); }
  void await() const;
  void open() { closed_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> inside_{false};
  std::atomic<bool> closed_{false};
  const bool light_;
};

}  // namespace nofrag
