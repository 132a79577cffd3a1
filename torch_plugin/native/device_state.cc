#include "torch_plugin/native/device_state.h"

#include <algorithm>
#include <utility>

#include "torch_plugin/native/abi/abi.h"

namespace nofrag::native {
namespace {

using c10::CachingDeviceAllocator::Stat;
using c10::CachingDeviceAllocator::StatArray;
using c10::CachingDeviceAllocator::StatType;

thread_local const Context* context_of_call = nullptr;
thread_local bool inside_tracker = false;

Stat& total(StatArray& stats) {
  return stats[static_cast<std::size_t>(StatType::AGGREGATE)];
}
Stat& of_pool(StatArray& stats, bool small) {
  return stats[static_cast<std::size_t>(small ? StatType::SMALL_POOL : StatType::LARGE_POOL)];
}

void change(StatArray& stats, bool small, std::size_t amount, bool more) {
  for (Stat* stat : {&total(stats), &of_pool(stats, small)}) {
    if (more) {
      stat->increase(amount);
    } else {
      stat->decrease(amount);
    }
  }
}

constexpr StatArray DeviceStats::*kArrays[] = {&DeviceStats::allocation,
                                               &DeviceStats::segment,
                                               &DeviceStats::active,
                                               &DeviceStats::inactive_split,
                                               &DeviceStats::allocated_bytes,
                                               &DeviceStats::reserved_bytes,
                                               &DeviceStats::active_bytes,
                                               &DeviceStats::inactive_split_bytes,
                                               &DeviceStats::requested_bytes};

TraceEvent event_of(TraceEntry::Action action, int device, const Block& block, Context context) {
  return {action,
          static_cast<c10::DeviceIndex>(device),
          reinterpret_cast<std::size_t>(block.address),
          block.requested,
          block.stream,
          block.pool,
          std::move(context)};
}

}  // namespace

ContextOfCall::ContextOfCall(const Context& context) : outer_(context_of_call) {
  context_of_call = &context;
}

ContextOfCall::~ContextOfCall() {
  context_of_call = outer_;
}

Context ContextOfCall::current() {
  return context_of_call != nullptr ? *context_of_call : nullptr;
}

Totals DeviceState::totals() const {
  return {static_cast<std::size_t>(stats_.allocated_bytes[0].current),
          static_cast<std::size_t>(stats_.reserved_bytes[0].current)};
}

Totals DeviceState::note_allocated(Block&& block) {
  const std::lock_guard lock(mutex_);
  if (restoring_ > 0 && live_.find(block.address) != nullptr) [[unlikely]] {
    remove(block.address, nullptr);  // restored away, and given out again before its record went
  }
  add(std::move(block));
  return totals();
}

void DeviceState::add(Block&& block) {
  // Its address was given out again: nothing is waited for there any more.
  if (!waiting_.empty()) {
    if (const auto earlier = waiting_.find(block.address); earlier != waiting_.end()) {
      finish(earlier->second.block, earlier->second.context);
      waiting_.erase(earlier);
    }
  }
  block.serial = ++last_serial_;
  change(stats_.allocation, block.small, 1, true);
  change(stats_.allocated_bytes, block.small, block.size, true);
  change(stats_.active, block.small, 1, true);
  change(stats_.active_bytes, block.small, block.size, true);
  change(stats_.requested_bytes, block.small, block.requested, true);
  if (history_.wants_events()) [[unlikely]] {
    write(event_of(TraceEntry::ALLOC, ordinal_, block, block.context));
  }
  live_.insert(std::move(block));
}

bool DeviceState::note_freed(const void* address, const Context& context, Freed* freed) {
  const std::lock_guard lock(mutex_);
  if (live_.find(address) == nullptr) {
    return false;
  }
  freed->block = remove(address, context);
  freed->totals = totals();
  return true;
}

// pre: a live block starts there.
Block DeviceState::remove(const void* address, const Context& context) {
  Block block = live_.take(address);
  change(stats_.allocation, block.small, 1, false);
  change(stats_.allocated_bytes, block.small, block.size, false);
  if (history_.wants_events()) [[unlikely]] {
    write(event_of(
        TraceEntry::FREE_REQUESTED, ordinal_, block, context != nullptr ? context : block.context));
  }
  if (block.shared_streams) {
    waiting_[address] = {block, false, context};
  } else {
    finish(block, context);
  }
  return block;
}

void DeviceState::change_restoring(int difference) {
  const std::lock_guard lock(mutex_);
  restoring_ += difference;
}

void DeviceState::note_restored(const std::vector<Block>& gone,
                                std::vector<Block> made,
                                const Context& context) {
  const std::lock_guard lock(mutex_);
  for (const Block& block : gone) {
    const Block* known = live_.find(block.address);
    if (known != nullptr && known->serial == block.serial) {
      remove(block.address, context);
    }
  }
  for (Block& block : made) {
    add(std::move(block));
  }
}

// The bytes may serve others.
void DeviceState::finish(const Block& block, const Context& context) {
  change(stats_.active, block.small, 1, false);
  change(stats_.active_bytes, block.small, block.size, false);
  change(stats_.requested_bytes, block.small, block.requested, false);
  large_reserved_peak_ =
      std::max(large_reserved_peak_, static_cast<std::int64_t>(large_reserved()));
  if (history_.wants_events()) [[unlikely]] {
    write(event_of(
        TraceEntry::FREE_COMPLETED, ordinal_, block, context != nullptr ? context : block.context));
  }
}

void DeviceState::settle_free(const Block& block) {
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(block.address);
  if (found != waiting_.end() && found->second.block.serial == block.serial &&
      !found->second.deferred) {
    finish(found->second.block, found->second.context);
    waiting_.erase(found);
  }
}

void DeviceState::complete_free(const void* address, std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(address);
  if (found != waiting_.end() && found->second.block.serial == serial) {
    finish(found->second.block, found->second.context);
    waiting_.erase(found);
  }
}

void DeviceState::on_memory_event(const nofrag_memory_event& event) {
  const std::lock_guard lock(mutex_);
  set_reserved(event.reserved_bytes);
  switch (event.kind) {
    case NOFRAG_MEMORY_CREATED:
      ++stats_.num_device_alloc;
      change(stats_.segment, false, 1, true);
      break;
    case NOFRAG_MEMORY_RELEASED:
      ++stats_.num_device_free;
      change(stats_.segment, false, 1, false);
      break;
    case NOFRAG_MEMORY_MAPPED:
    case NOFRAG_MEMORY_UNMAPPED:
      note_mapping(event, event.kind == NOFRAG_MEMORY_MAPPED);
      break;
    case NOFRAG_FREE_DEFERRED:
      if (const auto found = waiting_.find(event.address); found != waiting_.end()) {
        found->second.deferred = true;
      }
      break;
    case NOFRAG_FREE_COMPLETED:
      if (const auto found = waiting_.find(event.address);
          found != waiting_.end() && found->second.deferred) {
        finish(found->second.block, found->second.context);
        waiting_.erase(found);
      }
      break;
    default:
      break;
  }
}

// Physical memory is one segment, at the address where it was mapped first, until nothing maps it. Trackers,
// which register memory by its address, are told of every mapping beside.
void DeviceState::note_mapping(const nofrag_memory_event& event, bool made) {
  const auto address = reinterpret_cast<std::size_t>(event.address);
  const Context context = ContextOfCall::current();
  if (made) {
    mapped_[address] = {event.size, context};
  } else {
    mapped_.erase(address);
  }
  Segment told{address, event.size};
  if (event.only != 0 && made) {
    segments_[event.allocation] = told;
  } else if (event.only != 0) {
    if (const auto found = segments_.find(event.allocation); found != segments_.end()) {
      told = found->second;
      segments_.erase(found);
    }
  }
  if (!history_.wants_events()) [[likely]] {
    return;
  }
  TraceEvent entry{TraceEntry::SEGMENT_ALLOC,
                   static_cast<c10::DeviceIndex>(ordinal_),
                   address,
                   event.size,
                   nullptr,
                   {0, 0},
                   context};
  if (event.only == 0 || told.address != address) {
    entry.action = made ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_UNMAP;
    write_to(entry, false);
  }
  if (event.only != 0) {
    entry.action = made ? TraceEntry::SEGMENT_ALLOC : TraceEntry::SEGMENT_FREE;
    entry.address = told.address;
    write_to(std::move(entry), true);
  }
}

void DeviceState::note_segment(
    const void* address, std::size_t size, bool small, bool made, PoolId pool) {
  const std::lock_guard lock(mutex_);
  change(stats_.segment, small, 1, made);
  // Their bytes are all of one pool, unlike nofrag's.
  change(stats_.reserved_bytes, false, size, made);
  ++(made ? stats_.num_device_alloc : stats_.num_device_free);
  large_reserved_peak_ =
      std::max(large_reserved_peak_, static_cast<std::int64_t>(large_reserved()));
  if (history_.wants_events()) {
    write({made ? TraceEntry::SEGMENT_ALLOC : TraceEntry::SEGMENT_FREE,
           static_cast<c10::DeviceIndex>(ordinal_),
           reinterpret_cast<std::size_t>(address),
           size,
           nullptr,
           pool,
           ContextOfCall::current()});
  }
}

void DeviceState::set_reserved(std::size_t reserved) {
  if (reserved > nofrag_reserved_) {
    change(stats_.reserved_bytes, false, reserved - nofrag_reserved_, true);
  } else if (reserved < nofrag_reserved_) {
    change(stats_.reserved_bytes, false, nofrag_reserved_ - reserved, false);
  }
  nofrag_reserved_ = reserved;
  large_reserved_peak_ =
      std::max(large_reserved_peak_, static_cast<std::int64_t>(large_reserved()));
}

// nofrag has no small and large segments. The bytes of small blocks count as the small pool's, all the rest
// as the large one's; the snapshot cuts its segments in the same way.
std::int64_t DeviceState::small_reserved() const {
  return stats_.active_bytes[static_cast<std::size_t>(StatType::SMALL_POOL)].current;
}

std::size_t DeviceState::large_reserved() const {
  return static_cast<std::size_t>(
      std::max(stats_.reserved_bytes[0].current - small_reserved(), std::int64_t{0}));
}

// The sums of all are what went to and from the driver; of these the small pool has what it grew or shrank by
// since the last reset, the large one the rest. Bytes that changed kind without the driver (after a reset only)
// were freed by one kind and allocated by the other, in the sums of all too.
void DeviceState::divide_reserved(DeviceStats& stats) const {
  StatArray& reserved = stats.reserved_bytes;
  Stat& all = total(reserved);
  Stat& small = of_pool(reserved, true);
  Stat& large = of_pool(reserved, false);
  const std::int64_t grown = small_reserved() - small_reserved_at_reset_;
  small = of_pool(stats.active_bytes, true);
  small.allocated = std::max(grown, std::int64_t{0});
  small.freed = std::max(-grown, std::int64_t{0});
  const std::int64_t changed_kind =
      std::max({small.allocated - all.allocated, small.freed - all.freed, std::int64_t{0}});
  all.allocated += changed_kind;
  all.freed += changed_kind;
  large.allocated = all.allocated - small.allocated;
  large.freed = all.freed - small.freed;
  large.current = static_cast<std::int64_t>(large_reserved());
  large.peak = std::max(large_reserved_peak_, large.current);
}

DeviceStats DeviceState::stats() {
  const std::lock_guard lock(mutex_);
  DeviceStats result = stats_;
  divide_reserved(result);
  result.max_split_size = max_split_size();
  return result;
}

void DeviceState::reset_accumulated() {
  const std::lock_guard lock(mutex_);
  for (StatArray DeviceStats::*array : kArrays) {
    for (Stat& stat : stats_.*array) {
      stat.reset_accumulated();
    }
  }
  small_reserved_at_reset_ = small_reserved();
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
  stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = 0;
  stats_.num_device_free = 0;
  stats_.oversize_allocations.reset_accumulated();
  stats_.oversize_segments.reset_accumulated();
}

void DeviceState::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (StatArray DeviceStats::*array : kArrays) {
    for (Stat& stat : stats_.*array) {
      stat.reset_peak();
    }
  }
  large_reserved_peak_ = static_cast<std::int64_t>(large_reserved());
  stats_.oversize_allocations.reset_peak();
  stats_.oversize_segments.reset_peak();
}

void DeviceState::note_oom(std::size_t requested,
                           cudaStream_t stream,
                           std::size_t free,
                           Context context) {
  const std::lock_guard lock(mutex_);
  // PyTorch counts the flush of its caches that comes before every failure.
  ++stats_.num_alloc_retries;
  ++stats_.num_ooms;
  if (history_.wants_events()) {
    write({TraceEntry::OOM,
           static_cast<c10::DeviceIndex>(ordinal_),
           free,
           requested,
           stream,
           {0, 0},
           std::move(context)});
  }
}

void DeviceState::note_sync() {
  const std::lock_guard lock(mutex_);
  ++stats_.num_sync_all_streams;
}

void DeviceState::record(TraceEvent event) {
  const std::lock_guard lock(mutex_);
  if (history_.wants_events()) {
    write(std::move(event));
  }
}

void DeviceState::write(TraceEvent event) {
  write_to(std::move(event), true);
}

void DeviceState::write_to(TraceEvent event, bool ring) {
  const TraceEntry::Action action = event.action;
  TraceEntry entry = history_.entry(std::move(event));
  if (history_.tracked()) {
    untold_.push_back(entry);
    ++noted_;
    if (inside_tracker) {
      noted_by_trackers_ = noted_;
    }
  }
  if (ring && history_.recording() && !history_.skips(action)) {
    ring_.add(std::move(entry));
  }
}

// Trackers are code of others: they register memory with a library that may allocate or free memory of its own,
// through this allocator or one that nofrag has hooked. Called under a lock they could come back for it and wait
// for themselves. So events are queued under the lock, where their order is known, and told after it. One thread
// tells at a time, for all; the others wait until their own events are known, because whoever is given memory
// may rely on what trackers do with it. (A tracker must not wait for a thread that allocates: it would have had to
// wait for the lock before. What happens in calls that are not PyTorch's is told at the end of the next that is.)
void DeviceState::tell_trackers() {
  std::unique_lock lock(mutex_);
  if (inside_tracker && telling_) {
    return;  // whoever tells, this thread further out or another one, comes to it
  }
  const std::uint64_t mine = noted_;
  telling_done_.wait(lock, [&] { return told_ >= mine || !telling_; });
  if (told_ >= mine) {
    return;
  }
  telling_ = true;
  const bool outer = std::exchange(inside_tracker, true);
  // Until what was there, and what trackers did meanwhile, is told. Others, who may go on for ever, tell their own:
  // one of those who wait takes over.
  while (told_ < std::max(mine, noted_by_trackers_)) {
    const std::vector<TraceEntry> entries = std::exchange(untold_, {});
    lock.unlock();
    for (const TraceEntry& entry : entries) {
      history_.tell_trackers(entry);
    }
    lock.lock();
    told_ += entries.size();
    telling_done_.notify_all();
  }
  inside_tracker = outer;
  telling_ = false;
  telling_done_.notify_all();
}

bool DeviceState::in_tracker() {
  return inside_tracker;
}

bool DeviceState::has_waiting() {
  const std::lock_guard lock(mutex_);
  return !waiting_.empty();
}

bool DeviceState::holds(const void* address) {
  const std::lock_guard lock(mutex_);
  return live_.find(address) != nullptr;
}

Context DeviceState::segment_context(std::size_t address) {
  const std::lock_guard lock(mutex_);
  const auto after = mapped_.upper_bound(address);
  if (after == mapped_.begin()) {
    return nullptr;
  }
  const auto& [begin, mapping] = *std::prev(after);
  return address < begin + mapping.size ? mapping.context : nullptr;
}

void DeviceState::set_history(const HistorySettings& settings) {
  const std::lock_guard lock(mutex_);
  ring_.set_most(settings.max_entries);
  if (!settings.enabled || settings.clear) {
    ring_.clear();
  }
}

std::vector<TraceEntry> DeviceState::trace() {
  const std::lock_guard lock(mutex_);
  return ring_.entries();
}

}  // namespace nofrag::native
