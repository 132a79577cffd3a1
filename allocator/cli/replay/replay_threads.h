// ReplayThreads: a thread for each thread of a recorded job, taking turns.
//
// What threads keep of their freed memory decides how much a job holds, so a recorded event is played by the
// thread that made it. Only one runs at a time, in the recorded order.
// Owns: the threads. Layer: cli. Invariants: run() returns when its task is done. Recordings with more threads
// than kMost share the last ones.
// Threads: run() by one thread. Failure: none. Cost: some microseconds a change of thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

namespace nofrag {

class ReplayThreads {
 public:
  static constexpr std::size_t kMost = 256;

  ReplayThreads() = default;
  ReplayThreads(const ReplayThreads&) = delete;
  ReplayThreads& operator=(const ReplayThreads&) = delete;
  ~ReplayThreads();

  // The task must not throw.
  void run(std::uint16_t thread, std::function<void()> task);
  // It makes no more events. Not called by itself, but perhaps by another of these threads.
  void end(std::uint16_t thread);

 private:
  struct Worker {
    Worker();
    void loop();

    std::function<void()> task;  // empty: end
    std::binary_semaphore given{0};
    std::binary_semaphore done{0};
    std::thread thread;
  };
  static void end(std::unique_ptr<Worker>& worker);

  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace nofrag
