#include "world.h"

namespace nofrag::model {
namespace {

SimulatedDeviceSpec spec_of(const Config& config) {
  SimulatedDeviceSpec spec;
  spec.info.total_memory = config.memory;
  spec.info.granularity = config.virtual_memory ? config.granularity : Bytes(0);
  spec.info.virtual_memory = config.virtual_memory;
  return spec;
}

constexpr DeviceOrdinal kDevice(0);

}  // namespace

World::World(const Config& config)
    : config_(config),
      driver_(spec_of(config)),
      pools_(config.pools),
      generations_(config.streams) {
  driver_.set_completion(config.completion);
  driver_.set_stream_lag_us(config.lag_us);
  Options options;
  options.handle_size = config.handle_size;
  options.reserve_slack = config.reserve_slack;
  options.limit = config.limit;
  options.policy = config.policy;
  options.max_aliases = config.max_aliases;
  options.thread_caches = config.thread_caches;
  options.check_streams = config.check_streams;
  auto made = DeviceAllocator::create(counting_, kDevice, options);
  NOFRAG_CHECK(made.ok(), "the allocator could not be made");
  allocator_ = std::move(made.value());
}

World::~World() = default;

void World::fail(std::string what) {
  if (failure_.empty()) {
    failure_ = std::move(what);
    if (driver_.violation_count() != 0) {
      failure_ += "; " + driver_.violations().front();
    }
  }
}

void World::expect(bool condition, const char* what) {
  if (!condition) {
    fail(what);
  }
}

bool World::capturing(std::uint64_t stream) const {
  for (const ModelPool& pool : pools_) {
    if (pool.state == PoolState::kCapturing && pool.stream == stream) {
      return true;
    }
  }
  return false;
}

// ---- blocks

void World::allocate(std::uint64_t size,
                     std::uint64_t stream,
                     const ModelPool* pool,
                     PoolKey pool_key) {
  const Result<VirtAddr> address =
      pool == nullptr ? allocator_->allocate(Bytes(size), stream_id(stream))
                      : allocator_->allocate_in_pool(Bytes(size), stream_id(stream), pool_key);
  take_block(address, size, stream);
}

void World::take_block(const Result<VirtAddr>& address, std::uint64_t size, std::uint64_t stream) {
  if (!address.ok()) {
    ++refused_;
    return;
  }
  ++served_;
  ModelPool* graph = nullptr;
  for (ModelPool& candidate : pools_) {
    if (candidate.state == PoolState::kCapturing && candidate.stream == stream) {
      graph = &candidate;
    }
  }
  note_allocated(address.value(), size, stream, graph);
}

void World::note_allocated(VirtAddr address,
                           std::uint64_t size,
                           std::uint64_t stream,
                           ModelPool* graph) {
  const Bytes least = round_up(Bytes(size), Bytes(512));
  const Result<BlockInfo> found = allocator_->find(address + Bytes(least.count() / 2));
  // A block that a thread kept may be an eighth larger.
  const Bytes rounded = found.ok() ? found.value().size : least;
  expect(
      rounded >= least && rounded <= least + Bytes(config_.thread_caches ? least.count() / 8 : 0),
      "a block has another size than was asked for");
  const std::uint64_t begin = address.value();
  const std::uint64_t end = begin + rounded.count();
  expect(begin % 512 == 0, "a block is not aligned to 512 bytes");
  const auto after = extents_.lower_bound(begin);
  expect(after == extents_.end() || after->first >= end, "two live blocks overlap");
  expect(after == extents_.begin() || std::prev(after)->second <= begin, "two live blocks overlap");
  expect(found.ok() && found.value().address == address && found.value().requested == Bytes(size) &&
             found.value().stream == stream_id(stream),
         "find() does not describe the block just made");
  extents_.emplace(begin, end);
  Live block{address, rounded, stream, next_tag_++, false, graph != nullptr};
  requested_[block.tag] = size;
  live_bytes_ += rounded;
  requested_bytes_ += Bytes(size);
  expect(driver_.write(stream_id(stream), address, rounded, block.tag).ok(),
         "the block's first kernel meets memory that is not its own");
  if (graph != nullptr) {
    graph->nodes.push_back({address, rounded, block.tag});
  } else {
    block.written = true;
  }
  block.generation = generations_[stream];
  live_.push_back(block);
}

void World::check_canary(const Live& block) {
  if (block.written) {
    expect(driver_.check_contents(block.address, block.size, block.tag).ok(),
           "a live block's bytes were overwritten");
  }
}

void World::free_block(std::size_t index) {
  const Live block = live_[index];
  check_canary(block);
  expect(allocator_->free(block.address).ok(), "free of a live block failed");
  extents_.erase(block.address.value());
  live_bytes_ -= block.size;
  requested_bytes_ -= Bytes(requested_[block.tag]);
  requested_.erase(block.tag);
  live_[index] = live_.back();
  live_.pop_back();
  if (block.tag % 16 == 0) {
    expect(allocator_->free(block.address).code() == Errc::kUnknownPointer,
           "a double free was accepted");
  }
}

// What a careful program does: orders the other stream behind the block's own, uses the block there
// and says so.
void World::record_stream(Live& block, std::uint64_t stream) {
  if (block.in_graph || gone(block) || capturing(stream) || capturing(block.stream)) {
    return;
  }
  if (stream != block.stream) {
    const Result<EventId> event = driver_.event_create(kDevice);
    if (!event.ok()) {
      return;
    }
    const bool ordered =
        driver_.event_record(kDevice, event.value(), stream_id(block.stream)).ok() &&
        driver_.stream_wait(kDevice, stream_id(stream), event.value()).ok();
    if (!driver_.event_destroy(kDevice, event.value()).ok()) {
      own_events_.push_back(event.value());
    }
    if (!ordered) {
      return;
    }
  }
  expect(allocator_->record_stream(block.address, stream_id(stream)).ok(), "record_stream failed");
  expect(driver_.launch(stream_id(stream), block.address, block.size, block.tag).ok(),
         "a recorded stream's kernel meets memory that is not its own");
}

void World::pin(const Live& block, std::uint64_t where) {
  const Bytes inside(where % block.size.count());
  expect(allocator_->pin(block.address + inside).ok(), "pin of a live block failed");
  if (config_.virtual_memory) {
    pinned_.push_back({block.address, block.size, inside});
  }
}

void World::unpin(std::size_t index) {
  const Pinned pinned = pinned_[index];
  expect(allocator_->unpin(pinned.address + pinned.inside).ok(), "unpin of a pin failed");
  pinned_.erase(pinned_.begin() + static_cast<std::ptrdiff_t>(index));
}

// ---- pools and graphs

// A pool is filled by one stream or another, and again: warmed up and then captured into, captured into twice, or
// filled after its graphs are done for good, as whoever fills it must see to (nofrag.h).
void World::begin_pool(std::uint64_t number, std::uint64_t stream, bool capture) {
  ModelPool& pool = pools_[number];
  const bool fresh = pool.state == PoolState::kNone;
  if ((!fresh && pool.state != PoolState::kIdle) || capturing(stream)) {
    return;
  }
  if (!fresh && pool.graph && !capture && !end_graphs(pool)) {
    return;
  }
  const StreamId id = stream_id(stream);
  expect(
      allocator_->begin_allocate_to_pool(key(number), [id](StreamId asked) { return asked == id; })
          .ok(),
      "begin_allocate_to_pool failed");
  ++pool.uses;
  pool.stream = stream;
  pool.state = capture ? PoolState::kCapturing : PoolState::kFilling;
  pool.graph = pool.graph || capture;
  if (capture) {
    driver_.begin_capture(id);
  }
}

void World::end_pool(std::uint64_t number) {
  ModelPool& pool = pools_[number];
  if (pool.state == PoolState::kCapturing) {
    expect(driver_.end_capture(stream_id(pool.stream)), "the allocator invalidated a capture");
  }
  expect(allocator_->end_allocate_to_pool(key(number)).ok(), "end_allocate_to_pool failed");
  pool.state = PoolState::kIdle;
}

// Waits for the pool's graphs, which are launched no more. False if a capture or a fault forbids the wait.
bool World::end_graphs(ModelPool& pool) {
  const bool capture = std::any_of(pools_.begin(), pools_.end(), [](const ModelPool& other) {
    return other.state == PoolState::kCapturing;
  });
  if (capture || (pool.replay_stream != 0 &&
                  !driver_.stream_synchronize(kDevice, stream_id(pool.replay_stream)).ok())) {
    return false;
  }
  pool.nodes.clear();
  return true;
}

// The graph runs on one stream all its life; it may write blocks that were freed since.
void World::replay(ModelPool& pool) {
  if (capturing(pool.replay_stream)) {
    return;
  }
  for (const Node& node : pool.nodes) {
    expect(driver_.write(stream_id(pool.replay_stream), node.address, node.size, node.tag).ok(),
           "a graph replay meets memory that is not its own");
  }
  for (Live& block : live_) {
    for (const Node& node : pool.nodes) {
      block.written = block.written || node.tag == block.tag;
    }
  }
}

void World::release_pool(std::uint64_t number) {
  for (; pools_[number].uses > 0; --pools_[number].uses) {
    expect(allocator_->release_pool(key(number)).ok(), "release_pool failed");
  }
  pools_[number] = ModelPool{};
}

void World::pool_instruction(const Instruction& instruction) {
  const std::uint64_t number = instruction.a % pools_.size();
  ModelPool& pool = pools_[number];
  // Mostly the stream that filled it before.
  const bool again = pool.state == PoolState::kIdle && instruction.b / config_.streams % 4 != 0;
  const std::uint64_t stream = again ? pool.stream : instruction.b % config_.streams;
  switch (instruction.op) {
    case Op::kBeginPool:
      begin_pool(number, stream, false);
      break;
    case Op::kBeginCapture:
      begin_pool(number, stream, true);
      break;
    case Op::kEndPool:
    case Op::kEndCapture:
      if (pool.state ==
          (instruction.op == Op::kEndPool ? PoolState::kFilling : PoolState::kCapturing)) {
        end_pool(number);
      }
      break;
    case Op::kReplay:
      if (pool.state == PoolState::kIdle && pool.graph) {
        pool.replay_stream =
            pool.replay_stream == 0 ? config_.streams + number : pool.replay_stream;
        replay(pool);
      }
      break;
    default:
      if (pool.state == PoolState::kIdle) {
        release_pool(number);
      }
      break;
  }
}

// ---- everything else

void World::environment_instruction(const Instruction& instruction) {
  const std::uint64_t stream = instruction.a % config_.streams;
  switch (instruction.op) {
    case Op::kAdvance:
      driver_.advance_us(static_cast<double>(instruction.size));
      break;
    case Op::kComplete:
      driver_.complete_stream(stream_id(instruction.a % (config_.streams + pools_.size())));
      break;
    case Op::kCompleteAll:
      driver_.complete_all();
      break;
    case Op::kTrim:
      allocator_->trim(Bytes(instruction.size));
      break;
    case Op::kSetLimit:
      allocator_->set_limit(instruction.size == 0 ? config_.limit : Bytes(instruction.size));
      break;
    case Op::kRetireStream:
      // The next stream gets the same handle at once, while the old one's work still runs. Every
      // other program forgets to tell the allocator, if it may.
      if (!capturing(stream)) {
        if (instruction.b % 2 == 0 || !config_.check_streams) {
          allocator_->retire_stream(stream_id(stream)).ignore();  // a fault may refuse it
        }
        driver_.destroy_stream(stream_id(stream));
        ++generations_[stream];
      }
      break;
    case Op::kPhysical:
      driver_.set_physical_memory(kDevice,
                                  instruction.size == 0 ? config_.memory : Bytes(instruction.size));
      break;
    case Op::kOthers:
      driver_.set_memory_of_others(kDevice, Bytes(instruction.size));
      break;
    default:
      driver_.fail_call(static_cast<DriverCall>(instruction.a % kDriverCallCount),
                        1 + instruction.b % 8,
                        instruction.size == 0 ? Errc::kOutOfMemory : Errc::kDriverFailure);
      break;
  }
}

void World::run(const Instruction& instruction) {
  if (!ok()) {
    return;
  }
  const std::uint64_t stream = instruction.a % config_.streams;
  const bool needs_block = instruction.op == Op::kFree || instruction.op == Op::kRecordStream ||
                           instruction.op == Op::kLaunch || instruction.op == Op::kCheckCanary ||
                           instruction.op == Op::kPin;
  if (needs_block && live_.empty()) {
    return;
  }
  const std::size_t index = needs_block ? instruction.a % live_.size() : 0;
  switch (instruction.op) {
    case Op::kAlloc:
      allocate(instruction.size, stream, nullptr, {});
      break;
    case Op::kAllocInPool: {
      const ModelPool& pool = pools_[instruction.b % pools_.size()];
      // A pool that a graph was captured in takes eager blocks only at the program's own risk.
      if (pool.state != PoolState::kNone && !pool.graph && !capturing(stream)) {
        allocate(instruction.size, stream, &pool, key(instruction.b % pools_.size()));
      }
      break;
    }
    case Op::kAllocSingle:
      take_block(allocator_->allocate_single(Bytes(instruction.size), stream_id(stream)),
                 instruction.size,
                 stream);
      break;
    case Op::kPin:
      pin(live_[index], instruction.b);
      break;
    case Op::kUnpin:
      if (!pinned_.empty()) {
        unpin(instruction.a % pinned_.size());
      }
      break;
    case Op::kFree:
      free_block(index);
      break;
    case Op::kRecordStream:
      record_stream(live_[index], instruction.b % config_.streams);
      break;
    case Op::kLaunch: {
      const Live& block = live_[index];
      if (!block.in_graph && !gone(block) && !capturing(block.stream)) {
        expect(driver_.launch(stream_id(block.stream), block.address, block.size, block.tag).ok(),
               "a block's kernel meets memory that is not its own");
      }
      break;
    }
    case Op::kCheckCanary:
      check_canary(live_[index]);
      break;
    case Op::kBeginPool:
    case Op::kEndPool:
    case Op::kBeginCapture:
    case Op::kEndCapture:
    case Op::kReplay:
    case Op::kReleasePool:
      pool_instruction(instruction);
      break;
    case Op::kCheckAll:
      check_all();
      break;
    default:
      environment_instruction(instruction);
      break;
  }
  check_stats();
}

void World::check_stats() {
  const DeviceStats s = allocator_->stats();
  expect(s.live == live_bytes_ && s.requested == requested_bytes_ && s.live_blocks == live_.size(),
         "live bytes differ from the model");
  expect(s.allocated == s.live + s.pending, "allocated != live + pending");
  expect(s.allocated <= s.mapped_in_use && s.mapped_in_use <= s.reserved, "identities broken");
  expect(s.allocations == served_ && s.allocations - s.frees == live_.size(), "counts differ");
  expect(s.failed_allocations == refused_, "failed allocations differ");
  if (config_.virtual_memory) {
    expect(s.reserved == driver_.physical_in_use(kDevice), "reserved is not what the driver lent");
    expect(s.mapped_in_use + s.free_handles == s.reserved, "handles are neither used nor free");
    expect(s.kept.is_zero() || config_.thread_caches, "threads keep blocks though they should not");
  }
  expect(s.peak_reserved >= s.reserved && s.peak_live >= s.live, "a peak below its value");
  if (driver_.violation_count() != 0) {
    fail("the driver reports a violation");
  }
}

void World::check_all() {
  allocator_->check();
  driver_.check();
  for (const Live& block : live_) {
    check_canary(block);
  }
  // A mapping that the driver would not undo counts beside.
  expect(
      config_.faults || counts().most_mappings <= static_cast<std::uint64_t>(config_.max_aliases),
      "a handle at more addresses than allowed");
}

void World::finish(bool all_returns) {
  if (!ok()) {
    return;
  }
  driver_.clear_faults();
  for (const EventId event : own_events_) {
    driver_.event_destroy(kDevice, event).ignore();
  }
  check_all();
  for (std::uint64_t number = 0; number < pools_.size(); ++number) {
    if (pools_[number].state == PoolState::kFilling ||
        pools_[number].state == PoolState::kCapturing) {
      end_pool(number);
    }
    if (pools_[number].state == PoolState::kIdle) {
      release_pool(number);
    }
  }
  while (pinned_.size() > next_tag_ % 2 * 3 && ok()) {
    unpin(0);  // now and then some are left to the destructor
  }
  // Half by hand, the rest by the destructor.
  while (live_.size() > extents_.size() / 2 + 1 && ok()) {
    free_block(live_.size() / 2);
    if (live_.size() % 16 == 0) {
      check_stats();
    }
  }
  while (!live_.empty() && next_tag_ % 2 == 0 && ok()) {
    free_block(0);
  }
  if (live_.empty() && pinned_.empty() && ok()) {
    allocator_->trim();
    expect(!all_returns || allocator_->stats().reserved.is_zero(),
           "trim of an empty allocator leaves memory");
    expect(!all_returns || allocator_->stats().pools == 1, "released pools stay");
  }
  allocator_.reset();
  const SimulatedLeaks leaks = driver_.leaks();
  expect(leaks.none(), "something leaked");
  if (driver_.violation_count() != 0) {
    fail("the driver reports a violation");
  }
}

}  // namespace nofrag::model
