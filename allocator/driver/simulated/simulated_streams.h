// SimulatedStreams: what has been queued on each stream and what of it is done.
//
// Owns: the streams (they appear when first named), events, captures, running kernels and the clock
// of one SimulatedDriver. Layer: driver; knows no memory beyond the ranges that kernels use.
// Every queued item (event record, kernel, wait) takes the next position of its stream. A position
// is done when the stream may have run to it (kClock: `lag` microseconds after it was queued, or
// the host waited for it; kByHand: complete_stream was called after it was queued) and the events
// that the stream waits for before it are done. Streams are independent: the legacy default stream
// gets no special order.
// Threads: the clock is atomic, all else is under the driver's lock. Failure: strong.
// Cost: O(1) amortised; a conflict O(running kernels near those bytes, or in their handles), running_in O(running).
#pragma once

#include <atomic>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "driver/driver.h"
#include "driver/simulated/piece_index.h"
#include "driver/simulated/simulated_memory.h"

namespace nofrag {

enum class Completion : unsigned char { kClock, kByHand };

class SimulatedStreams {
 public:
  // CUDA's own numbers for the refusals during capture.
  static constexpr int kCaptureUnsupported = 900;
  static constexpr int kCaptureIsolation = 905;
  static constexpr int kCapturedEvent = 907;

  struct Position {
    std::uint32_t stream = 0;    // index
    std::uint64_t sequence = 0;  // 0 = nothing to wait for
    double queued_us = 0;
  };
  struct Kernel {
    Position position;
    VirtAddr address;
    Bytes size;
    std::uint64_t owner = 0;
    std::vector<PhysicalPiece> pieces;
  };

  std::atomic<double> clock_us{0};
  double lag_us = 500;
  Completion mode = Completion::kClock;
  // kClock: every stream has work queued up to this very moment, named here or not.
  bool always_busy = false;

  Result<EventId> create_event(int device);
  Status destroy_event(int device, EventId id);
  Status record(int device, EventId id, StreamId stream);
  // ok, kNotReady, or an error that invalidates the capture.
  Status query(int device, EventId id);
  // *waited_us: the microseconds the host would stand still (kClock).
  Status synchronize_event(int device, EventId id, double* waited_us);
  Status synchronize_stream(int device, StreamId stream, double* waited_us);
  Status synchronize_device(int device, double* waited_us);
  // What freeing plain memory does: waits for the device; allowed while a stream is captured.
  void wait_idle(int device, double* waited_us);
  Status wait(int device, StreamId stream, EventId id);

  // The number of the stream that the handle means now.
  Result<std::uint64_t> identity(int device, StreamId stream);
  // Its work goes on; the handle means another stream from now on.
  void destroy_stream(int device, StreamId stream);
  // The handle destroyed last on the device, as the driver does it, else a new one.
  StreamId create_stream(int device);
  // False if the handle is not one that create_stream made on this device, or destroyed already.
  bool destroy_created(int device, StreamId stream);
  [[nodiscard]] std::uint64_t created_streams() const;

  [[nodiscard]] bool capturing(int device, StreamId stream) const;
  void begin_capture(int device, StreamId stream);
  bool end_capture(int device, StreamId stream);
  [[nodiscard]] bool capture_invalidated(int device, StreamId stream) const;

  void allow_stream(int device, StreamId stream);
  void allow_all();

  // The running kernel whose use of the same physical bytes is not ordered before what `stream`
  // queues now, and that has another owner; nullptr if there is none.
  const Kernel* conflict(int device,
                         StreamId stream,
                         std::uint64_t owner,
                         const std::vector<PhysicalPiece>& pieces);
  void launch(int device, StreamId stream, Kernel kernel);
  // A running kernel that uses any of these addresses, or nullptr.
  const Kernel* running_in(VirtAddr address, Bytes size);

  [[nodiscard]] std::uint64_t live_events() const { return live_events_; }
  void check() const;

 private:
  struct Wait {
    std::uint64_t sequence = 0;  // of the wait itself
    Position target;
  };
  struct Stream {
    int device = 0;
    std::uint64_t queued = 0;   // last position given out
    std::uint64_t allowed = 0;  // by hand, or because the host waited
    double last_queued_us = 0;
    std::deque<Wait> waits;     // unsatisfied ones, in queue order
    std::uint32_t capture = 0;  // 0 = not capturing
    std::uint32_t last_capture = 0;
    double synced_us = -1;  // the host waited for all of it then
  };
  struct Event {
    int device = 0;
    bool live = false;
    std::uint32_t generation = 0;
    std::uint32_t capture = 0;  // last recorded in this capture; 0 = outside
    Position position;          // sequence 0 = never recorded
  };
  struct Capture {
    bool open = true;
    bool invalidated = false;
  };

  struct Created {
    StreamId handle;
    int device = 0;
    bool live = true;
  };

  std::uint32_t index_of(int device, StreamId stream);
  [[nodiscard]] const Stream* find(int device, StreamId stream) const;
  Event* find_event(int device, EventId id);
  Position queue(std::uint32_t index);
  bool is_done(const Position& position);
  // Counts the position as done; the microseconds that the host would have waited for it.
  double finish(const Position& position);
  double finish_stream(Stream& stream, std::uint32_t index);
  double& device_synced(int device);
  bool ordered_before(const Position& earlier, std::uint32_t stream);
  Status refuse(std::uint32_t capture, int driver_code);
  static std::uint64_t key(int device, StreamId stream);
  void enter(std::size_t kernel);
  void prune_kernels();

  std::unordered_map<std::uint64_t, std::uint32_t> stream_index_;  // key(): device and stream
  std::vector<Stream> streams_;
  std::vector<Created> created_;  // those destroyed last, last
  std::vector<Event> events_;
  std::vector<std::uint32_t> free_events_;
  std::vector<Capture> captures_{Capture{}};  // [0] is "none"
  std::vector<Kernel> kernels_;
  PieceIndex pieces_;  // of kernels_ that have an owner, by their place there
  std::size_t prune_at_ = 64;
  std::uint64_t live_events_ = 0;
  std::vector<double> device_synced_us_;  // by device, grown on demand
};

}  // namespace nofrag
