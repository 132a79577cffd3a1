// Streams: the clocks of all streams seen on one device, and the events they are read with.
//
// Owns: the clocks and every event.
// Layer: stream (beside range; above driver).
// Rules it keeps: no event is recorded on, and no
// host or device wait made for, a stream that is being captured (kCapturing): an event recorded
// there belongs to the graph and says nothing about time. Events recorded outside a capture may
// be queried at any time. The per-thread default stream (StreamId 2) is one name for many streams:
// it has a clock a thread, and only that thread can record markers on it. A handle that comes back
// after its stream was destroyed is a new stream with a clock of its own: what it means is asked of the
// driver by identity (drivers before CUDA 12 cannot tell: there retire() is what keeps them apart). A
// stream that can take no marker (destroyed without retire(), or another thread's) is waited for by
// waiting for the device; one that never took any (another context's) counts as never done. While a
// stream is captured it may not be asked who it is: then its handle has a clock of its own.
// Threads: none (the device lock).
// Failure: a marker that cannot be recorded leaves the clock as it was; memory stamped with it
// simply stays unsafe. Nothing here ever treats an error as "done".
// Cost: mark one record and one capture query; poll one query a finished marker plus one.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "stream/stream_clock.h"

namespace nofrag {

class Streams {
 public:
  Streams(Driver& driver, DeviceOrdinal device);
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  // Gives the events back. pre: nobody waits for a marker any more.
  ~Streams();

  // The clock of `stream`, made on first sight. Never moves or dies.
  [[gnu::hot]] StreamClock& clock(StreamId stream);
  // The one that clock() would find without asking the driver, or nullptr.
  [[nodiscard]] StreamClock* known(StreamId stream) const;
  [[nodiscard]] std::size_t count() const { return clocks_.size(); }
  // More than one stream was seen: sharing needs markers.
  [[nodiscard]] bool several() const { return clocks_.size() > 1; }

  // Records a marker for everything queued so far.
  Status mark(StreamClock& clock);
  // Marks unless a recorded marker covers `tick` already.
  Status mark_up_to(StreamClock& clock, Tick tick);
  // The clock that the stream of this handle has while it is captured, if `clock` is the one it has at other times, and
  // the other way round; nullptr if there is none.
  [[nodiscard]] StreamClock* around_capture(const StreamClock& clock) const;
  // Several streams: marks each on which memory was freed since its last marker. Those that are captured are left out.
  void mark_freed();
  // Asks the driver how far the stream has come.
  void poll(StreamClock& clock);
  void poll_all();
  // Bytes were freed on the stream: its next marker will cover their use.
  [[gnu::hot]] void note_freed(StreamClock& clock, Bytes size);
  // done(tick), asking the driver if it was not known to be.
  bool is_done(StreamClock& clock, Tick tick);

  // Blocks the host until `tick` is done.
  Status wait_host(StreamClock& clock, Tick tick);
  // Blocks the host until everything queued on the device is done. kCapturing, and no wait, while a
  // stream with work of ours is captured; captures of other streams are the caller's to rule out.
  Status wait_device_idle();
  // Work queued on `waiter` from now on starts after `tick` of `clock` is done.
  Status wait_device(StreamClock& waiter, StreamClock& clock, Tick tick);

  // Is any stream that was seen being captured? One that cannot be asked counts as captured.
  bool any_capturing();

  // Those found to be destroyed without retire() since the last call.
  [[nodiscard]] bool any_newly_gone() const { return !newly_gone_.empty(); }
  std::vector<StreamClock*> take_newly_gone() { return std::exchange(newly_gone_, {}); }

  // The stream is about to be destroyed: records its last marker. Nothing to do for one that was
  // never seen or is retired already.
  Status retire(StreamId stream);
  // After the whole device was waited for: everything queued before is done.
  // Streams of other contexts are left out unless the caller answers for them.
  void all_done(bool whatever_the_context = false);

  template <typename Visitor>
  void for_each(Visitor&& visit) {
    for (const auto& clock : clocks_) {
      visit(*clock);
    }
  }

  // Visits the clocks that may have something new: freed bytes, outstanding markers, or completed ticks
  // not taken in. A process that makes a stream for each of its requests has thousands of others.
  template <typename Visitor>
  void for_each_active(Visitor&& visit) {
    for (std::size_t i = 0; i < active_.size(); ++i) {
      visit(*active_[i]);
    }
    std::erase_if(active_, [](StreamClock* clock) {
      clock->active = clock->at_work();
      return !clock->active;
    });
  }

  void check() const;

 private:
  void activate(StreamClock& clock);
  Result<EventId> take_event();
  void return_event(EventId event);
  void complete_through(StreamClock& clock, Tick tick);
  StreamClock& make_clock(StreamId stream, std::uint64_t owner_thread, std::uint64_t identity);
  // 0 for default streams and where the driver cannot tell, kCaptured while it may not be asked.
  std::uint64_t identity_of(StreamId stream);
  void note_gone(StreamClock& clock);
  void forget_key(const StreamClock& clock);
  void forget_captured(StreamId stream, std::uint64_t owner_thread);
  void replace_captured_marker(StreamClock& clock);

  StreamClock* last_used_ = nullptr;  // most calls name the stream of the call before
  std::vector<std::unique_ptr<StreamClock>> clocks_;
  std::vector<StreamClock*> newly_gone_;
  std::vector<StreamClock*> active_;
  Driver& driver_;
  DeviceOrdinal device_;
  static constexpr std::uint64_t kCaptured = UINT64_MAX;

  struct Key {
    std::uint64_t stream;
    std::uint64_t owner_thread;
    bool captured;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return static_cast<std::size_t>((key.stream ^ key.owner_thread << 20) *
                                      0x9E3779B97F4A7C15ULL);
    }
  };
  std::unordered_map<Key, StreamClock*, KeyHash> by_key_;
  std::vector<EventId> idle_events_;
};

}  // namespace nofrag
