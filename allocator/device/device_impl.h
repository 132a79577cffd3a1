// DeviceAllocator::Impl: the state of one device allocator, and the moves that its parts share.
//
// Layer: device (private header). All runs under `mutex` unless it says otherwise.
// Files: docs/design.md says what is where.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/ranked_mutex.h"
#include "device/caching.h"
#include "device/device_allocator.h"
#include "device/fill.h"
#include "device/pool.h"
#include "device/telling.h"
#include "device/tuning.h"
#include "heap/mend.h"
#include "index/address_map.h"
#include "physical/physical_memory.h"
#include "range/address_space.h"
#include "stream/streams.h"

namespace nofrag {

// Blocks are placed and sized in this unit. PyTorch's own rounding; two live blocks then never
// share a cache line (128 B on every device to date).
inline constexpr Bytes kBlockUnit{512};

class DeviceAllocator::Impl : public Telling {
 public:
  Impl(Driver& device_driver, DeviceOrdinal ordinal, DeviceInfo device_info, const Options& opts);
  ~Impl();

  // device_allocator.cc
  [[gnu::hot]] void note_allocated(Block* block, Pool& pool);
  bool ask_callbacks(std::unique_lock<RankedMutex>& lock, Bytes size);
  void settle_or_set_aside(PoolKey key);

  // backing.cc
  Status back(Fill& fill, const Placement& placement);
  Status fill_gap(Fill& fill, const Placement& placement, Gap gap);
  Status map_pieces(Pool& pool, Region& region, VirtAddr address, const std::vector<Piece>& pieces);
  Result<Piece> obtain(Fill& fill, const Placement& placement, Bytes want, Bytes room);
  Result<Piece> alias_idle(Fill& fill, const Placement& placement, Bytes want, Bytes room);
  Result<Piece> move_idle(Fill& fill, const Placement& placement, Bytes want, bool wait);
  Result<PhysicalHandle> create(Bytes size);
  void give_back(PhysicalHandle handle);
  void give_back(const std::vector<Piece>& pieces);
  [[nodiscard, gnu::hot]] Bytes capacity() const;
  [[nodiscard]] bool exactly() const;
  [[nodiscard]] Bytes growth_size(Bytes request) const;
  [[nodiscard, gnu::hot]] bool within_soft_limit(Bytes more, Bytes request) const;

  // cut.cc
  [[nodiscard]] std::uint64_t cut_budget(Bytes excess) const;
  bool ask_done(const Handle& handle);
  bool cut_under(const Placement& placement, Pool& pool);
  void cut(const Placement& placement, Pool& pool, Handle* handle);
  Block* take_cut(Pool& pool, const Placement& placement, Bytes requested, StreamClock& clock);
  void note_reserved();

  // caches/caching.cc; take_kept and keep: caches/fast_path.cc
  void set_caching();
  [[nodiscard, gnu::hot]] bool may_run_short() const;
  [[gnu::hot]] void note_pressure();
  [[gnu::hot]] void note_missed(Bytes size);
  [[nodiscard, gnu::hot]] Bytes size_for_cache(Bytes size) const;
  template <Told kTold>
  [[gnu::hot]] VirtAddr take_kept(Bytes requested, StreamId stream);
  template <Told kTold>
  [[gnu::hot]] Freed keep(VirtAddr address);
  void drop_unused_depots();
  [[gnu::hot]] void open_cache(StreamClock& clock);
  bool empty_caches();
  void stop_caching();
  bool empty_caches(const Caching::Which& which, bool depots);
  void forget_stream(const StreamClock& clock);
  bool empty_own_cache();
  void forget_gone_streams();
  [[gnu::hot]] void empty_for_large();
  [[gnu::hot]] void make_room_for(const Block& block);
  void empty_ended_caches();
  void drop_ended_caches();
  void look_after_caches();

  // compose.cc
  using Ends = std::vector<End>;
  void free_ends(const Fill& fill, Bytes least, Ends* backs, Ends* fronts);
  std::vector<Handle*> free_wholes(Fill& fill);
  Composition plan_composition(Fill& fill, Bytes size, bool thorough);
  std::optional<Mend> plan_mend(Fill& fill, Bytes size, std::size_t instead);
  Result<Placement> carry_out(Fill& fill, const Mend& plan);
  Result<AddressRange> take_view(const Fill& fill, Bytes size);
  Result<Placement> compose(Fill& fill, Bytes size, const Composition& plan);

  // ladder.cc
  [[gnu::hot]] Result<Block*> climb(Pool& pool, Bytes requested, StreamClock& clock);
  [[gnu::hot]] Result<Block*> climb_with(
      Pool& pool, Bytes size, Bytes requested, StreamClock& clock, bool for_cache);
  [[nodiscard]] bool hopeless(Bytes size, Bytes more) const;
  Block* hit_after(Pool& pool, bool emptied, Bytes size, Bytes requested, StreamClock& clock);
  // How far place() goes: what costs no wait; device-side and host waits too; and, last, the best
  // composition of all there is, whatever it costs.
  enum class Effort : unsigned char { kEasy, kPressure, kLast };
  Result<Block*> place(Pool& pool, Bytes size, Bytes requested, StreamClock& clock, Effort effort);
  Result<Placement> find_place(Fill& fill, Bytes size, Effort effort);
  Result<Placement> window(const Fill& fill, Bytes size, RangeHeap::Scope scope);
  Result<Placement> backed_place(Fill& fill, const Placement& placement);
  bool composing_pays(Fill& fill, const Placement& found, Composition* plan);
  Result<Block*> take(Fill& fill, const Placement& placement, Bytes requested);
  Result<Block*> last_resort(Pool& pool, Bytes size, Bytes requested, StreamClock& clock);
  Result<Block*> allocate_plain(Bytes size, Bytes requested, StreamClock& clock);
  Result<VirtAddr> take_plain(Bytes size);
  void tell_plain(const Block& block, bool made) const;
  Block* take_lent(const Pool& asked, Bytes requested, StreamClock& clock);
  Block* take_again(Pool& pool, const PoolBlock& wanted);
  Pool* open_pool(PoolKey key);
  [[gnu::hot]] void free_block(Block* block);
  void release_imported(const std::vector<PhysicalHandle>& handles);
  // The pool of an allocation on `stream`; gives the lock up while filters are asked.
  Pool& route(std::unique_lock<RankedMutex>& lock, StreamId stream);
  void count_rung(Rung rung, Bytes size);

  // supply.cc
  Supply supply_for(Pool& pool);
  Supply& supply(Fill& fill);
  [[nodiscard]] bool may_use(
      const Handle& handle, Bytes from, Bytes to, const StreamClock& clock, bool wait) const;
  [[nodiscard]] static bool known_done(const Handle& handle);
  [[nodiscard]] static bool known_done(const Mapping& mapping);
  Status wait_for(const Mapping& mapping);
  Status wait_for_handle(const Handle& handle);
  Status unmap(Mapping* mapping);
  Result<PhysicalHandle> unmap_idle(Handle* handle);
  [[nodiscard]] static Mapping* spare_mapping(const Pool& pool, const Handle& handle, bool wait);
  [[nodiscard]] bool can_alias(const Pool& pool, const Handle& handle, bool wait) const;
  Status make_room(Pool& pool, Handle& handle, bool wait);
  void note_emptied(Region& view);
  void drop_emptied_views();
  void drop_unused_views(const Fill& fill);
  Result<AddressRange> take_home(const Fill& fill, Bytes size);
  Result<AddressRange> take_addresses(const Fill& fill, Bytes usual, Bytes least);

  // pin.cc
  [[nodiscard]] const Block* live_block(VirtAddr address) const;
  void hold(VirtAddr from, VirtAddr to);
  void let_go(VirtAddr from, VirtAddr to);
  void drop_pins();
  void check_pins() const;

  // single.cc
  Result<Block*> climb_single(Pool& pool, Bytes requested, StreamClock& clock);
  Block* reuse_single(Pool& pool, Bytes size, Bytes requested, StreamClock& clock);
  Result<Block*> reuse_idle(Fill& fill, Bytes size, Bytes requested);
  Result<Block*> create_single(Fill& fill, Bytes size, Bytes requested);
  Result<Block*> serve_single(
      Pool& pool, Bytes size, Bytes requested, StreamClock& clock, bool wait);
  Result<PhysicalHandle> create_making_room(Fill& fill, Bytes size);

  // reclaim.cc
  [[gnu::hot]] void finish_free(Block* block);
  [[gnu::hot]] bool release_kept(Block* chain);
  bool note_use(Block* block, StreamClock& clock);
  void defer_free(Block* block);
  void settle();
  bool settle_pending(bool wait);
  void settle_released_pools();
  void drop_empty_pools();
  void drop_released_pools();
  void retry_refused();
  void release_idle(Bytes keep);
  void release_idle(Pool& pool, Bytes keep);
  Bytes trim_locked(Bytes keep);
  void free_plain(Block* block);
  void flush_deferred_plain();
  [[nodiscard]] Bytes worth_settling() const;
  [[gnu::hot]] void maybe_mark(StreamClock& clock, Bytes freed);
  [[nodiscard]] bool filling_pool() const { return !routes.empty(); }

  // report.cc
  void note_high();
  [[gnu::hot]] void note_peak();
  [[gnu::hot]] void take_peak();
  [[gnu::hot]] void note_grown();
  void reset_peaks();
  [[nodiscard]] DeviceStats stats_locked(bool walk = true) const;
  void walk_handles(DeviceStats* s) const;
  void note_failure(Bytes requested, StreamId stream, Error error);
  void check_locked() const;
  void check_blocks() const;
  [[nodiscard]] Bytes effective_limit() const;
  // Trims what the lower limit no longer allows.
  void apply_limits();

  // What every call looks at stands together, Telling's members first: each line is a journey to memory in a program
  // that needs the caches itself. Lines that threads read without the lock, or wait at for it, are not shared with it.
  const bool virtual_memory;
  bool tight = false;  // so much is taken that free memory in used handles matters
  const Bytes guard;   // Options::guard
  Pool* default_pool = nullptr;
  std::int64_t requested_bytes = 0;  // without what blocks from caches were asked for (Caching)
  Bytes live_bytes;
  Bytes pending_bytes;
  Bytes peak_live;
  Bytes peak_allocated;
  std::uint64_t live_blocks = 0;
  Bytes freed_since_settled;  // since it was asked how far the streams are
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  Routes routes;  // innermost last
  std::array<std::uint64_t, kRungCount> rungs{};
  Streams streams;
  PhysicalMemory physical;
  std::vector<Region*> emptied_views;
  alignas(128) mutable RankedMutex mutex{LockRank::kDevice};
  alignas(128) AddressSpace space;
  Driver& driver;
  const DeviceInfo info;
  const Options options;
  const Tuning tuning;
  alignas(128) HeapContext context;
  std::map<PoolKey, Pool> pools;  // nodes never move
  std::uint64_t pools_set_aside = 0;
  alignas(128) AddressMap<Block> blocks;  // live blocks by address, kept ones too
  Caching caching;
  std::map<VirtAddr, Import> imports;            // other processes' memory
  std::vector<HandleId> refused_imports;         // that the driver would not take back yet
  std::vector<DeviceOrdinal> peers;              // that may use this device's memory
  std::map<VirtAddr, Pin> pins;                  // by first address; they never overlap
  std::vector<std::vector<StreamUse*>> waiting;  // pending uses by clock index, oldest first
  std::vector<StreamClock*> awaited;             // those with pending uses
  std::uint64_t fills = 0;
  std::uint64_t cuts = 0;
  std::uint64_t exact_handles = 0;     // made, smaller than usual
  std::vector<Block*> deferred_plain;  // plain backend: frees put off while a pool is being filled

  Bytes byte_limit;  // the two limits as they were last set; the lower holds
  double memory_fraction;
  std::uint64_t failures = 0;
  OomReport last_report;
  std::vector<PressureCallback> callbacks;
  // Threads inside a pressure callback: what they allocate there asks no callback again.
  std::vector<std::uint64_t> threads_in_callback;
};

}  // namespace nofrag
