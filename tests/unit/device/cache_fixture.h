// CacheFixture: a device whose threads keep what they free, and a second thread that does what it is told.
//
// Owns: the second thread, besides what DeviceFixture does. Layer: tests. The device has far more memory than
// what can be had of it, and does not tell, so that caches are large (8 MiB a stream) and memory is short where a
// test wants it.
// Units: Bytes. Threads: a task of the other thread is over when other() returns. Failure: DeviceFixture's.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device_fixture.h"

namespace nofrag {

// One thread that lives on between its tasks.
class TaskThread {
 public:
  TaskThread() : thread_([this] { loop(); }) {}
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  ~TaskThread() {
    run({});
    thread_.join();
  }
  // An empty task ends the thread.
  void run(std::function<void()> task) {
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = std::move(task);
    busy_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !busy_; });
  }

 private:
  void loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (bool going_on = true; going_on;) {
      changed_.wait(lock, [this] { return busy_; });
      going_on = static_cast<bool>(task_);
      if (going_on) {
        task_();
      }
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  bool busy_ = false;
  std::thread thread_;
};

class CacheFixture : public DeviceFixture {
 protected:
  static constexpr Bytes kTotal = 16 * kGiB;

  CacheFixture() { caches_ = true; }

  static Options small_handles() {
    Options options;
    options.handle_size = 4 * kMiB;
    return options;
  }
  void open(Bytes memory = 4 * kGiB, const Options& options = small_handles()) {
    start(kTotal, options);
    recorder_->hide_others();
    sim_->set_memory_of_others(kDevice, kTotal - memory);
  }
  [[nodiscard]] DeviceStats stats() const { return allocator_->stats(); }
  [[nodiscard]] Bytes kept() const { return stats().kept; }
  void other(std::function<void()> task) {
    if (other_ == nullptr) {
      other_ = std::make_unique<TaskThread>();
    }
    other_->run(std::move(task));
  }
  void end_other() { other_.reset(); }

  std::vector<VirtAddr> allocate_many(std::size_t count, Bytes size, StreamId stream = kA) {
    std::vector<VirtAddr> blocks;
    for (std::size_t i = 0; i < count; ++i) {
      const VirtAddr block = allocate(size, stream);
      if (block.is_null()) {
        ADD_FAILURE() << "block " << i << " was refused: " << allocator_->last_oom_message();
        break;
      }
      blocks.push_back(block);
    }
    return blocks;
  }
  void free_all(const std::vector<VirtAddr>& blocks) {
    for (const VirtAddr block : blocks) {
      free(block);
    }
  }
  // The thread that calls keeps `count` blocks afterwards, as far as there is room for them.
  void keep(std::size_t count, Bytes size, StreamId stream = kA) {
    free_all(allocate_many(count, size, stream));
  }
  // A block, freed and kept.
  VirtAddr kept_block(Bytes size, StreamId stream = kA) {
    const VirtAddr block = allocate(size, stream);
    free(block);
    EXPECT_GE(kept(), size);
    return block;
  }
  // What must be true of every snapshot while nobody else is at work.
  void expect_sums(const DeviceStats& s) const {
    EXPECT_LE(s.requested, s.live);
    EXPECT_EQ(s.live + s.pending, s.allocated);
    EXPECT_EQ(s.mapped_in_use, s.allocated + s.kept + s.free_ends + s.stranded);
    EXPECT_EQ(s.reserved, s.mapped_in_use + s.free_handles);
    EXPECT_GE(s.peak_live, s.live);
    EXPECT_GE(s.peak_allocated, s.allocated);
    EXPECT_GE(s.peak_allocated, s.peak_live);
    EXPECT_GE(s.peak_reserved, s.reserved);
    EXPECT_EQ(s.allocations - s.frees, s.live_blocks);
  }

 private:
  std::unique_ptr<TaskThread> other_;
};

}  // namespace nofrag
