// CallbackList: up to 32 (function, user) pairs that may be changed while they are being called.
//
// Owns: copies of the pairs. Layer: runtime. Invariants: no pair twice; count() <= kMost.
// Threads: any. for_each calls without the lock on a copy, so a callback may add, remove and
// allocate, and one that was just removed may still be running. A call made from inside a callback of
// the same kind by the same thread calls none: an allocation that fails in an out-of-memory callback
// does not start it again. Failure: add() is false when full,
// remove() when the pair is not there. Cost: O(kMost).
#pragma once

#include <array>
#include <cstddef>
#include <mutex>

namespace nofrag {

// Marks this thread as calling the callbacks of `list`, for as long as it lives.
class CallbackGuard {
 public:
  explicit CallbackGuard(const void* list);
  CallbackGuard(const CallbackGuard&) = delete;
  CallbackGuard& operator=(const CallbackGuard&) = delete;
  ~CallbackGuard();
  [[nodiscard]] bool inside_already() const { return inside_already_; }

 private:
  const void* list_;
  bool inside_already_ = false;
};

template <typename Function>
class CallbackList {
 public:
  static constexpr std::size_t kMost = 32;

  bool add(Function function, void* user) {
    const std::lock_guard lock(mutex_);
    if (find(function, user) < count_) {
      return true;
    }
    if (count_ == kMost) {
      return false;
    }
    entries_[count_++] = {function, user};
    return true;
  }

  bool remove(Function function, void* user) {
    const std::lock_guard lock(mutex_);
    const std::size_t at = find(function, user);
    if (at == count_) {
      return false;
    }
    for (std::size_t i = at + 1; i < count_; ++i) {
      entries_[i - 1] = entries_[i];
    }
    --count_;
    return true;
  }

  // `call(function, user)` for each, in the order they were added.
  template <typename Call>
  void for_each(Call call) {
    CallbackGuard guard(this);
    if (guard.inside_already()) {
      return;
    }
    std::array<Entry, kMost> copy;
    std::size_t count = 0;
    {
      const std::lock_guard lock(mutex_);
      copy = entries_;
      count = count_;
    }
    for (std::size_t i = 0; i < count; ++i) {
      call(copy[i].function, copy[i].user);
    }
  }

 private:
  struct Entry {
    Function function = nullptr;
    void* user = nullptr;
  };

  std::size_t find(Function function, void* user) const {
    std::size_t i = 0;
    while (i < count_ && (entries_[i].function != function || entries_[i].user != user)) {
      ++i;
    }
    return i;
  }

  std::mutex mutex_;
  std::array<Entry, kMost> entries_{};  // Sync: mutex_
  std::size_t count_ = 0;               // Sync: mutex_
};

}  // namespace nofrag
