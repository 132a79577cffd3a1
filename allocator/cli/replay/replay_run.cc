#include "cli/replay/replay_run.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include <nofrag/trace_format.h>

#include "cli/replay/replay_threads.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kProgressEvery = std::uint64_t{1} << 16;

double thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// Index of the first event of quarter q (0 to 4) of the trace's duration.
std::size_t quarter_start(const Trace& trace, unsigned quarter) {
  if (quarter == 0) {
    return 0;
  }
  if (quarter == 4) {
    return trace.events.size();
  }
  const double start = static_cast<double>(trace.events.front().time_us) +
                       static_cast<double>(trace.duration_us()) * quarter / 4.0;
  const auto at = std::lower_bound(
      trace.events.begin(), trace.events.end(), start, [](const TraceEvent& event, double time) {
        return static_cast<double>(event.time_us) < time;
      });
  return static_cast<std::size_t>(at - trace.events.begin());
}

class Player {
  using Clock = std::chrono::steady_clock;

 public:
  Player(const Trace& trace, const ReplayTarget& target, ReplayRun* run)
      : trace_(trace),
        target_(target),
        run_(run),
        note_count_(trace.recording != nullptr ? trace.recording->notes.size() : 0) {}

  // False when the run is over before its time.
  bool play(std::size_t first, std::size_t last) {
    if (!target_.with_threads || trace_.recording == nullptr) {
      return play_here(first, last);
    }
    const std::vector<std::uint16_t>& threads = trace_.recording->event_threads;
    bool going = true;
    while (going && first < last) {
      const std::uint16_t thread = threads[first];
      std::size_t end = first + 1;
      while (end < last && threads[end] == thread) {
        ++end;
      }
      playing_ = thread;
      threads_.run(thread, [&] { going = play_here(first, end); });
      first = end;
    }
    return going;
  }

 private:
  bool play_here(std::size_t first, std::size_t last) {
    const double before = thread_cpu_ns();
    std::size_t i = first;
    Status status;
    for (; i < last; ++i) {
      const TraceEvent& event = trace_.events[i];
      if (next_note_ < note_count_) {
        status = play_notes(i);
        if (!status.ok()) {
          break;
        }
      }
      if (target_.speed > 0) {
        wait_until(event.time_us);
      }
      set_clock(event.time_us);
      if (event.size == 0) {
        continue;  // an empty allocation holds nothing, in any allocator
      }
      const StreamId stream = target_.streams[event.stream()];
      const Bytes held = round_up(Bytes(event.size), kTraceRounding);
      if (event.is_free()) {
        status = target_.allocator->free(event.block, stream);
        live_ -= held;
      } else {
        status = target_.allocator->allocate(event.block, Bytes(event.size), stream);
        live_ += held;
      }
      if (!status.ok()) [[unlikely]] {
        break;
      }
      if (target_.observer != nullptr && !event.is_free()) {
        target_.observer->allocated(event.block, target_.allocator->address(event.block));
      }
    }
    run_->host_ns += thread_cpu_ns() - before;
    run_->events_replayed += i - first;
    if (!status.ok()) {
      stop(i, status.error());
    }
    return status.ok();
  }

 private:
  // Sleeps are not in host_ns, which is CPU time.
  void wait_until(std::uint64_t time_us) {
    const double after =
        static_cast<double>(time_us - trace_.events.front().time_us) / target_.speed;
    std::this_thread::sleep_until(started_ + std::chrono::duration_cast<Clock::duration>(
                                                 std::chrono::duration<double, std::micro>(after)));
  }
  void set_clock(std::uint64_t time_us) {
    if (target_.simulated != nullptr && time_us != clock_us_) {
      clock_us_ = time_us;
      target_.simulated->set_time_us(static_cast<double>(clock_us_));
    }
  }

  // What a recording tells before event i.
  Status play_notes(std::size_t i) {
    for (; next_note_ < note_count_ && trace_.recording->notes[next_note_].before <= i;
         ++next_note_) {
      const Recording::Note& note = trace_.recording->notes[next_note_];
      if (note.event.kind == NOFRAG_TRACE_RECORD_THREAD_END) {
        if (note.event.thread != playing_) {
          threads_.end(note.event.thread);
        }
        continue;
      }
      set_clock(note.time_us);
      const Status status = target_.allocator->note(note, target_.streams[note.stream]);
      if (!status.ok()) {
        return status;
      }
    }
    return {};
  }

  // On a real device others may hold memory too.
  [[nodiscard]] Bytes available(Bytes reserved) const {
    if (target_.simulated != nullptr) {
      return target_.capacity;
    }
    const Result<MemoryInfo> memory = target_.driver->memory_info(target_.device);
    return memory.ok() ? std::min(target_.capacity, reserved + memory.value().free)
                       : target_.capacity;
  }

  void stop(std::size_t at, Error error) {
    const TraceEvent& event = trace_.events[at];
    const bool out_of_memory = error.code == Errc::kOutOfMemory || error.code == Errc::kLimit;
    if (event.is_free() || !out_of_memory) {
      run_->fault = std::string(to_string(error.code)) + " (driver code " +
                    std::to_string(error.driver_code) + ") at event " + std::to_string(at);
      run_->fault_reason = target_.allocator->trouble(error);
      return;
    }
    ReplayOom oom;
    oom.event = at;
    oom.requested = Bytes(event.size);
    oom.live = live_ - round_up(Bytes(event.size), kTraceRounding);
    oom.reserved = target_.allocator->reserved();
    oom.free_granules = target_.allocator->free_granules();
    const Bytes most = available(oom.reserved);
    // --capacity is a limit too on real devices, but not one of the allocator's own options.
    const Bytes limit = target_.allocator->limit();
    if (error.code == Errc::kLimit && limit < target_.capacity) {
      oom.limit = limit;
    }
    oom.cause = oom.limit ? "limit" : oom_cause(most, oom.live, oom.requested);
    run_->oom = std::move(oom);
  }

  const Trace& trace_;
  const ReplayTarget& target_;
  ReplayRun* run_;
  ReplayThreads threads_;
  std::uint32_t playing_ = UINT32_MAX;  // the thread of the events at hand
  std::size_t note_count_;
  std::size_t next_note_ = 0;
  std::uint64_t clock_us_ = UINT64_MAX;
  Clock::time_point started_ = Clock::now();
  Bytes live_;
};

}  // namespace

std::optional<double> host_ns_per_event(const ReplayRun& run) {
  // What is made and touched for the first time takes up to some milliseconds: microseconds an event of a thousand.
  constexpr std::uint64_t kFewest = 1000;
  return run.events_replayed < kFewest
             ? std::nullopt
             : std::optional<double>(run.host_ns / static_cast<double>(run.events_replayed));
}

std::string oom_cause(Bytes capacity, Bytes live, Bytes requested) {
  const Bytes needed = round_up(requested, kTraceRounding);
  const bool enough = live <= capacity && needed <= capacity - live;
  return enough && !live.is_zero() ? "fragmentation" : "capacity";
}

void replay_trace(const Trace& trace,
                  const ReplayTarget& target,
                  const ReplayProgress& progress,
                  ReplayRun* run) {
  Player player(trace, target, run);
  const DriverLedger before = target.driver->ledger();
  double charged = before.total_microseconds();
  double sum = 0;
  bool going = true;
  for (unsigned quarter = 0; quarter < 4 && going; ++quarter) {
    const std::size_t last = quarter_start(trace, quarter + 1);
    for (std::size_t at = quarter_start(trace, quarter); at < last && going;) {
      const std::uint64_t step =
          target.observer == nullptr ? kProgressEvery : target.observer->every();
      const std::size_t stop = std::min(last, at + step);
      going = player.play(at, stop);
      at = stop;
      if (target.observer != nullptr) {
        target.observer->look(run->events_replayed, *target.allocator);
      }
      if (progress) {
        progress(run->events_replayed);
      }
    }
    const double now = target.driver->ledger().total_microseconds();
    run->driver_us_quarters[quarter] = now - charged;
    sum += now - charged;
    charged = now;
  }
  run->completed = going;
  run->driver_us = sum;
  run->ledger = target.driver->ledger().since(before);
  run->peak_reserved = target.allocator->peak_reserved();
}

}  // namespace nofrag
