// DeviceState: one device as PyTorch's statistics, snapshots and traces show it.
//
// Owns: the records of live blocks and of those whose free waits for other streams, PyTorch's counters, the
// trace. The memory itself is nofrag's.
// Units: bytes as PyTorch counts them (requests rounded up to 512, or by roundup_power2_divisions).
// Invariants: a live record's block is live in nofrag, because records are made after the allocation and go
// before the free; allocated <= active; all of it changes under `mutex`.
// Threads: `mutex`. nofrag's own lock may be held when it is taken (on_memory_event), never the other way
// round: no call of nofrag is made under it, and no code of anybody else's. Trackers are told later, without a
// lock (tell_trackers).
// Failure: none.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <nofrag/frameworks.h>

#include "torch_plugin/native/block_table.h"
#include "torch_plugin/native/history/history.h"

namespace nofrag::native {

// What the profiler is told of: the bytes allocated and reserved once an event has happened.
struct Totals {
  std::size_t allocated = 0;
  std::size_t reserved = 0;
};

class DeviceState {
 public:
  DeviceState(int ordinal, History& history) : ordinal_(ordinal), history_(history) {}
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;
  ~DeviceState() = default;

  // Each takes the mutex.
  Totals note_allocated(Block&& block);
  // The block's record, and what there is after its free; false if the address is not a live block's. If
  // other streams used it, it is among `waiting` until settle_free or an event of nofrag.
  struct Freed {
    Block block;
    Totals totals;
  };
  bool note_freed(const void* address, const Context& context, Freed* freed);
  // nofrag_free has returned: the free is complete unless nofrag said that it waits.
  void settle_free(const Block& block);
  void complete_free(const void* address, std::uint64_t serial);
  // Around a change in nofrag of what lives in a pool, of which the records learn afterwards: meanwhile other
  // threads may be given addresses whose records are out of date.
  class Restoring {
   public:
    explicit Restoring(DeviceState& state) : state_(state) { state_.change_restoring(1); }
    Restoring(const Restoring&) = delete;
    Restoring& operator=(const Restoring&) = delete;
    ~Restoring() { state_.change_restoring(-1); }

   private:
    DeviceState& state_;
  };
  // nofrag_pool_restore has returned: `gone` were freed, `made` allocated; a block may be in both.
  void note_restored(const std::vector<Block>& gone,
                     std::vector<Block> made,
                     const Context& context);
  void on_memory_event(const nofrag_memory_event& event);
  // Segments that are not nofrag's, of pools with an allocator of their own.
  void note_segment(const void* address, std::size_t size, bool small, bool made, PoolId pool);
  void note_oom(std::size_t requested, cudaStream_t stream, std::size_t free, Context context);
  void note_sync();
  void record(TraceEvent event);
  // Tells trackers of what has happened until now, in the order in which it did. When it returns they know it;
  // only what they do themselves they may be told later. pre: no lock is held.
  void tell_trackers();
  // Does a tracker make this call? It hears of it after its end.
  static bool in_tracker();
  // A pool of the device begins or ends to be filled.
  void note_filling(bool begins) { filling_.fetch_add(begins ? 1 : -1, std::memory_order_acq_rel); }
  // While any is, a capture may be under way.
  [[nodiscard]] bool filling() const { return filling_.load(std::memory_order_acquire) > 0; }

  [[nodiscard]] bool holds(const void* address);
  [[nodiscard]] bool has_waiting();
  // False if the address is not a live block's. `visit` runs under the mutex.
  template <typename Visitor>
  bool with_block(const void* address, Visitor&& visit) {
    const std::lock_guard lock(mutex_);
    Block* block = live_.find(address);
    if (block == nullptr) {
      return false;
    }
    visit(*block);
    return true;
  }
  template <typename Visitor>
  void for_each_live(Visitor&& visit) {
    const std::lock_guard lock(mutex_);
    live_.for_each(visit);
  }
  // Live blocks, and with `live` false those whose free waits.
  template <typename Visitor>
  void for_each_block(Visitor&& visit) {
    const std::lock_guard lock(mutex_);
    live_.for_each([&](const Block& block) { visit(block, true); });
    for (const auto& [address, waiting] : waiting_) {
      visit(waiting.block, false);
    }
  }
  // The stack of the segment's mapping that covers the address, if it was recorded.
  [[nodiscard]] Context segment_context(std::size_t address);

  [[nodiscard]] DeviceStats stats();
  void reset_accumulated();
  void reset_peaks();
  void set_history(const HistorySettings& settings);
  [[nodiscard]] std::vector<TraceEntry> trace();
  [[nodiscard]] int ordinal() const { return ordinal_; }

  std::atomic<double> fraction{1.0};  // of the device's memory that may be reserved
  std::atomic<bool> lending{false};   // some pool serves the default pool when memory is short

 private:
  struct Waiting {
    Block block;
    bool deferred = false;
    Context context;
  };
  struct Segment {
    std::size_t address = 0;
    std::size_t size = 0;
  };
  struct Mapped {
    std::size_t size = 0;
    Context context;
  };

  void change_restoring(int difference);

  // All under the mutex.
  void add(Block&& block);
  Block remove(const void* address, const Context& context);
  void write(TraceEvent event);
  void write_to(TraceEvent event, bool ring);
  void finish(const Block& block, const Context& context);
  void count(DeviceStats& stats, const Block& block, bool made) const;
  void set_reserved(std::size_t reserved);
  void note_mapping(const nofrag_memory_event& event, bool made);
  [[nodiscard]] std::int64_t small_reserved() const;
  [[nodiscard]] std::size_t large_reserved() const;
  void divide_reserved(DeviceStats& stats) const;
  [[nodiscard]] Totals totals() const;

  const int ordinal_;
  History& history_;
  std::mutex mutex_;
  BlockTable live_;  // Sync: mutex_, as all below
  std::unordered_map<const void*, Waiting> waiting_;
  std::unordered_map<std::uint64_t, Segment>
      segments_;                          // by nofrag's allocation: where it was mapped first
  std::map<std::size_t, Mapped> mapped_;  // by address
  std::size_t nofrag_reserved_ = 0;
  DeviceStats stats_;
  std::int64_t large_reserved_peak_ = 0;
  std::int64_t small_reserved_at_reset_ = 0;  // of the sums
  std::uint64_t last_serial_ = 0;
  TraceRing ring_;
  int restoring_ = 0;
  std::vector<TraceEntry> untold_;  // to trackers
  std::uint64_t noted_ = 0;         // entries that ever were in it, and those that trackers know
  std::uint64_t told_ = 0;
  std::uint64_t noted_by_trackers_ = 0;  // the last that was noted in a call of a tracker's
  bool telling_ = false;                 // some thread tells them now
  std::condition_variable telling_done_;
  std::atomic<int> filling_{0};
};

// The stack that events of nofrag inside a call are put down to: that of the call. For the calling thread.
class ContextOfCall {
 public:
  explicit ContextOfCall(const Context& context);
  ContextOfCall(const ContextOfCall&) = delete;
  ContextOfCall& operator=(const ContextOfCall&) = delete;
  ~ContextOfCall();
  static Context current();

 private:
  const Context* outer_;
};

}  // namespace nofrag::native
