// Snapshot: nofrag's memory as PyTorch's segments and blocks.
//
// Every mapped byte is in one segment, at the address where it is in use or was mapped first (nofrag_walk).
// A segment is a run of adjacent bytes of one pool and one kind (small, large), because the counters keep
// the kinds apart and the sums of the segments must be theirs.
#include <algorithm>
#include <map>

#include "torch_plugin/native/abi/abi.h"
#include "torch_plugin/native/native_allocator.h"

namespace nofrag::native {
namespace {

struct Span {
  std::size_t address;
  std::size_t size;
  PoolId pool;
};

struct SeenBlock {
  Block block;
  bool live = false;
};

using Blocks = std::map<std::size_t, SeenBlock>;

// What one device holds at one moment: nofrag's memory and PyTorch's blocks in it.
class Survey {
 public:
  explicit Survey(DeviceState& state) : state_(state) {
    check(nofrag_walk(state.ordinal(), &Survey::visit, this));
    std::sort(spans_.begin(), spans_.end(), [](const Span& a, const Span& b) {
      return a.address < b.address;
    });
    if (!taken_) {
      take_blocks();
    }
  }
  [[nodiscard]] const std::vector<Span>& spans() const { return spans_; }
  [[nodiscard]] const Blocks& blocks() const { return blocks_; }

 private:
  static void visit(const nofrag_span* span, void* user) {
    auto* self = static_cast<Survey*>(user);
    // Under nofrag's lock: what is a live record now is a block of nofrag's until the walk ends.
    if (!self->taken_) {
      self->take_blocks();
    }
    if (span->state != NOFRAG_SPAN_UNUSABLE) {
      self->spans_.push_back({reinterpret_cast<std::size_t>(span->address),
                              span->size,
                              {span->pool_first, span->pool_second}});
    }
  }
  void take_blocks() {
    taken_ = true;
    state_.for_each_block([this](const Block& block, bool live) {
      blocks_[reinterpret_cast<std::size_t>(block.address)] = {block, live};
    });
  }

  DeviceState& state_;
  std::vector<Span> spans_;
  Blocks blocks_;
  bool taken_ = false;
};

// A piece of a run: a block, or what is free between two.
struct Piece {
  std::size_t address;
  std::size_t size;
  PoolId pool;
  const SeenBlock* block;  // null: free
};

class Segments {
 public:
  Segments(DeviceState& state, std::vector<SegmentInfo>& result) : state_(state), result_(result) {}

  // pre: by address.
  void add(const Piece& piece, bool alone) {
    const bool small = piece.block != nullptr && piece.block->block.small;
    const cudaStream_t stream = piece.block != nullptr ? piece.block->block.stream : nullptr;
    const bool joins = open_ && !alone && end_ == piece.address &&
                       current_.owner_private_pool_id == piece.pool &&
                       current_.is_large == !small &&
                       (piece.block == nullptr || current_.stream == stream || !has_block_);
    if (!joins) {
      close();
      start(piece, small);
    }
    if (piece.block != nullptr && !has_block_) {
      current_.stream = stream;
      has_block_ = true;
    }
    append(piece);
    if (alone) {
      close();
    }
  }
  void close() {
    if (open_) {
      result_.push_back(std::move(current_));
      open_ = false;
    }
  }

 private:
  void start(const Piece& piece, bool small) {
    current_ = SegmentInfo{};
    current_.device = static_cast<c10::DeviceIndex>(state_.ordinal());
    current_.address = piece.address;
    current_.is_large = !small;
    current_.is_expandable = true;
    current_.owner_private_pool_id = piece.pool;
    current_.context_when_allocated = state_.segment_context(piece.address);
    open_ = true;
    has_block_ = false;
  }
  void append(const Piece& piece) {
    BlockInfo info;
    info.size = piece.size;
    if (piece.block != nullptr) {
      const Block& block = piece.block->block;
      info.requested_size = block.requested;
      info.allocated = piece.block->live;
      info.active = true;
      info.context_when_allocated = block.context;
      current_.active_size += piece.size;
      current_.requested_size += block.requested;
      current_.allocated_size += piece.block->live ? piece.size : 0;
    }
    current_.total_size += piece.size;
    end_ = piece.address + piece.size;
    if (piece.block == nullptr && !current_.blocks.empty() && !current_.blocks.back().active) {
      current_.blocks.back().size += piece.size;
    } else {
      current_.blocks.push_back(std::move(info));
    }
  }

  DeviceState& state_;
  std::vector<SegmentInfo>& result_;
  SegmentInfo current_;
  std::size_t end_ = 0;
  bool open_ = false;
  bool has_block_ = false;
};

// Names of pools that nofrag set aside: released, and refilled under their old name meanwhile.
PoolId shown(PoolId pool) {
  return pool.first == UINT64_MAX ? PoolId{0, 0} : pool;
}

std::vector<Piece> pieces_of(const Survey& survey) {
  std::vector<Piece> pieces;
  auto next = survey.blocks().begin();
  const auto last = survey.blocks().end();
  for (const Span& span : survey.spans()) {
    std::size_t at = span.address;
    const std::size_t end = span.address + span.size;
    while (next != last && next->first < at) {
      ++next;
    }
    // A block of PyTorch's may be smaller than nofrag's, and lies in one.
    while (next != last && next->first < end) {
      const Block& block = next->second.block;
      if (next->first > at) {
        pieces.push_back({at, next->first - at, shown(span.pool), nullptr});
      }
      pieces.push_back({next->first, block.size, block.pool, &next->second});
      at = next->first + block.size;
      ++next;
    }
    if (at < end) {
      pieces.push_back({at, end - at, shown(span.pool), nullptr});
    }
  }
  return pieces;
}

void add_custom(DeviceState& state,
                PoolId pool,
                CustomPool& custom,
                std::vector<SegmentInfo>& result) {
  Blocks blocks;
  const auto segments = custom.segments([&] {
    state.for_each_block([&](const Block& block, bool live) {
      if (block.custom.get() == &custom) {
        blocks[reinterpret_cast<std::size_t>(block.address)] = {block, live};
      }
    });
  });
  for (const auto& [address, segment] : segments) {
    SegmentInfo info;
    info.device = static_cast<c10::DeviceIndex>(state.ordinal());
    info.address = address;
    info.total_size = segment.size;
    info.stream = segment.stream.handle;
    info.is_large = !segment.small;
    info.owner_private_pool_id = pool;
    for (const auto& [start, span] : segment.spans) {
      BlockInfo block;
      block.size = span.size;
      if (const auto seen = blocks.find(start); !span.free && seen != blocks.end()) {
        block.requested_size = seen->second.block.requested;
        block.allocated = seen->second.live;
        block.active = true;
        block.context_when_allocated = seen->second.block.context;
        info.active_size += span.size;
        info.requested_size += block.requested_size;
        info.allocated_size += block.allocated ? span.size : 0;
      }
      info.blocks.push_back(std::move(block));
    }
    result.push_back(std::move(info));
  }
}

}  // namespace

void NativeAllocator::survey_device(DeviceState& state, std::vector<SegmentInfo>* segments) {
  const Survey survey(state);
  Segments builder(state, *segments);
  for (const Piece& piece : pieces_of(survey)) {
    const bool alone = piece.block != nullptr && pools_.no_split(state.ordinal(), piece.pool);
    builder.add(piece, alone);
  }
  builder.close();
  for (const auto& [pool, custom] : pools_.custom(state.ordinal())) {
    add_custom(state, pool, *custom, *segments);
  }
}

SnapshotInfo NativeAllocator::snapshot(PoolId pool, bool with_traces) {
  const Call call(*this);
  SnapshotInfo result;
  c10::ApproximateClockToUnixTimeConverter converter;
  const auto to_nanoseconds = converter.makeConverter();
  const auto stamp = [&](auto& entry) {
    entry.time_.t_ = to_nanoseconds(entry.time_.approx_t_) / 1000;
  };
  for (const auto& slot : devices_) {
    DeviceState* state = slot.load(std::memory_order_acquire);
    if (state == nullptr) {
      continue;
    }
    settle(*state);
    if (with_traces) {
      std::vector<TraceEntry> trace = state->trace();
      std::for_each(trace.begin(), trace.end(), stamp);
      result.device_traces.push_back(std::move(trace));
    }
    std::vector<SegmentInfo> segments;
    survey_device(*state, &segments);
    std::size_t active = 0;
    for (SegmentInfo& segment : segments) {
      if (pool == PoolId{0, 0} || segment.owner_private_pool_id == pool) {
        active += segment.active_size;
        result.segments.push_back(std::move(segment));
      }
    }
    state->record({TraceEntry::SNAPSHOT,
                   static_cast<c10::DeviceIndex>(state->ordinal()),
                   0,
                   active,
                   nullptr,
                   pool,
                   nullptr});
  }
  std::sort(result.segments.begin(),
            result.segments.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) {
              return std::pair(a.device, a.address) < std::pair(b.device, b.address);
            });
  result.external_annotations = history_.annotations();
  std::for_each(result.external_annotations.begin(), result.external_annotations.end(), stamp);
  result.config_metadata = config_info();
  return result;
}

}  // namespace nofrag::native
