// A model of cudaMallocAsync on a pool that keeps its memory (release threshold at its largest): chunks of at
// least 32 MiB, best fit in them, reuse by the rules of CUDA's documentation: the own stream at once,
// another when its work is done, else behind a wait of the stream. How the driver really places is not public.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cli/peers/replay_allocator.h"

namespace nofrag {
namespace {

constexpr Bytes kSmallestChunk = 32 * kMiB;
constexpr Bytes kGranule = 2 * kMiB;
constexpr Bytes kUnit{512};
constexpr std::size_t kMostTries = 32;  // pieces of other streams that are asked about

class DriverAsync final : public ReplayAllocator {
 public:
  explicit DriverAsync(const PeerConfig& config) : config_(config), live_(config.blocks) {}
  ~DriverAsync() override {
    for (const auto& [base, chunk] : chunks_) {
      config_.driver->free(config_.device, VirtAddr(base)).ignore();
    }
    for (const EventId event : events_) {
      config_.driver->event_destroy(config_.device, event).ignore();
    }
  }

  Status allocate(std::uint32_t number, Bytes size, StreamId stream) override {
    const std::uint64_t held = round_up(size, kUnit).count();
    several_streams_ = several_streams_ || (any_stream_ && stream != last_stream_);
    any_stream_ = true;
    last_stream_ = stream;
    std::uint64_t address = 0;
    if (!find(held, stream, &address)) {
      Status grown = grow(held, stream, &address);
      if (!grown.ok()) {
        // The driver waits, gives unused chunks back and tries again.
        const Status settled = settle();
        if (!settled.ok()) {
          return settled;
        }
        grown = find(held, stream, &address) ? Status() : grow(held, stream, &address);
      }
      if (!grown.ok()) {
        return grown;
      }
    }
    cut(address, held);
    pieces_[address].free = false;
    live_[number] = address;
    return {};
  }

  Status free(std::uint32_t number, StreamId stream) override {
    const auto at = pieces_.find(live_[number]);
    live_[number] = 0;
    Piece& piece = at->second;
    piece.free = true;
    piece.stream = stream;
    piece.done = false;
    if (several_streams_) {
      const Status recorded = record(piece);
      if (!recorded.ok()) {
        return recorded;
      }
    }
    join(at);
    return {};
  }

  Status retire(StreamId stream) override {
    // Its work is waited for when the stream is destroyed; nothing may be recorded on it later.
    for (auto& [address, piece] : pieces_) {
      piece.done = piece.done || (piece.free && piece.stream == stream);
    }
    return {};
  }

  [[nodiscard]] Bytes reserved() const override { return reserved_; }
  [[nodiscard]] Bytes peak_reserved() const override { return peak_reserved_; }
  [[nodiscard]] Bytes free_granules() const override {
    Bytes total;
    for (const auto& [address, piece] : pieces_) {
      const std::uint64_t first = round_up(Bytes(address), kGranule).count();
      const std::uint64_t last = round_down(Bytes(address + piece.size), kGranule).count();
      total += Bytes(piece.free && last > first ? last - first : 0);
    }
    return total;
  }

 private:
  struct Piece {
    std::uint64_t size = 0;
    std::uint64_t chunk = 0;
    StreamId stream;  // of a free one: whose work used it last
    EventId event;
    bool has_event = false;
    bool free = false;
    bool done = true;  // no work can still use it
  };
  using Pieces = std::map<std::uint64_t, Piece>;

  Status record(Piece& piece) {
    if (spare_.empty()) {
      const Result<EventId> made = config_.driver->event_create(config_.device);
      if (!made.ok()) {
        return made.error();
      }
      events_.push_back(made.value());
      spare_.push_back(made.value());
    }
    piece.event = spare_.back();
    piece.has_event = true;
    spare_.pop_back();
    return config_.driver->event_record(config_.device, piece.event, piece.stream);
  }
  void drop_event(Piece& piece) {
    if (piece.has_event) {
      spare_.push_back(piece.event);
      piece.has_event = false;
    }
  }

  // The smallest free piece that serves without a wait, else the smallest that serves behind one.
  bool find(std::uint64_t size, StreamId stream, std::uint64_t* address) {
    std::size_t tries = 0;
    std::uint64_t behind_wait = 0;
    for (auto at = free_.lower_bound({size, 0}); at != free_.end() && tries < kMostTries; ++at) {
      Piece& piece = pieces_[at->second];
      if (!piece.done && piece.stream != stream) {
        ++tries;
        if (!piece.has_event || !config_.driver->event_query(config_.device, piece.event).ok()) {
          behind_wait = behind_wait == 0 ? at->second : behind_wait;
          continue;
        }
      }
      *address = at->second;
      return true;
    }
    if (behind_wait == 0 || !pieces_[behind_wait].has_event) {
      return false;
    }
    *address = behind_wait;
    return config_.driver->stream_wait(config_.device, stream, pieces_[behind_wait].event).ok();
  }

  Result<VirtAddr> take(Bytes chunk) {
    if (reserved_ > config_.limit || chunk > config_.limit - reserved_) {
      return Errc::kLimit;
    }
    return config_.driver->malloc(config_.device, chunk);
  }

  Status grow(std::uint64_t size, StreamId stream, std::uint64_t* address) {
    // Where no more than that is left, no more than the request needs.
    Bytes chunk = std::max(kSmallestChunk, round_up(Bytes(size), kGranule));
    Result<VirtAddr> memory = take(chunk);
    if (!memory.ok()) {
      chunk = round_up(Bytes(size), kGranule);
      memory = take(chunk);
    }
    if (!memory.ok()) {
      return memory.error();
    }
    *address = memory.value().value();
    chunks_[*address] = chunk.count();
    Piece piece;
    piece.size = chunk.count();
    piece.chunk = *address;
    piece.stream = stream;
    piece.free = true;
    pieces_[*address] = piece;
    free_.emplace(piece.size, *address);
    reserved_ += chunk;
    peak_reserved_ = std::max(peak_reserved_, reserved_);
    return {};
  }

  // The piece leaves the free ones; what it has too much stays behind it.
  void cut(std::uint64_t address, std::uint64_t size) {
    Piece& piece = pieces_[address];
    free_.erase({piece.size, address});
    Piece rest = piece;
    drop_event(piece);
    rest.has_event = false;
    if (rest.size > size) {
      rest.size -= size;
      piece.size = size;
      if (!rest.done && several_streams_ && !record(rest).ok()) {
        rest.has_event = false;
      }
      pieces_[address + size] = rest;
      free_.emplace(rest.size, address + size);
    }
  }

  [[nodiscard]] static bool joins(const Piece& a, const Piece& b) {
    return a.free && b.free && a.chunk == b.chunk && (a.stream == b.stream || (a.done && b.done));
  }

  void join(Pieces::iterator at) {
    const auto next = std::next(at);
    if (next != pieces_.end() && joins(at->second, next->second)) {
      absorb(at, next);
    }
    if (at != pieces_.begin()) {
      const auto before = std::prev(at);
      if (joins(before->second, at->second)) {
        free_.erase({before->second.size, before->first});
        // The later event covers both: one stream runs in order.
        std::swap(before->second.event, at->second.event);
        std::swap(before->second.has_event, at->second.has_event);
        before->second.done = before->second.done && at->second.done;
        before->second.size += at->second.size;
        drop_event(at->second);
        pieces_.erase(at);
        at = before;
      }
    }
    free_.emplace(at->second.size, at->first);
  }
  void absorb(Pieces::iterator at, Pieces::iterator next) {
    free_.erase({next->second.size, next->first});
    at->second.size += next->second.size;
    at->second.done = at->second.done && next->second.done;
    drop_event(next->second);
    pieces_.erase(next);
  }

  // After a wait for the device every free piece is anybody's, and whole chunks go back.
  Status settle() {
    const Status waited = config_.driver->device_synchronize(config_.device);
    if (!waited.ok()) {
      return waited;
    }
    for (auto& [address, piece] : pieces_) {
      if (piece.free) {
        piece.done = true;
        drop_event(piece);
      }
    }
    free_.clear();
    for (auto at = pieces_.begin(); at != pieces_.end(); ++at) {
      for (auto next = std::next(at); next != pieces_.end() && joins(at->second, next->second);
           next = std::next(at)) {
        at->second.size += next->second.size;
        pieces_.erase(next);
      }
    }
    Status first;
    for (auto at = pieces_.begin(); at != pieces_.end();) {
      const bool whole = at->second.free && at->second.size == chunks_[at->second.chunk];
      if (!whole) {
        if (at->second.free) {
          free_.emplace(at->second.size, at->first);
        }
        ++at;
        continue;
      }
      const Status freed = config_.driver->free(config_.device, VirtAddr(at->first));
      first = first.ok() ? freed : first;
      reserved_ -= Bytes(at->second.size);
      chunks_.erase(at->first);
      at = pieces_.erase(at);
    }
    return first;
  }

  PeerConfig config_;
  std::vector<std::uint64_t> live_;
  std::unordered_map<std::uint64_t, std::uint64_t> chunks_;  // size by address
  Pieces pieces_;                                            // they tile the chunks
  std::set<std::pair<std::uint64_t, std::uint64_t>> free_;   // size, address
  std::vector<EventId> events_;
  std::vector<EventId> spare_;
  StreamId last_stream_;
  bool any_stream_ = false;
  bool several_streams_ = false;
  Bytes reserved_;
  Bytes peak_reserved_;
};

}  // namespace

std::unique_ptr<ReplayAllocator> make_driver_async_model(const PeerConfig& config) {
  return std::make_unique<DriverAsync>(config);
}

}  // namespace nofrag
