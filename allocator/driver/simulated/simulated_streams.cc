#include "driver/simulated/simulated_streams.h"

#include <algorithm>

#include "driver/simulated/simulated_errors.h"

namespace nofrag {
namespace {

constexpr int kCaptureMerge = 904;
constexpr std::uint32_t kIndexBits = 32;
// Like host addresses, and far from the small numbers that tests give to streams.
constexpr std::uint64_t kFirstCreated = 0x5500'0000'0000;
constexpr std::uint64_t kCreatedStep = 0x400;

}  // namespace

// ---- streams and positions

// Stream handles are host addresses, whose top byte is zero.
std::uint64_t SimulatedStreams::key(int device, StreamId stream) {
  return stream.value() ^ (static_cast<std::uint64_t>(device) << 56);
}

std::uint32_t SimulatedStreams::index_of(int device, StreamId stream) {
  const auto next = static_cast<std::uint32_t>(streams_.size());
  const auto [it, added] = stream_index_.try_emplace(key(device, stream), next);
  if (added) {
    streams_.emplace_back().device = device;
  }
  return it->second;
}

const SimulatedStreams::Stream* SimulatedStreams::find(int device, StreamId stream) const {
  const auto it = stream_index_.find(key(device, stream));
  return it == stream_index_.end() ? nullptr : &streams_[it->second];
}

Result<std::uint64_t> SimulatedStreams::identity(int device, StreamId stream) {
  const std::uint32_t index = index_of(device, stream);
  if (streams_[index].capture != 0) {
    return refuse(streams_[index].capture, kCaptureUnsupported).error();
  }
  return std::uint64_t{index} + 1;
}

void SimulatedStreams::destroy_stream(int device, StreamId stream) {
  // Its entry stays, for device waits and for what is running, under no name.
  stream_index_.erase(key(device, stream));
}

StreamId SimulatedStreams::create_stream(int device) {
  const auto again = std::find_if(created_.rbegin(), created_.rend(), [&](const Created& made) {
    return !made.live && made.device == device;
  });
  if (again != created_.rend()) {
    again->live = true;
    return again->handle;
  }
  const StreamId handle(kFirstCreated + kCreatedStep * created_.size());
  created_.push_back({handle, device});
  return handle;
}

bool SimulatedStreams::destroy_created(int device, StreamId stream) {
  const auto at = std::find_if(created_.begin(), created_.end(), [&](const Created& made) {
    return made.live && made.device == device && made.handle == stream;
  });
  if (at == created_.end()) {
    return false;
  }
  destroy_stream(device, stream);
  at->live = false;
  std::rotate(at, at + 1, created_.end());
  return true;
}

std::uint64_t SimulatedStreams::created_streams() const {
  return static_cast<std::uint64_t>(std::count_if(
      created_.begin(), created_.end(), [](const Created& made) { return made.live; }));
}

double& SimulatedStreams::device_synced(int device) {
  const auto index = static_cast<std::size_t>(device);
  if (index >= device_synced_us_.size()) {
    device_synced_us_.resize(index + 1, -1);
  }
  return device_synced_us_[index];
}

SimulatedStreams::Position SimulatedStreams::queue(std::uint32_t index) {
  Stream& stream = streams_[index];
  stream.last_queued_us = clock_us.load(std::memory_order_relaxed);
  return {index, ++stream.queued, stream.last_queued_us};
}

bool SimulatedStreams::is_done(const Position& position) {
  Stream& stream = streams_[position.stream];
  const bool ran = position.sequence <= stream.allowed ||
                   (mode == Completion::kClock &&
                    position.queued_us + lag_us <= clock_us.load(std::memory_order_relaxed));
  if (!ran) {
    return false;
  }
  // Every step goes to something queued earlier, and a stream's front wait is its earliest: the
  // recursion is at most as deep as there are streams.
  while (!stream.waits.empty() && stream.waits.front().sequence <= position.sequence) {
    if (!is_done(stream.waits.front().target)) {
      return false;
    }
    stream.waits.pop_front();
  }
  return true;
}

double SimulatedStreams::finish(const Position& position) {
  Stream& stream = streams_[position.stream];
  double waited = 0;
  if (position.sequence > stream.allowed && mode == Completion::kClock) {
    waited = std::max(0.0, position.queued_us + lag_us - clock_us.load(std::memory_order_relaxed));
  }
  while (!stream.waits.empty() && stream.waits.front().sequence <= position.sequence) {
    const Position target = stream.waits.front().target;
    stream.waits.pop_front();
    waited = std::max(waited, finish(target));
  }
  stream.allowed = std::max(stream.allowed, position.sequence);
  return waited;
}

double SimulatedStreams::finish_stream(Stream& stream, std::uint32_t index) {
  double waited = finish({index, stream.queued, stream.last_queued_us});
  const double now = clock_us.load(std::memory_order_relaxed);
  if (always_busy && mode == Completion::kClock &&
      now > std::max(stream.synced_us, device_synced(stream.device))) {
    waited = std::max(waited, lag_us);
  }
  stream.synced_us = now;
  return waited;
}

bool SimulatedStreams::ordered_before(const Position& earlier, std::uint32_t stream) {
  if (earlier.stream == stream || is_done(earlier)) {
    return true;
  }
  // How far each stream is known to be ordered before `stream`; grows until nothing new is found.
  std::vector<std::uint64_t> behind(streams_.size(), 0);
  std::vector<std::uint32_t> open{stream};
  behind[stream] = streams_[stream].queued;
  while (!open.empty()) {
    const std::uint32_t at = open.back();
    open.pop_back();
    for (const Wait& wait : streams_[at].waits) {
      if (wait.sequence > behind[at]) {
        break;
      }
      if (wait.target.sequence > behind[wait.target.stream]) {
        behind[wait.target.stream] = wait.target.sequence;
        open.push_back(wait.target.stream);
      }
    }
  }
  return earlier.sequence <= behind[earlier.stream];
}

// ---- events

SimulatedStreams::Event* SimulatedStreams::find_event(int device, EventId id) {
  const std::uint64_t index = (id.raw & ((std::uint64_t{1} << kIndexBits) - 1)) - 1;
  if (index >= events_.size()) {
    return nullptr;
  }
  Event& event = events_[index];
  const bool ours = event.live && event.generation == id.raw >> kIndexBits;
  return ours && event.device == device ? &event : nullptr;
}

Result<EventId> SimulatedStreams::create_event(int device) {
  std::uint32_t index = 0;
  if (free_events_.empty()) {
    index = static_cast<std::uint32_t>(events_.size());
    events_.emplace_back();
  } else {
    index = free_events_.back();
    free_events_.pop_back();
  }
  const std::uint32_t generation = events_[index].generation;
  Event fresh;
  fresh.device = device;
  fresh.live = true;
  fresh.generation = generation;
  events_[index] = fresh;
  ++live_events_;
  return EventId{(std::uint64_t{generation} << kIndexBits) | (index + 1)};
}

Status SimulatedStreams::destroy_event(int device, EventId id) {
  Event* event = find_event(device, id);
  if (event == nullptr) {
    return simulated_invalid();
  }
  event->live = false;
  ++event->generation;
  free_events_.push_back(static_cast<std::uint32_t>(event - events_.data()));
  --live_events_;
  return {};
}

Status SimulatedStreams::record(int device, EventId id, StreamId stream) {
  Event* event = find_event(device, id);
  if (event == nullptr) {
    return simulated_invalid();
  }
  const std::uint32_t index = index_of(device, stream);
  event->capture = streams_[index].capture;
  event->position = event->capture != 0 ? Position{} : queue(index);
  return {};
}

Status SimulatedStreams::query(int device, EventId id) {
  const Event* event = find_event(device, id);
  if (event == nullptr) {
    return simulated_invalid();
  }
  if (event->capture != 0) {
    return refuse(event->capture, kCapturedEvent);
  }
  const bool done = event->position.sequence == 0 || is_done(event->position);
  return done ? Status() : Status(simulated_error(Errc::kNotReady));
}

Status SimulatedStreams::synchronize_event(int device, EventId id, double* waited_us) {
  const Event* event = find_event(device, id);
  if (event == nullptr) {
    return simulated_invalid();
  }
  if (event->capture != 0) {
    return refuse(event->capture, kCapturedEvent);
  }
  *waited_us = event->position.sequence == 0 ? 0 : finish(event->position);
  return {};
}

Status SimulatedStreams::synchronize_stream(int device, StreamId stream, double* waited_us) {
  const std::uint32_t index = index_of(device, stream);
  if (streams_[index].capture != 0) {
    return refuse(streams_[index].capture, kCaptureUnsupported);
  }
  *waited_us = finish_stream(streams_[index], index);
  return {};
}

Status SimulatedStreams::synchronize_device(int device, double* waited_us) {
  for (const Stream& stream : streams_) {
    if (stream.device == device && stream.capture != 0) {
      return refuse(stream.capture, kCaptureUnsupported);
    }
  }
  wait_idle(device, waited_us);
  return {};
}

void SimulatedStreams::wait_idle(int device, double* waited_us) {
  const double now = clock_us.load(std::memory_order_relaxed);
  double waited = 0;
  if (always_busy && mode == Completion::kClock && now > device_synced(device)) {
    waited = lag_us;
  }
  device_synced(device) = now;
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].device == device) {
      waited = std::max(waited, finish_stream(streams_[i], i));
    }
  }
  *waited_us = waited;
}

Status SimulatedStreams::wait(int device, StreamId stream, EventId id) {
  // Any device's event will do.
  const std::uint64_t slot = (id.raw & ((std::uint64_t{1} << kIndexBits) - 1)) - 1;
  const Event* event = slot < events_.size() ? find_event(events_[slot].device, id) : nullptr;
  if (event == nullptr) {
    return simulated_invalid();
  }
  const std::uint32_t index = index_of(device, stream);
  Stream& waiter = streams_[index];
  if (event->capture != 0) {
    if (!captures_[event->capture].open) {
      return refuse(event->capture, kCapturedEvent);
    }
    if (waiter.capture != 0 && waiter.capture != event->capture) {
      refuse(waiter.capture, kCaptureMerge).ignore();
      return refuse(event->capture, kCaptureMerge);
    }
    waiter.capture = waiter.last_capture = event->capture;  // joins
    return {};
  }
  if (event->position.sequence == 0) {
    return {};
  }
  if (waiter.capture != 0) {
    return refuse(waiter.capture, kCaptureIsolation);
  }
  while (!waiter.waits.empty() && is_done(waiter.waits.front().target)) {
    waiter.waits.pop_front();
  }
  if (event->position.stream != index && !is_done(event->position)) {
    waiter.waits.push_back({queue(index).sequence, event->position});
  }
  return {};
}

// ---- capture

Status SimulatedStreams::refuse(std::uint32_t capture, int driver_code) {
  if (!captures_[capture].open) {
    return simulated_invalid();  // an event whose capture is over (measured: 1, not 907)
  }
  captures_[capture].invalidated = true;
  return Error{Errc::kCapturing, driver_code};
}

bool SimulatedStreams::capturing(int device, StreamId stream) const {
  const Stream* found = find(device, stream);
  return found != nullptr && found->capture != 0;
}

void SimulatedStreams::begin_capture(int device, StreamId stream) {
  Stream& origin = streams_[index_of(device, stream)];
  NOFRAG_CHECK(origin.capture == 0, "begin_capture on a stream that is captured");
  origin.capture = origin.last_capture = static_cast<std::uint32_t>(captures_.size());
  captures_.emplace_back();
}

bool SimulatedStreams::end_capture(int device, StreamId stream) {
  const std::uint32_t capture = streams_[index_of(device, stream)].capture;
  NOFRAG_CHECK(capture != 0, "end_capture on a stream that is not captured");
  for (Stream& joined : streams_) {
    if (joined.capture == capture) {
      joined.capture = 0;
    }
  }
  captures_[capture].open = false;
  return !captures_[capture].invalidated;
}

bool SimulatedStreams::capture_invalidated(int device, StreamId stream) const {
  const Stream* found = find(device, stream);
  return found != nullptr && captures_[found->last_capture].invalidated;
}

// ---- completion by hand, kernels

void SimulatedStreams::allow_stream(int device, StreamId stream) {
  Stream& allowed = streams_[index_of(device, stream)];
  allowed.allowed = allowed.queued;
}

void SimulatedStreams::allow_all() {
  for (Stream& stream : streams_) {
    stream.allowed = stream.queued;
  }
}

// For conflict().
void SimulatedStreams::enter(std::size_t kernel) {
  if (kernels_[kernel].owner != 0) {
    for (const PhysicalPiece& piece : kernels_[kernel].pieces) {
      pieces_.add(static_cast<std::uint32_t>(kernel), piece);
    }
  }
}

void SimulatedStreams::prune_kernels() {
  if (kernels_.size() >= prune_at_) {
    std::erase_if(kernels_, [this](const Kernel& kernel) { return is_done(kernel.position); });
    prune_at_ = std::max<std::size_t>(64, kernels_.size() * 2);
    pieces_.clear();
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      enter(i);
    }
  }
}

const SimulatedStreams::Kernel* SimulatedStreams::conflict(
    int device, StreamId stream, std::uint64_t owner, const std::vector<PhysicalPiece>& pieces) {
  const std::uint32_t index = index_of(device, stream);
  // The one that was launched first.
  std::size_t first = kernels_.size();
  for (const PhysicalPiece& piece : pieces) {
    pieces_.for_each(piece, [&](std::size_t kernel) {
      if (kernel < first && kernels_[kernel].owner != owner &&
          !ordered_before(kernels_[kernel].position, index)) {
        first = kernel;
      }
    });
  }
  return first == kernels_.size() ? nullptr : &kernels_[first];
}

void SimulatedStreams::launch(int device, StreamId stream, Kernel kernel) {
  prune_kernels();
  kernel.position = queue(index_of(device, stream));
  kernels_.push_back(std::move(kernel));
  enter(kernels_.size() - 1);
}

const SimulatedStreams::Kernel* SimulatedStreams::running_in(VirtAddr address, Bytes size) {
  for (const Kernel& kernel : kernels_) {
    if (kernel.address < address + size && address < kernel.address + kernel.size &&
        !is_done(kernel.position)) {
      return &kernel;
    }
  }
  return nullptr;
}

void SimulatedStreams::check() const {
  std::uint64_t live = 0;
  for (const Event& event : events_) {
    live += event.live ? 1 : 0;
  }
  NOFRAG_CHECK(live == live_events_, "live events are miscounted");
  for (const Stream& stream : streams_) {
    NOFRAG_CHECK(stream.allowed <= stream.queued, "a stream ran beyond what was queued");
    std::uint64_t previous = 0;
    for (const Wait& wait : stream.waits) {
      NOFRAG_CHECK(wait.sequence > previous && wait.sequence <= stream.queued,
                   "waits out of order");
      previous = wait.sequence;
    }
  }
}

}  // namespace nofrag
