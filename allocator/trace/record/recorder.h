// Recorder: writes what the allocator does to a file, while it does it.
//
// Each thread hands its events to a ring of its own (ring.h), without a lock; one writer thread empties the
// rings, packs what it finds into blocks and gives them to the output (record_output.h).
// Owns: the rings (shared with their threads), the writer thread, the output.
// Layer: trace. Units: bytes; ticks of the clock.
// Invariants: what was recorded before flush() is called is in the file when it returns true; a thread's events
// are in the file in their order. Nothing is lost while the writer keeps up; a thread that finds its ring full
// waits for it, and only if the writer does nothing for seconds are events dropped, and counted.
// Threads: any; on_event and mark inside or outside the allocator's locks. request_flush is safe in a signal
// handler. A recorder must stay alive as long as threads may call it: the process never destroys one.
// Failure: start says why not; a file that cannot be written later ends the recording with one line (`say`).
// Fork: the child has no writer thread, and must not call on.
// Cost: on_event about 40 ns, with the call stack more (trace/stacks/stack_sampler.h); the writer about 0.3 us an event.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <nofrag/trace_format.h>

#include "base/event_sink.h"
#include "base/result.h"
#include "trace/record/clock.h"
#include "trace/record/record_output.h"
#include "trace/record/ring.h"
#include "trace/stacks/stack_sampler.h"

namespace nofrag {

struct RecorderSettings {
  std::string path;                          // %p: the process's number
  std::uint64_t max = RecordOutput::kNoMax;  // bytes of the file
  std::uint64_t keep = 0;                    // bytes; above 0: a flight recorder
  StackSettings stacks;                      // whose call stacks are kept
  bool monotonic = false;                    // stamps are CLOCK_MONOTONIC's nanoseconds
  std::map<std::string, std::string> info;   // what the file says about the process
  std::function<void(const std::string&)>
      say;  // one line for the user; called by the writer thread
};

class Recorder final : public EventSink {
 public:
  // nullptr, and *problem says why not.
  static std::unique_ptr<Recorder> start(RecorderSettings settings, std::string* problem);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  // pre: stopped, and no thread is inside.
  ~Recorder();
  // For one that is never destroyed: nobody waits for its writer's thread, which may end by itself.
  void never_destroyed();

  void on_event(const AllocatorEvent& event) override;
  [[nodiscard]] bool concurrent() const override { return true; }
  [[nodiscard]] std::uint64_t stamp() const override { return clock_.now(); }

  // An annotation at this moment; cut to 1000 bytes.
  void mark(std::string_view text);
  // A moment of a range of the program's own; the name cut likewise.
  void range(nofrag_trace_range_kind kind, std::uint64_t key, std::string_view name);
  // Something that the file should say about the process.
  void add_info(std::string name, std::string value);
  // What was recorded until now is in the file; a flight recorder writes its file. False if the recording has
  // ended or the file cannot be written.
  bool flush();
  // A request was refused, after which a program may end itself at once: the file has it when this returns. Waits a
  // second at most, and in all no more than two seconds and a twentieth of the recording's time.
  void note_failure();
  // As flush(), soon, without waiting: callable in a signal handler.
  void request_flush() { flush_wanted_.store(true, std::memory_order_relaxed); }
  // Everything recorded until now is written, and the file is complete.
  void stop(nofrag_trace_stop_reason reason);

  [[nodiscard]] bool active() const { return active_.load(std::memory_order_relaxed); }
  // Where it writes to: not as asked for where %p is in it, or another process had the name.
  [[nodiscard]] const std::string& path() const { return output_.path(); }
  [[nodiscard]] std::uint64_t events() const { return events_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Mark {
    std::uint64_t tick = 0;
    std::uint16_t thread = 0;
    std::string text;
  };

  struct RangeMoment {
    std::uint64_t tick = 0;
    std::uint16_t thread = 0;
    nofrag_trace_range_kind kind = NOFRAG_TRACE_RANGE_PUSH;
    std::uint64_t key = 0;
    std::string name;
  };

  explicit Recorder(RecorderSettings settings);

  Ring* my_ring();
  Ring* make_my_ring();
  Ring& late_ring();
  std::shared_ptr<Ring> add_ring(std::uint64_t kernel_id);
  void put(Ring& ring, const AllocatorEvent& event);
  RecordEvent* wait_for_room(Ring& ring);
  void wake();

  // The writer thread. Status: why it could not be made.
  Status start_writer();
  static void* run_writer(void* self);
  void run();
  void drain();
  bool write_block();
  bool write_texts();
  bool write_stacks();
  bool write_ranges();
  bool failure_due();
  bool flight_due(bool asked);
  bool write_flight(bool asked);
  bool flush_within(std::chrono::milliseconds patience);
  void end(const std::string& message);

  const std::uint64_t number_;  // of this recorder, in the process
  const std::uint64_t began_ns_;
  const TraceClock clock_;
  RecorderSettings settings_;
  RecordOutput output_;
  const std::unique_ptr<StackSampler> sampler_;  // nullptr: no call stacks
  std::atomic<bool> active_{true};
  std::atomic<bool> flush_wanted_{false};
  std::atomic<bool> out_of_memory_{false};
  std::atomic<std::uint64_t> failures_took_ns_{0};
  std::atomic<bool> ranges_wait_{false};  // so many that the writer should come
  std::atomic<std::uint64_t> events_{0};
  std::atomic<std::uint64_t> bytes_{0};

  std::mutex rings_mutex_;
  std::vector<std::shared_ptr<Ring>> rings_;      // Sync: rings_mutex_
  std::vector<std::shared_ptr<Ring>> new_rings_;  // Sync: rings_mutex_; not in the file yet
  std::uint32_t ring_count_ = 0;                  // Sync: rings_mutex_
  std::vector<Mark> marks_;                       // Sync: rings_mutex_
  std::vector<RangeMoment> ranges_;               // Sync: rings_mutex_
  std::uint64_t ranges_lost_ = 0;                 // Sync: rings_mutex_
  std::map<std::string, std::string> new_info_;   // Sync: rings_mutex_

  std::mutex late_mutex_;
  std::shared_ptr<Ring> late_;  // Sync: late_mutex_

  std::mutex mutex_;
  std::condition_variable writer_wakes_;
  std::condition_variable writer_did_;
  std::uint64_t flushes_asked_ = 0;                            // Sync: mutex_
  std::uint64_t flushes_done_ = 0;                             // Sync: mutex_
  bool last_flush_good_ = false;                               // Sync: mutex_
  bool stop_asked_ = false;                                    // Sync: mutex_
  bool ended_ = false;                                         // Sync: mutex_
  nofrag_trace_stop_reason reason_ = NOFRAG_TRACE_STOP_ASKED;  // Sync: mutex_

  // The writer thread's own.
  std::vector<RecordEvent> pending_;
  std::uint64_t lost_ = 0;      // by rings that are gone
  std::uint64_t lost_now_ = 0;  // by all
  std::uint64_t ranges_lost_said_ = 0;
  std::uint64_t stacks_lost_ = 0;  // as far as the file says
  std::uint64_t last_block_ns_ = 0;
  std::uint64_t block_age_ = 0;  // that makes the next block due
  std::uint64_t last_flight_ns_ = 0;
  std::uint64_t last_said_ns_ = 0;  // that it was written
  pthread_t writer_{};
  bool writer_joinable_ = false;
};

}  // namespace nofrag
