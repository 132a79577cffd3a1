#include "cli/replay/replay_threads.h"

#include <algorithm>
#include <utility>

namespace nofrag {

ReplayThreads::Worker::Worker() : thread([this] { loop(); }) {}

void ReplayThreads::Worker::loop() {
  for (;;) {
    given.acquire();
    if (!task) {
      return;
    }
    task();
    done.release();
  }
}

void ReplayThreads::run(std::uint16_t thread, std::function<void()> task) {
  const std::size_t number = std::min<std::size_t>(thread, kMost - 1);
  if (number >= workers_.size()) {
    workers_.resize(number + 1);
  }
  std::unique_ptr<Worker>& worker = workers_[number];
  if (worker == nullptr) {
    worker = std::make_unique<Worker>();
  }
  worker->task = std::move(task);
  worker->given.release();
  worker->done.acquire();
}

void ReplayThreads::end(std::unique_ptr<Worker>& worker) {
  if (worker != nullptr) {
    worker->task = nullptr;
    worker->given.release();
    worker->thread.join();
    worker.reset();
  }
}

void ReplayThreads::end(std::uint16_t thread) {
  // The last one may be several.
  if (thread < kMost - 1 && thread < workers_.size()) {
    end(workers_[thread]);
  }
}

ReplayThreads::~ReplayThreads() {
  for (std::unique_ptr<Worker>& worker : workers_) {
    end(worker);
  }
}

}  // namespace nofrag
