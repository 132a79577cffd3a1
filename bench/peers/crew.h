// Crew: threads that live as long as the program, each with its own stream and the device in use.
//
// Owns: the threads. What a thread caches is still there in its next round, as in a program that runs
// for hours. Threads: run() from one. Failure: none (what goes wrong in a task ends the program).
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "peers/peer.h"

namespace nofrag::bench {

class Crew {
 public:
  explicit Crew(unsigned most) {
    for (unsigned index = 0; index < most; ++index) {
      threads_.emplace_back([this, index] { serve(index); });
    }
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    begin_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  // task(index) in the first `count` threads; returns when all are done.
  void run(unsigned count, const std::function<void(unsigned)>& task) {
    std::unique_lock lock(mutex_);
    task_ = &task;
    count_ = count;
    busy_ = count;
    ++turn_;
    begin_.notify_all();
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void serve(unsigned index) {
    use_device();
    unsigned long seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      begin_.wait(lock, [&] { return ending_ || (turn_ != seen && index < count_); });
      if (ending_) {
        return;
      }
      seen = turn_;
      const std::function<void(unsigned)>& task = *task_;
      lock.unlock();
      task(index);
      lock.lock();
      if (--busy_ == 0) {
        done_.notify_all();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable done_;
  const std::function<void(unsigned)>* task_ = nullptr;
  unsigned count_ = 0;
  unsigned busy_ = 0;
  unsigned long turn_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nofrag::bench
