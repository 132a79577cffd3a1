#include "trace/record/recorder.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include <sys/syscall.h>

#include "trace/record/event_row.h"

namespace nofrag {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kEventsABlock = 65536;
// How often the writer looks at the rings, and how old a block may get before it is written. The first is written as
// soon as there is one, and each next one may be twice as old: a job that dies at once leaves something.
constexpr milliseconds kLook{20};
constexpr std::uint64_t kBlockAge = 1'000'000'000;     // ns
constexpr std::uint64_t kSecondBlockAge = 40'000'000;  // ns
constexpr std::uint64_t kFlightPause = 1'000'000'000;  // ns between files after failed requests
// A thread with a full ring looks this often for room, and this long at most.
constexpr milliseconds kRoomLook{1};
constexpr int kRoomLooks = 20000;
// What threads whose requests were refused may wait for the file, each and all together.
constexpr std::uint64_t kFailuresFreeNs = 2'000'000'000;
constexpr std::uint64_t kFailuresShare = 20;  // of the recording's time
constexpr milliseconds kFailurePatience{1'000};
constexpr milliseconds kPatience{30'000};  // with a writer that should flush or stop
constexpr std::uint32_t kLastThread = UINT16_MAX;

// The ring a thread used last. (Found in a function of its own, as thread_cache.cc explains.)
struct OwnRing {
  std::shared_ptr<Ring> ring;
  TraceClock clock{true};  // of the ring's recorder

  OwnRing() = default;
  OwnRing(const OwnRing&) = delete;
  OwnRing& operator=(const OwnRing&) = delete;
  ~OwnRing();
};
struct LastRing {
  std::uint64_t recorder = 0;
  Ring* ring = nullptr;
};
constinit thread_local LastRing last_ring{};
constinit thread_local bool thread_ending = false;
thread_local OwnRing own_ring;

OwnRing::~OwnRing() {
  thread_ending = true;
  last_ring = {};
  if (ring != nullptr) {
    ring->note_thread_ended(clock.now());
  }
}

std::uint64_t new_number() {
  // Not state that anybody can read back or set: a source of fresh numbers.
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Recorder::Recorder(RecorderSettings settings)
    : number_(new_number()),
      began_ns_(monotonic_ns()),
      clock_(settings.monotonic),
      settings_(std::move(settings)),
      output_(settings_.path, settings_.max, settings_.keep),
      sampler_(settings_.stacks.every == 0 ? nullptr
                                           : std::make_unique<StackSampler>(settings_.stacks)) {}

std::unique_ptr<Recorder> Recorder::start(RecorderSettings settings, std::string* problem) {
  std::unique_ptr<Recorder> recorder(new Recorder(std::move(settings)));
  recorder->settings_.info["clock"] = recorder->clock_.name();
  recorder->settings_.info["clock_tick"] = std::to_string(recorder->clock_.now());
  recorder->settings_.info["clock_ns"] = std::to_string(monotonic_ns());
  if (recorder->sampler_ != nullptr) {
    recorder->settings_.info["stacks"] = std::to_string(recorder->settings_.stacks.every);
    recorder->settings_.info["stacks_from"] = std::to_string(recorder->settings_.stacks.from_bytes);
  }
  if (!recorder->output_.start() || !recorder->output_.set_info(recorder->settings_.info)) {
    *problem = recorder->output_.problem();
    return nullptr;
  }
  recorder->last_block_ns_ = monotonic_ns();
  if (const Status writing = recorder->start_writer(); !writing.ok()) {
    *problem = recorder->path() + ": no thread could be made to write it (" +
               std::strerror(writing.error().driver_code) + ")";
    recorder->output_.abandon();
    return nullptr;
  }
  return recorder;
}

// Not std::thread, whose constructor throws where the system has no more threads.
Status Recorder::start_writer() {
  // The writer takes no signal that is meant for the program.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const int problem = ::pthread_create(&writer_, nullptr, &Recorder::run_writer, this);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  writer_joinable_ = problem == 0;
  return problem == 0 ? Status() : Status(Error{Errc::kNotInitialized, problem});
}

void* Recorder::run_writer(void* self) {
  static_cast<Recorder*>(self)->run();
  return nullptr;
}

void Recorder::never_destroyed() {
  if (std::exchange(writer_joinable_, false)) {
    ::pthread_detach(writer_);
  }
}

Recorder::~Recorder() {
  if (writer_joinable_) {
    stop(NOFRAG_TRACE_STOP_ASKED);
    ::pthread_join(writer_, nullptr);
  }
}

// ---- any thread

[[gnu::noinline]] Ring* Recorder::my_ring() {
  if (last_ring.recorder == number_) [[likely]] {
    return last_ring.ring;
  }
  return make_my_ring();
}

[[gnu::noinline]] Ring* Recorder::make_my_ring() {
  if (thread_ending) {
    return nullptr;
  }
  const std::shared_ptr<Ring> ring = add_ring(static_cast<std::uint64_t>(::syscall(SYS_gettid)));
  if (sampler_ != nullptr) {
    ring->stacks = std::make_unique<StackSampler::Thread>(ring->kernel_thread);
  }
  if (own_ring.ring != nullptr) {
    own_ring.ring->note_thread_ended(0);  // of a recorder before this one, which has ended
  }
  own_ring.ring = ring;
  own_ring.clock = clock_;
  last_ring = {number_, ring.get()};
  return ring.get();
}

void Recorder::wake() {
  writer_wakes_.notify_one();
}

RecordEvent* Recorder::wait_for_room(Ring& ring) {
  // Once is enough: a writer that stood still so long may do so for hours.
  for (int look = 0; look < kRoomLooks && active() && !ring.stalled(); ++look) {
    wake();
    std::this_thread::sleep_for(kRoomLook);
    if (RecordEvent* slot = ring.reserve()) {
      return slot;
    }
  }
  ring.note_lost();
  return nullptr;
}

void Recorder::on_event(const AllocatorEvent& event) {
  // A free that waits for nobody is complete at once: nothing that a reader must be told.
  const bool said = event.kind == EventKind::kFreeCompleted && event.detail == 0;
  if (!active() || said) {
    return;
  }
  if (Ring* const ring = my_ring()) [[likely]] {
    put(*ring, event);
  } else {
    const std::lock_guard lock(late_mutex_);
    put(late_ring(), event);
  }
}

void Recorder::put(Ring& ring, const AllocatorEvent& event) {
  std::uint32_t site = 0;
  if (ring.stacks != nullptr && event.kind == EventKind::kAlloc) [[unlikely]] {
    site = sampler_->site_of(
        *ring.stacks, event.requested.is_zero() ? event.size.count() : event.requested.count());
  }
  RecordEvent* slot = ring.reserve();
  if (slot == nullptr) [[unlikely]] {
    slot = wait_for_room(ring);
    if (slot == nullptr) {
      return;
    }
  }
  fill_row(event, event.stamp != 0 ? event.stamp : clock_.now(), ring.thread, site, slot);
  if (ring.publish()) [[unlikely]] {
    wake();
  }
  if (event.kind == EventKind::kOutOfMemory) [[unlikely]] {
    out_of_memory_.store(true, std::memory_order_release);
  }
}

// Of threads that are ending and have no ring any more.
Ring& Recorder::late_ring() {
  if (late_ == nullptr) {
    late_ = add_ring(0);
  }
  return *late_;
}

std::shared_ptr<Ring> Recorder::add_ring(std::uint64_t kernel_id) {
  const std::lock_guard lock(rings_mutex_);
  const std::uint32_t number = std::min(ring_count_++, kLastThread);
  auto ring = std::make_shared<Ring>(static_cast<std::uint16_t>(number), kernel_id);
  rings_.push_back(ring);
  new_rings_.push_back(ring);
  return ring;
}

bool Recorder::flush() {
  return flush_within(kPatience);
}

void Recorder::note_failure() {
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t spent = failures_took_ns_.load(std::memory_order_relaxed);
  if (!active() || spent > kFailuresFreeNs + (now - began_ns_) / kFailuresShare) {
    return;
  }
  flush_within(kFailurePatience);
  failures_took_ns_.fetch_add(monotonic_ns() - now, std::memory_order_relaxed);
}

bool Recorder::flush_within(milliseconds patience) {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = ++flushes_asked_;
  writer_wakes_.notify_one();
  const bool came = writer_did_.wait_for(
      lock, patience, [this, mine] { return ended_ || flushes_done_ >= mine; });
  return came && flushes_done_ >= mine && last_flush_good_;
}

void Recorder::stop(nofrag_trace_stop_reason reason) {
  active_.store(false, std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  reason_ = reason;
  stop_asked_ = true;
  writer_wakes_.notify_one();
  writer_did_.wait_for(lock, kPatience, [this] { return ended_; });
}

// ---- the writer thread

void Recorder::drain() {
  std::vector<std::shared_ptr<Ring>> rings;
  {
    const std::lock_guard lock(rings_mutex_);
    rings = rings_;
  }
  lost_now_ = lost_;
  bool any_ended = false;
  for (const auto& ring : rings) {
    any_ended = ring->thread_ended() || any_ended;
    ring->drain(&pending_);
    lost_now_ += ring->lost();
  }
  if (any_ended) {
    const std::lock_guard lock(rings_mutex_);
    std::erase_if(rings_, [this](const std::shared_ptr<Ring>& ring) {
      if (!ring->thread_ended()) {
        return false;
      }
      ring->drain(&pending_);
      lost_ += ring->lost();
      RecordEvent end{};
      end.tick = ring->end_tick();
      end.thread = ring->thread;
      end.kind = NOFRAG_TRACE_RECORD_THREAD_END;
      pending_.push_back(end);
      return true;
    });
  }
}

// What has come since the last block.
bool Recorder::write_block() {
  last_block_ns_ = monotonic_ns();
  const ClockPair clock{clock_.now(), last_block_ns_};
  const auto earlier = [](const RecordEvent& a, const RecordEvent& b) { return a.tick < b.tick; };
  std::stable_sort(pending_.begin(), pending_.end(), earlier);
  bool written = write_texts() && write_stacks() && write_ranges();
  const std::span<const RecordEvent> all(pending_);
  for (std::size_t first = 0; written && first < all.size(); first += kEventsABlock) {
    written = output_.add_events(
        all.subspan(first, std::min(kEventsABlock, all.size() - first)), clock, lost_now_);
  }
  events_.fetch_add(pending_.size(), std::memory_order_relaxed);
  bytes_.store(output_.bytes(), std::memory_order_relaxed);
  pending_.clear();
  return written;
}

// A request that failed may be the last that is heard of the job. (Asked before the rings are emptied: it is in them.)
bool Recorder::failure_due() {
  constexpr std::uint64_t kLookNs = std::chrono::nanoseconds(kLook).count();
  return !output_.is_flight() && monotonic_ns() - last_block_ns_ >= kLookNs &&
         out_of_memory_.exchange(false, std::memory_order_acquire);
}

// Is it time for a flight recorder's file?
bool Recorder::flight_due(bool asked) {
  if (!output_.is_flight()) {
    return false;
  }
  return asked || (out_of_memory_.load(std::memory_order_acquire) &&
                   monotonic_ns() - last_flight_ns_ > kFlightPause);
}

// A flight recorder's file. `asked`: by a caller, who knows of it unless a request was refused.
bool Recorder::write_flight(bool asked) {
  const bool after_failure = out_of_memory_.exchange(false, std::memory_order_relaxed);
  const bool good = output_.write_flight(lost_now_);
  last_flight_ns_ = monotonic_ns();
  if (good && (!asked || after_failure) && settings_.say &&
      last_flight_ns_ - last_said_ns_ > kFlightPause) {
    last_said_ns_ = last_flight_ns_;
    settings_.say("the last of what happened is in " + output_.path());
  }
  return good;
}

// No more is recorded. The message, if there is one, is for the user.
void Recorder::end(const std::string& message) {
  active_.store(false, std::memory_order_relaxed);
  if (!message.empty() && settings_.say) {
    settings_.say(message);
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  writer_did_.notify_all();
}

void Recorder::run() {
  ::pthread_setname_np(::pthread_self(), "nofrag-trace");
  for (;;) {
    std::uint64_t flushing = 0;
    bool stopping = false;
    {
      std::unique_lock lock(mutex_);
      if (flushes_asked_ == flushes_done_ && !stop_asked_) {
        writer_wakes_.wait_for(lock, kLook);
      }
      flushing = flushes_asked_;
      stopping = stop_asked_;
      if (flushing == flushes_done_) {
        flushing = 0;
      }
    }
    const bool signalled = flush_wanted_.exchange(false, std::memory_order_relaxed);
    const bool failed = failure_due();
    drain();
    const bool flight = flight_due(flushing != 0 || signalled);
    const bool due = !pending_.empty() && (pending_.size() >= kEventsABlock ||
                                           monotonic_ns() - last_block_ns_ > block_age_);
    bool good = true;
    if (due) {
      block_age_ = std::clamp(2 * block_age_, kSecondBlockAge, kBlockAge);
    }
    const bool ranges = ranges_wait_.exchange(false, std::memory_order_relaxed);
    if (failed || stopping || flushing != 0 || signalled || flight || due || ranges) {
      good = write_block();
    }
    if (good && flight) {
      good = write_flight(flushing != 0);
    }
    if (!good) {
      end("recording has ended: " + output_.problem());
      return;
    }
    if (output_.full()) {  // which is said also if the program ends now
      output_.finish(NOFRAG_TRACE_STOP_MAX, lost_now_);
      end("recording has ended: " + output_.path() + " has the size that it may have (max=)");
      return;
    }
    if (flushing != 0) {
      const std::lock_guard lock(mutex_);
      flushes_done_ = flushing;
      last_flush_good_ = true;
      writer_did_.notify_all();
    }
    if (stopping) {
      output_.finish(reason_, lost_now_);
      bytes_.store(output_.bytes(), std::memory_order_relaxed);
      end({});
      return;
    }
  }
}

}  // namespace nofrag
