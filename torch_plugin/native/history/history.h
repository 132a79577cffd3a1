// History: what torch.cuda.memory._record_memory_history asked for, and who is told of memory events.
//
// Owns: the settings, trackers, observers and annotations of the process. The entries themselves are kept by
// each device (TraceRing), in the order of its events.
// Threads: any; gather() and wants_events() are lock-free. Compile contexts and user metadata belong to the
// calling thread, as PyTorch has it.
// Failure: the recorder of contexts is PyTorch's, and may throw.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch_plugin/native/abi/types.h"

namespace nofrag::native {

// The last entries of one device. Under the device's mutex.
class TraceRing {
 public:
  void set_most(std::size_t most);
  void clear();
  void add(TraceEntry entry);
  // Oldest first.
  [[nodiscard]] std::vector<TraceEntry> entries() const;

 private:
  std::size_t most_ = 1;
  std::size_t next_ = 0;  // the oldest, once the ring is full
  std::vector<TraceEntry> entries_;
};

class History {
 public:
  // Whether a stack is to be taken for events of this level, and if so, that of the calling thread.
  [[nodiscard]] Context gather(RecordContext level) const {
    return when_.load(std::memory_order_relaxed) >= level ? take_context() : nullptr;
  }
  [[nodiscard]] bool recording() const { return recording_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool tracked() const { return tracked_.load(std::memory_order_relaxed); }
  // Is anybody interested in events at all?
  [[nodiscard]] bool wants_events() const { return recording() || tracked(); }
  [[nodiscard]] bool skips(TraceEntry::Action action) const;

  void set(const HistorySettings& settings);
  // An entry of the event, with what the thread has said about itself.
  [[nodiscard]] TraceEntry entry(TraceEvent&& event) const;

  void annotate(c10::DeviceIndex device, const Annotations& metadata);
  [[nodiscard]] std::vector<AnnotationEntry> annotations() const;

  static void push_compile_context(const std::string& text);
  static void pop_compile_context();
  static void set_user_metadata(const std::string& text);
  static std::string user_metadata();

  void add_tracker(torch_cuda::AllocatorTraceTracker tracker);
  void add_observer(torch_cuda::OutOfMemoryObserver observer);
  // Both without any lock. What a tracker throws is reported and ends there: memory came or went already, and
  // it may be a destructor that waits.
  void tell_trackers(const TraceEntry& entry) const noexcept;
  void tell_observers(int device, std::size_t requested, std::size_t total, std::size_t free) const;

 private:
  [[nodiscard]] Context take_context() const;

  using Trackers = std::vector<torch_cuda::AllocatorTraceTracker>;

  std::atomic<bool> recording_{false};
  std::atomic<bool> tracked_{false};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::atomic<ContextRecorder> recorder_{nullptr};
  std::atomic<std::uint32_t> skipped_{0};  // a bit an action
  mutable std::mutex mutex_;
  std::size_t most_annotations_ = 1;                                         // Sync: mutex_
  std::vector<AnnotationEntry> annotations_;                                 // Sync: mutex_, a ring
  std::size_t next_annotation_ = 0;                                          // Sync: mutex_
  std::shared_ptr<const Trackers> trackers_ = std::make_shared<Trackers>();  // Sync: mutex_
  std::vector<torch_cuda::OutOfMemoryObserver> observers_;                   // Sync: mutex_
};

}  // namespace nofrag::native
