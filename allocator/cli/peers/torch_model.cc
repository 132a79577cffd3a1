#include "cli/peers/torch_model.h"

#include <algorithm>

#include "base/checks.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kMinBlock = 512;
constexpr std::uint64_t kSmallLimit = std::uint64_t{1} << 20;  // larger requests: large pool
constexpr std::uint64_t kFallbackGranule = std::uint64_t{2} << 20;

}  // namespace

TorchModel::TorchModel(const PeerConfig& config)
    : config_(config),
      granule_(config.info.granularity.is_zero() ? kFallbackGranule
                                                 : config.info.granularity.count()),
      live_(config.blocks, kNone) {}

TorchModel::~TorchModel() {
  for (auto& [stream, queue] : pending_) {
    for (const Pending& pending : queue) {
      config_.driver->event_destroy(config_.device, pending.event).ignore();
    }
  }
}

TorchModel::Index TorchModel::make_block(const Block& block) {
  if (unused_blocks_.empty()) {
    blocks_.push_back(block);
    return static_cast<Index>(blocks_.size() - 1);
  }
  const Index index = unused_blocks_.back();
  unused_blocks_.pop_back();
  blocks_[index] = block;
  return index;
}

void TorchModel::drop_block(Index index) {
  unused_blocks_.push_back(index);
}

void TorchModel::insert_free(Index index) {
  const Block& block = blocks_[index];
  Arena& arena = arenas_[block.arena];
  if (block.state == State::kUnmapped) {
    arena.unmapped.insert({block.address, index});
  } else {
    arena.free.insert({block.size, block.address, index});
  }
}

void TorchModel::erase_free(Index index) {
  const Block& block = blocks_[index];
  Arena& arena = arenas_[block.arena];
  if (block.state == State::kUnmapped) {
    arena.unmapped.erase({block.address, index});
  } else {
    arena.free.erase({block.size, block.address, index});
  }
}

TorchModel::Index TorchModel::cut(Index index, std::uint64_t size) {
  Block rest = blocks_[index];
  NOFRAG_ASSERT(size < rest.size, "a cut must leave something");
  rest.address += size;
  rest.size -= size;
  rest.previous = index;
  const Index made = make_block(rest);
  if (rest.next != kNone) {
    blocks_[rest.next].previous = made;
  }
  blocks_[index].size = size;
  blocks_[index].next = made;
  return made;
}

TorchModel::Index TorchModel::join_neighbours(Index index) {
  const Index next = blocks_[index].next;
  if (next != kNone && blocks_[next].state == blocks_[index].state) {
    erase_free(next);
    blocks_[index].size += blocks_[next].size;
    blocks_[index].next = blocks_[next].next;
    if (blocks_[index].next != kNone) {
      blocks_[blocks_[index].next].previous = index;
    }
    drop_block(next);
  }
  const Index previous = blocks_[index].previous;
  if (previous != kNone && blocks_[previous].state == blocks_[index].state) {
    erase_free(previous);
    blocks_[previous].size += blocks_[index].size;
    blocks_[previous].next = blocks_[index].next;
    if (blocks_[previous].next != kNone) {
      blocks_[blocks_[previous].next].previous = previous;
    }
    drop_block(index);
    return previous;
  }
  return index;
}

void TorchModel::add_reserved(std::uint64_t bytes) {
  reserved_ += bytes;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
}

bool TorchModel::over_limit(std::uint64_t more) const {
  return reserved_ > config_.limit.count() || more > config_.limit.count() - reserved_;
}

TorchModel::Index TorchModel::arena_for(StreamId stream, bool small) {
  if (last_arena_ == kNone || stream != last_stream_) {
    const auto [at, is_new] =
        arena_of_stream_.try_emplace(stream, static_cast<Index>(arenas_.size()));
    if (is_new) {
      for (const bool is_small : {true, false}) {
        arenas_.push_back(
            {stream, is_small, FreeSet(&memory_), std::pmr::set<AddressKey>(&memory_)});
      }
    }
    last_stream_ = stream;
    last_arena_ = at->second;
  }
  return last_arena_ + (small ? 0 : 1);
}

Status TorchModel::allocate(std::uint32_t block, Bytes size, StreamId stream) {
  const std::uint64_t rounded = round_up(size, Bytes(kMinBlock)).count();
  poll_pending();
  const Index arena = arena_for(stream, rounded <= kSmallLimit);
  Index found = find_free(arenas_[arena], rounded);
  if (found == kNone) {
    Result<Index> grown = grow(arena, rounded);
    if (!grown.ok()) {
      wait_for_pending();
      release_cached();
      grown = grow(arena, rounded);
    }
    if (!grown.ok()) {
      return grown.error();
    }
    found = grown.value();
  }
  take(found, rounded);
  live_[block] = found;
  return {};
}

void TorchModel::take(Index index, std::uint64_t size) {
  erase_free(index);
  const std::uint64_t remainder = blocks_[index].size - size;
  if (splits(arenas_[blocks_[index].arena], remainder)) {
    insert_free(cut(index, size));
  }
  blocks_[index].state = State::kUsed;
}

Status TorchModel::free(std::uint32_t block, StreamId stream) {
  const Index index = live_[block];
  NOFRAG_CHECK(index != kNone, "free of a block that is not live");
  live_[block] = kNone;
  if (stream != arenas_[blocks_[index].arena].stream) {
    return free_later(index, stream);
  }
  release_block(index);
  return {};
}

void TorchModel::release_block(Index index) {
  blocks_[index].state = State::kFree;
  insert_free(join_neighbours(index));
}

// A block that another stream used last is free only when that stream's work is done; this is
// noticed by polling at a later allocation, oldest first for each stream.
Status TorchModel::free_later(Index index, StreamId stream) {
  const Result<EventId> event = config_.driver->event_create(config_.device);
  if (!event.ok()) {
    return event.error();
  }
  const Status recorded = config_.driver->event_record(config_.device, event.value(), stream);
  pending_[stream].push_back({event.value(), index});
  ++pending_count_;
  return recorded;
}

void TorchModel::poll_pending() {
  if (pending_count_ == 0) {
    return;
  }
  for (auto& [stream, queue] : pending_) {
    while (!queue.empty() &&
           config_.driver->event_query(config_.device, queue.front().event).ok()) {
      config_.driver->event_destroy(config_.device, queue.front().event).ignore();
      release_block(queue.front().block);
      queue.pop_front();
      --pending_count_;
    }
  }
}

void TorchModel::wait_for_pending() {
  for (auto& [stream, queue] : pending_) {
    for (const Pending& pending : queue) {
      config_.driver->event_synchronize(config_.device, pending.event).ignore();
      config_.driver->event_destroy(config_.device, pending.event).ignore();
      release_block(pending.block);
    }
    queue.clear();
  }
  pending_count_ = 0;
}

Bytes TorchModel::free_granules() const {
  Bytes sum;
  const Bytes granule(granule_);
  for (const Arena& arena : arenas_) {
    for (const FreeKey& key : arena.free) {
      const Bytes first = round_up(Bytes(key.address), granule);
      const Bytes last = round_down(Bytes(key.address + key.size), granule);
      sum += last > first ? last - first : Bytes(0);
    }
  }
  return sum;
}

}  // namespace nofrag
