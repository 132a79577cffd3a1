#include "stream/streams.h"

#include "base/thread_id.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kLegacyStream = 1;  // CU_STREAM_LEGACY; also named 0

// The driver's own streams: never destroyed, so their names never change their meaning.
bool is_default(StreamId stream) {
  return stream.value() == 0 || stream.is_per_thread();
}

}  // namespace

Streams::Streams(Driver& driver, DeviceOrdinal device) : driver_(driver), device_(device) {}

Streams::~Streams() {
  for (const auto& clock : clocks_) {
    for (const EventId event : clock->markers) {
      driver_.event_destroy(device_, event).ignore();  // the process or the test is ending
    }
  }
  for (const EventId event : idle_events_) {
    driver_.event_destroy(device_, event).ignore();
  }
}

std::uint64_t Streams::identity_of(StreamId stream) {
  if (is_default(stream)) {
    return 0;
  }
  // One that cannot be asked may be captured.
  const Result<bool> capturing = driver_.stream_is_capturing(device_, stream);
  if (!capturing.ok() || capturing.value()) {
    return kCaptured;
  }
  const Result<std::uint64_t> identity = driver_.stream_identity(device_, stream);
  return identity.ok() ? identity.value() : 0;
}

StreamClock& Streams::make_clock(StreamId stream,
                                 std::uint64_t owner_thread,
                                 std::uint64_t identity) {
  clocks_.push_back(std::make_unique<StreamClock>());
  StreamClock& made = *clocks_.back();
  made.stream = stream;
  made.owner_thread = owner_thread;
  made.identity = identity;
  made.index = static_cast<std::uint32_t>(clocks_.size() - 1);
  made.captured = identity == kCaptured;
  if (!made.captured) {
    forget_captured(stream, owner_thread);
  }
  by_key_.insert_or_assign(Key{stream.value(), owner_thread, made.captured}, &made);
  if (!is_default(stream) && !made.captured) {
    // Now the caller vouches for the stream; later nobody may. This is where a stream of another
    // context shows; any other refusal (a capture) means nothing.
    mark(made).ignore();
  }
  return made;
}

StreamClock& Streams::clock(StreamId stream) {
  if (stream.value() == kLegacyStream) {
    stream = StreamId(0);  // two names for one stream
  }
  const bool per_thread = stream.is_per_thread();
  const std::uint64_t identity = identity_of(stream);
  if (!per_thread && last_used_ != nullptr && last_used_->stream == stream &&
      last_used_->identity == identity) {
    return *last_used_;
  }
  const std::uint64_t owner = per_thread ? this_thread_id() : 0;
  const auto known = by_key_.find(Key{stream.value(), owner, identity == kCaptured});
  StreamClock* found = known != by_key_.end() ? known->second : nullptr;
  if (found != nullptr && found->identity != identity) {
    note_gone(*found);  // its handle means another stream now
    found = nullptr;
  }
  if (found == nullptr) {
    found = &make_clock(stream, owner, identity);
  }
  if (!per_thread) {
    last_used_ = found;
  }
  return *found;
}

StreamClock* Streams::known(StreamId stream) const {
  if (stream.value() == kLegacyStream) {
    stream = StreamId(0);
  }
  const std::uint64_t owner = stream.is_per_thread() ? this_thread_id() : 0;
  const auto found = by_key_.find(Key{stream.value(), owner, false});
  return found == by_key_.end() ? nullptr : found->second;
}

StreamClock* Streams::around_capture(const StreamClock& clock) const {
  const auto found = by_key_.find(Key{clock.stream.value(), clock.owner_thread, !clock.captured});
  return found == by_key_.end() ? nullptr : found->second;
}

// The stream that had the handle is gone: what it did while it could not be asked who it was is not the
// next one's.
void Streams::forget_captured(StreamId stream, std::uint64_t owner_thread) {
  const auto known = by_key_.find(Key{stream.value(), owner_thread, true});
  if (known != by_key_.end()) {
    StreamClock& clock = *known->second;
    note_gone(clock);
    forget_key(clock);
  }
}

void Streams::note_gone(StreamClock& clock) {
  if (!clock.gone) {
    clock.gone = true;
    newly_gone_.push_back(&clock);
  }
}

void Streams::forget_key(const StreamClock& clock) {
  by_key_.erase(Key{clock.stream.value(), clock.owner_thread, clock.captured});
  if (last_used_ == &clock) {
    last_used_ = nullptr;
  }
}

Result<EventId> Streams::take_event() {
  if (idle_events_.empty()) {
    return driver_.event_create(device_);
  }
  const EventId event = idle_events_.back();
  idle_events_.pop_back();
  return event;
}

void Streams::return_event(EventId event) {
  idle_events_.push_back(event);
}

Status Streams::mark(StreamClock& clock) {
  if (clock.retired || clock.gone || clock.captured ||
      (clock.owner_thread != 0 && clock.owner_thread != this_thread_id())) {
    return Errc::kInvalidArgument;
  }
  const Result<bool> capturing = driver_.stream_is_capturing(device_, clock.stream);
  if (!capturing.ok()) {
    return capturing.error();
  }
  if (capturing.value()) {
    return Errc::kCapturing;
  }
  if (clock.identity != 0) {
    const Result<std::uint64_t> identity = driver_.stream_identity(device_, clock.stream);
    if (!identity.ok() || identity.value() != clock.identity) {
      note_gone(clock);  // an event recorded by this handle would speak of another stream
      forget_key(clock);
      return Errc::kInvalidArgument;
    }
  }
  const Result<EventId> event = take_event();
  if (!event.ok()) {
    return event.error();
  }
  if (const Status recorded = driver_.event_record(device_, event.value(), clock.stream);
      !recorded.ok()) {
    return_event(event.value());
    clock.foreign = clock.foreign || recorded.code() == Errc::kInvalidArgument;
    return recorded;
  }
  clock.markers.push_back(event.value());
  ++clock.issued;
  activate(clock);
  clock.foreign = false;
  clock.freed_since_marker = Bytes(0);
  clock.frees_since_marker = 0;
  return {};
}

Status Streams::mark_up_to(StreamClock& clock, Tick tick) {
  return tick <= clock.issued ? Status{} : mark(clock);
}

void Streams::complete_through(StreamClock& clock, Tick tick) {
  while (clock.completed < tick && !clock.markers.empty()) {
    return_event(clock.markers.front());
    clock.markers.pop_front();
    ++clock.completed;
  }
}

void Streams::poll(StreamClock& clock) {
  // In stream order: the first marker that is not ready ends the search.
  while (!clock.markers.empty()) {
    const Status ready = driver_.event_query(device_, clock.markers.front());
    if (!ready.ok()) {
      if (ready.code() == Errc::kCapturing || ready.code() == Errc::kInvalidArgument) {
        replace_captured_marker(clock);
      }
      return;
    }
    complete_through(clock, clock.completed + 1);
  }
}

// A capture began between the question and the record: the event became part of the graph and will
// never say anything. One recorded now covers at least as much.
void Streams::replace_captured_marker(StreamClock& clock) {
  const Tick covered = clock.issued;
  const Bytes freed = clock.freed_since_marker;
  const std::uint32_t frees = clock.frees_since_marker;
  if (!mark(clock).ok()) {
    return;
  }
  // What was freed since that one still needs a marker of its own.
  clock.freed_since_marker = freed;
  clock.frees_since_marker = frees;
  const EventId fresh = clock.markers.back();
  clock.markers.pop_back();
  clock.issued = covered;
  driver_.event_destroy(device_, clock.markers.front()).ignore();
  clock.markers.front() = fresh;
}

void Streams::mark_freed() {
  if (!several()) {
    return;
  }
  for_each_active([this](StreamClock& clock) {
    if (clock.freed_since_marker > Bytes(0)) {
      mark(clock).ignore();  // refused during a capture: what was freed is marked another time
    }
  });
}

void Streams::poll_all() {
  for_each_active([this](StreamClock& clock) { poll(clock); });
}

void Streams::activate(StreamClock& clock) {
  if (!clock.active) {
    clock.active = true;
    active_.push_back(&clock);
  }
}

void Streams::note_freed(StreamClock& clock, Bytes size) {
  clock.freed_since_marker += size;
  ++clock.frees_since_marker;
  activate(clock);
}

bool Streams::is_done(StreamClock& clock, Tick tick) {
  if (!clock.done(tick)) {
    poll(clock);
  }
  return clock.done(tick);
}

Status Streams::wait_host(StreamClock& clock, Tick tick) {
  if (clock.done(tick)) {
    return {};
  }
  if (const Status marked = mark_up_to(clock, tick); !marked.ok()) {
    if (marked.code() == Errc::kCapturing) {
      return marked;
    }
    const Status idle = wait_device_idle();
    // Another context's stream is not done because the device's own are.
    return idle.ok() && !clock.done(tick) ? Status(Errc::kNotReady) : idle;
  }
  const EventId event = clock.markers[tick - clock.completed - 1];
  if (const Status waited = driver_.event_synchronize(device_, event); !waited.ok()) {
    return waited;
  }
  complete_through(clock, tick);
  return {};
}

Status Streams::wait_device_idle() {
  if (any_capturing()) {
    return Errc::kCapturing;  // the wait would invalidate the capture
  }
  if (const Status idle = driver_.device_synchronize(device_); !idle.ok()) {
    return idle;
  }
  all_done();
  return {};
}

Status Streams::wait_device(StreamClock& waiter, StreamClock& clock, Tick tick) {
  if (&waiter == &clock || is_done(clock, tick)) {
    return {};
  }
  if (const Status marked = mark_up_to(clock, tick); !marked.ok()) {
    return marked;
  }
  const Result<bool> capturing = driver_.stream_is_capturing(device_, waiter.stream);
  if (!capturing.ok()) {
    return capturing.error();
  }
  if (capturing.value()) {
    return Errc::kCapturing;
  }
  return driver_.stream_wait(device_, waiter.stream, clock.markers[tick - clock.completed - 1]);
}

Status Streams::retire(StreamId stream) {
  const std::uint64_t owner = stream.is_per_thread() ? this_thread_id() : 0;
  if (by_key_.contains(Key{stream.value(), owner, true})) {
    // One that is being captured is not about to go; its clock is still needed to know that.
    const Result<bool> capturing = driver_.stream_is_capturing(device_, stream);
    if (capturing.ok() && !capturing.value()) {
      forget_captured(stream, owner);
    }
  }
  const auto known = by_key_.find(Key{stream.value(), owner, false});
  if (known == by_key_.end()) {
    return {};
  }
  StreamClock& clock = *known->second;
  const Status marked = mark(clock);
  if (clock.gone) {
    return {};  // that one is gone already; the stream meant now was never used
  }
  clock.retired = marked.ok();
  if (clock.retired) {
    forget_key(clock);
  }
  return marked;
}

bool Streams::any_capturing() {
  for (const auto& clock : clocks_) {
    // Nothing of ours is left on a quiet stream: it may be long dead, and asking a dead handle can
    // crash the driver.
    const bool quiet = clock->markers.empty() && clock->freed_since_marker.is_zero();
    if (clock->retired || clock->gone || quiet) {
      continue;
    }
    const Result<bool> capturing = driver_.stream_is_capturing(device_, clock->stream);
    // A stream that is gone is not being captured; one that cannot be asked may be.
    if (capturing.ok() ? capturing.value() : capturing.code() != Errc::kInvalidArgument) {
      return true;
    }
  }
  return false;
}

void Streams::all_done(bool whatever_the_context) {
  for (const auto& clock : clocks_) {
    if (clock->foreign && !whatever_the_context) {
      continue;  // the wait did not include it
    }
    complete_through(*clock, clock->issued);
    // Work that no marker covers yet is done too: give it a tick that is complete from the start.
    ++clock->issued;
    ++clock->completed;
    activate(*clock);  // something new to take in
    clock->freed_since_marker = Bytes(0);
    clock->frees_since_marker = 0;
    // One of a capture may stand for a stream that lives on: what it frees later is not done.
    clock->retired = clock->retired || (clock->gone && !clock->captured);
  }
}

void Streams::check() const {
  for (const auto& clock : clocks_) {
    NOFRAG_CHECK(clock->completed + clock->markers.size() == clock->issued,
                 "stream clock and its markers disagree");
    NOFRAG_CHECK(!clock->at_work() || clock->active,
                 "a stream clock at work is not among the active ones");
  }
}

}  // namespace nofrag
