#include "stream/streams.h"

#include "base/thread_id.h"

namespace nofrag {

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

StreamClock& Streams::make_clock(StreamId stream, std::uint64_t owner_thread) {
  clocks_.push_back(std::make_unique<StreamClock>());
  StreamClock& made = *clocks_.back();
  made.stream = stream;
  made.owner_thread = owner_thread;
  made.index = static_cast<std::uint32_t>(clocks_.size() - 1);
  by_key_.emplace(Key{stream.value(), owner_thread}, &made);
  return made;
}

StreamClock& Streams::clock(StreamId stream) {
  const bool per_thread = stream.is_per_thread();
  if (!per_thread && last_used_ != nullptr && last_used_->stream == stream &&
      !last_used_->retired) {
    return *last_used_;
  }
  const std::uint64_t owner = per_thread ? this_thread_id() : 0;
  const auto known = by_key_.find(Key{stream.value(), owner});
  StreamClock& found = known != by_key_.end() ? *known->second : make_clock(stream, owner);
  // Somebody uses the handle again: a new stream under an old name.
  found.retired = false;
  if (!per_thread) {
    last_used_ = &found;
  }
  return found;
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
  if (clock.retired || (clock.owner_thread != 0 && clock.owner_thread != this_thread_id())) {
    return Errc::kInvalidArgument;
  }
  const Result<bool> capturing = driver_.stream_is_capturing(device_, clock.stream);
  if (!capturing.ok()) {
    return capturing.error();
  }
  if (capturing.value()) {
    return Errc::kCapturing;
  }
  const Result<EventId> event = take_event();
  if (!event.ok()) {
    return event.error();
  }
  if (const Status recorded = driver_.event_record(device_, event.value(), clock.stream);
      !recorded.ok()) {
    return_event(event.value());
    return recorded;
  }
  clock.markers.push_back(event.value());
  ++clock.issued;
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
  while (!clock.markers.empty() && driver_.event_query(device_, clock.markers.front()).ok()) {
    complete_through(clock, clock.completed + 1);
  }
}

void Streams::poll_all() {
  for (const auto& clock : clocks_) {
    poll(*clock);
  }
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
    return marked.code() == Errc::kCapturing ? marked : wait_device_idle();
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
  const auto known = by_key_.find(Key{stream.value(), owner});
  if (known == by_key_.end() || known->second->retired) {
    return {};
  }
  const Status marked = mark(*known->second);
  known->second->retired = marked.ok();
  return marked;
}

bool Streams::any_capturing() {
  for (const auto& clock : clocks_) {
    if (clock->retired) {
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

void Streams::all_done() {
  for (const auto& clock : clocks_) {
    complete_through(*clock, clock->issued);
    // Work that no marker covers yet is done too: give it a tick that is complete from the start.
    ++clock->issued;
    ++clock->completed;
    clock->freed_since_marker = Bytes(0);
    clock->frees_since_marker = 0;
  }
}

void Streams::check() const {
  for (const auto& clock : clocks_) {
    NOFRAG_CHECK(clock->completed + clock->markers.size() == clock->issued,
                 "stream clock and its markers disagree");
  }
}

}  // namespace nofrag
