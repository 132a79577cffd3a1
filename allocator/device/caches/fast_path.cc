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

// Where the map changed under the first look. Nobody's and no block: it changes all the time.
[[gnu::noinline]] Seen look_again(const AddressMap<Block>& blocks, VirtAddr address) {
  Seen seen;
  return blocks.find_shared(address, &seen.block, note_in(seen)) ? seen : Seen{};
}

// Inside the door: the free of a block that this thread may keep.
template <Told kTold>
[[gnu::always_inline]] inline bool keep_block(const Caching& caching,
                                              DeviceOrdinal device,
                                              ThreadCache& cache,
                                              Block& block,
                                              std::uint32_t size_class) {
  EventSink* const listener = caching.listener_for<kTold>();
  const bool off = kTold == Told::kListener ? listener == nullptr : caching.closed<kTold>();
  if (!block.keepable || off) {
    return false;
  }
  KeptBlocks* kept = cache.of(block.clock);
  if (kept == nullptr) {
    return false;
  }
  // The stamp comes before others can have the block, the event once it is known that it is kept.
  AllocatorEvent event;
  if constexpr (kTold == Told::kListener) {
    event = {EventKind::kFreeRequested, device, block.address, block.size, block.clock->stream};
    event.stamp = listener->stamp();
  }
  const Caching::Rules& rules = caching.rules;
  bool done = false;
  if (block.size <= rules.largest.load(std::memory_order_relaxed)) [[likely]] {
    done = kept->put(&block, size_class, rules.most.load(std::memory_order_relaxed));
  } else if (block.size > KeptBlocks::kLargestBinned) {
    done = block.epoch == rules.epoch.load(std::memory_order_relaxed) &&
           kept->put_large(&block, rules.most_large.load(std::memory_order_relaxed));
  }
  if (done) [[likely]] {
    cache.note_kept(block);
    if constexpr (kTold == Told::kListener) {
      listener->on_event(event);
    }
  }
  return done;
}

}  // namespace

// A kept block for the request, at once, or null.
template <Told kTold>
VirtAddr DeviceAllocator::Impl::take_kept(Bytes requested, StreamId stream) {
  if (caching.closed<kTold>() || requested.is_zero() || requested > kLargestCached) {
    return {};
  }
  const Caching::Rules& rules = caching.rules;
  ThreadCache* cache = ThreadCache::mine(rules.allocator);
  if (cache == nullptr || !cache->door.enter()) [[unlikely]] {
    return {};
  }
  Block* block = nullptr;
  // Asked again inside: whoever switches caches off and empties them finds them empty from then on.
  EventSink* const listener = caching.listener_for<kTold>();
  const bool off = kTold == Told::kListener ? listener == nullptr : caching.closed<kTold>();
  KeptBlocks* kept = off ? nullptr : cache->of(one_name(stream));
  // A destroyed stream's handle may mean another stream now: whoever does not retire streams asks for checks.
  if (kept != nullptr && (!options.check_streams || kept->clock->identity == 0 ||
                          driver.stream_is(device, stream, kept->clock->identity))) [[likely]] {
    block = kept->take(round_up(requested, kBlockUnit),
                       rules.fit.load(std::memory_order_relaxed),
                       rules.epoch.load(std::memory_order_relaxed));
  }
  VirtAddr address;
  if (block != nullptr) [[likely]] {
    cache->note_taken(*block, requested);
    address = block->address;
    if constexpr (kTold == Told::kListener) {
      listener->on_event(
          {EventKind::kAlloc, device, address, block->size, stream, 0, 0, 0, requested});
    }
  }
  cache->door.leave();
  return address;
}

template <Told kTold>
DeviceAllocator::Freed DeviceAllocator::Impl::keep(VirtAddr address) {
  if (caching.closed<kTold>()) {
    return Freed::kAskTheHeap;
  }
  ThreadCache* cache = ThreadCache::mine(caching.rules.allocator);
  if (cache == nullptr || !cache->door.enter()) [[unlikely]] {
    return Freed::kAskTheHeap;
  }
  Freed freed = Freed::kAskTheHeap;
  Seen seen;
  if (!blocks.look(address, &seen.block, note_in(seen))) [[unlikely]] {
    seen = look_again(blocks, address);
  }
  if (seen.block == nullptr) [[unlikely]] {
    // Whose it is the heap knows.
  } else if (seen.nobodys) [[unlikely]] {
    freed = Freed::kNobodys;
  } else if (keep_block<kTold>(caching, device, *cache, *seen.block, seen.size_class)) [[likely]] {
    freed = Freed::kYes;
  }
  cache->door.leave();
  return freed;
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
