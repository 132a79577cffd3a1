// The fast path: an allocation or a free that a cache of the calling thread serves, without the device's lock.
// Whatever else there is to be done is found out in a few branches, and left to the callers.

#include "base/prefetch.h"
#include "device/caching.h"
#include "device/device_impl.h"

namespace nofrag {
namespace {

constexpr Bytes kLargestCached = kGiB;
constexpr StreamId kLegacy{1};

// Two names for one stream.
StreamId one_name(StreamId stream) {
  return stream == kLegacy ? StreamId(0) : stream;
}

// What the address map knows of a pointer that is freed.
struct Seen {
  Block* block = nullptr;
  std::uint32_t size_class = 0;
  bool nobodys = false;  // it is kept already
};

// Of a block that is freed twice another thread may be taking leave right now: all is read together.
[[gnu::always_inline]] inline auto note_in(Seen& seen) {
  return [&seen](const Block& found, std::uint32_t found_class) {
    prefetch_to_write(&found);
    seen.size_class = found_class;
    seen.nobodys = found.kept.load(std::memory_order_acquire);
  };
}

// A kept block for the request, or null.
[[gnu::hot]] Block* take_from(KeptBlocks& kept, const Caching::Rules& rules, Bytes requested) {
  return requested.is_zero() || requested > kLargestCached
             ? nullptr
             : kept.take(round_up(requested, kBlockUnit),
                         rules.fit.load(std::memory_order_relaxed),
                         rules.epoch.load(std::memory_order_relaxed));
}

bool put_in(KeptBlocks& kept, const Caching::Rules& rules, Block& block, std::uint32_t size_class) {
  if (block.size <= rules.largest.load(std::memory_order_relaxed)) {
    return kept.put(&block, size_class, rules.most.load(std::memory_order_relaxed));
  }
  return block.size > KeptBlocks::kLargestBinned &&
         block.epoch == rules.epoch.load(std::memory_order_relaxed) &&
         kept.put_large(&block, rules.most_large.load(std::memory_order_relaxed));
}

// Inside the door: the free of a block that this thread may keep.
template <Told kTold>
bool keep_block(const Caching& caching,
                DeviceOrdinal device,
                ThreadCache& cache,
                const Seen& seen) {
  Block& block = *seen.block;
  EventSink* const listener = caching.listener_for<kTold>();
  const bool off = kTold == Told::kListener ? listener == nullptr : caching.closed<kTold>();
  KeptBlocks* kept = !block.keepable || off ? nullptr : cache.of(block.clock);
  if (kept == nullptr) {
    return false;
  }
  // The stamp comes before others can have the block, the event once it is known that it is kept.
  AllocatorEvent event;
  if constexpr (kTold == Told::kListener) {
    event = {EventKind::kFreeRequested, device, block.address, block.size, block.clock->stream};
    event.stamp = listener->stamp();
  }
  if (!put_in(*kept, caching.rules, block, seen.size_class)) {
    return false;
  }
  cache.note_kept(block);
  if constexpr (kTold == Told::kListener) {
    listener->on_event(event);
  }
  return true;
}

// Inside the door, which it leaves: whatever take_kept may meet.
template <Told kTold, typename Impl>
[[gnu::noinline, gnu::hot]] VirtAddr take_any(const Impl& s,
                                              ThreadCache& cache,
                                              Bytes requested,
                                              StreamId stream) {
  VirtAddr address;
  const Caching& caching = s.caching;
  // Asked inside: whoever switches caches off and empties them finds them empty from then on.
  EventSink* const listener = caching.listener_for<kTold>();
  const bool off = kTold == Told::kListener ? listener == nullptr : caching.closed<kTold>();
  KeptBlocks* kept = off ? nullptr : cache.of(one_name(stream));
  // A destroyed stream's handle may mean another stream now: whoever does not retire streams asks for checks.
  if (kept != nullptr && (!caching.rules.check_streams || kept->clock->identity == 0 ||
                          s.driver.stream_is(s.device, stream, kept->clock->identity))) {
    Block* block = take_from(*kept, caching.rules, requested);
    if (block != nullptr) {
      cache.note_taken(*block, requested);
      address = block->address;
      if constexpr (kTold == Told::kListener) {
        listener->on_event(
            {EventKind::kAlloc, s.device, address, block->size, stream, 0, 0, 0, requested});
      }
    }
  }
  cache.door.leave();
  return address;
}

// The same where it is known of which stream, for what is not on top of a bin.
[[gnu::noinline, gnu::hot]] VirtAddr take_further(ThreadCache& cache,
                                                  KeptBlocks& kept,
                                                  const Caching::Rules& rules,
                                                  Bytes requested) {
  VirtAddr address;
  Block* const block = kept.nothing() ? nullptr : take_from(kept, rules, requested);
  if (block != nullptr) {
    cache.note_taken(*block, requested);
    address = block->address;
  }
  cache.door.leave();
  return address;
}

// And of keep, for what finds no room there.
[[gnu::noinline, gnu::hot]] DeviceAllocator::Freed keep_further(ThreadCache& cache,
                                                                KeptBlocks& kept,
                                                                const Caching::Rules& rules,
                                                                Block& block,
                                                                std::uint32_t size_class) {
  const bool done = put_in(kept, rules, block, size_class);
  if (done) {
    cache.note_kept(block);
  }
  cache.door.leave();
  return done ? DeviceAllocator::Freed::kYes : DeviceAllocator::Freed::kAskTheHeap;
}

// As take_any, of keep.
template <Told kTold, typename Impl>
[[gnu::noinline, gnu::hot]] DeviceAllocator::Freed keep_any(const Impl& s,
                                                            ThreadCache& cache,
                                                            VirtAddr address) {
  DeviceAllocator::Freed freed = DeviceAllocator::Freed::kAskTheHeap;
  Seen seen;
  // Nobody's and no block, where the map changes all the time: the heap knows whose it is.
  const bool known = s.blocks.find_shared(address, &seen.block, note_in(seen));
  if (known && seen.block != nullptr) {
    if (seen.nobodys) {
      freed = DeviceAllocator::Freed::kNobodys;
    } else if (keep_block<kTold>(s.caching, s.device, cache, seen)) {
      freed = DeviceAllocator::Freed::kYes;
    }
  }
  cache.door.leave();
  return freed;
}

}  // namespace

// A kept block for the request, at once, or null. What most calls are is here, in one go and with no call but the
// first, so that nothing has to be saved for one; anything else is take_any's.
template <Told kTold>
VirtAddr DeviceAllocator::Impl::take_kept(Bytes requested, StreamId stream) {
  if (caching.closed<kTold>()) {
    return {};
  }
  const Caching::Rules& rules = caching.rules;
  ThreadCache* const cache = ThreadCache::mine(rules.allocator);
  if (cache == nullptr || !cache->door.enter()) [[unlikely]] {
    return {};
  }
  if constexpr (kTold == Told::kNobody) {
    KeptBlocks* const kept = cache->last_of(stream);
    if (kept != nullptr && !caching.closed<kTold>() &&
        (!rules.check_streams || kept->clock->identity == 0)) [[likely]] {
      const bool in_bins = requested.count() - 1 < KeptBlocks::kLargestBinned.count();  // and not 0
      Block* const block = !in_bins ? nullptr
                                    : kept->take_top(round_up(requested, kBlockUnit),
                                                     rules.fit.load(std::memory_order_relaxed));
      if (block == nullptr) [[unlikely]] {
        return take_further(*cache, *kept, rules, requested);
      }
      cache->note_binned_taken(*block, requested);
      const VirtAddr address = block->address;
      cache->door.leave();
      return address;
    }
  }
  return take_any<kTold>(*this, *cache, requested, stream);
}

template <Told kTold>
DeviceAllocator::Freed DeviceAllocator::Impl::keep(VirtAddr address) {
  if (caching.closed<kTold>()) {
    return Freed::kAskTheHeap;
  }
  const Caching::Rules& rules = caching.rules;
  ThreadCache* const cache = ThreadCache::mine(rules.allocator);
  if (cache == nullptr || !cache->door.enter()) [[unlikely]] {
    return Freed::kAskTheHeap;
  }
  if constexpr (kTold == Told::kNobody) {
    Seen seen;
    Block* const block = blocks.look_once(address, note_in(seen));
    if (block != nullptr && !seen.nobodys && block->keepable && !caching.closed<kTold>())
        [[likely]] {
      KeptBlocks* const kept = cache->last_of(block->clock);
      if (kept != nullptr) [[likely]] {
        // What fits a bin is never larger than kLargestBinned.
        if (block->size > rules.largest.load(std::memory_order_relaxed) ||
            !kept->put_on_top(block, seen.size_class, rules.most.load(std::memory_order_relaxed)))
            [[unlikely]] {
          return keep_further(*cache, *kept, rules, *block, seen.size_class);
        }
        cache->note_binned_kept(*block);
        cache->door.leave();
        return Freed::kYes;
      }
    }
  }
  return keep_any<kTold>(*this, *cache, address);
}

template VirtAddr DeviceAllocator::Impl::take_kept<Told::kListener>(Bytes, StreamId);
template DeviceAllocator::Freed DeviceAllocator::Impl::keep<Told::kListener>(VirtAddr);

VirtAddr DeviceAllocator::allocate_kept(Bytes size, StreamId stream) {
  return impl_->take_kept<Told::kNobody>(size, stream);
}

DeviceAllocator::Freed DeviceAllocator::free_kept(VirtAddr address) {
  return impl_->keep<Told::kNobody>(address);
}

Result<VirtAddr> DeviceAllocator::allocate(Bytes size, StreamId stream) {
  if (const VirtAddr kept = allocate_kept(size, stream); !kept.is_null()) {
    return kept;
  }
  return allocate_uncached(size, stream);
}

Result<VirtAddr> DeviceAllocator::allocate_uncached(Bytes size, StreamId stream) {
  if (!impl_->caching.closed<Told::kListener>()) [[unlikely]] {
    const VirtAddr kept = impl_->take_kept<Told::kListener>(size, stream);
    if (!kept.is_null()) {
      return kept;
    }
  }
  return allocate_routed(size, stream, nullptr, Shape::kAny);
}

}  // namespace nofrag
