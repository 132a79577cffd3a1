// Statistics, limits and the cache: what torch.cuda.memory asks for and sets.
#include <algorithm>

#include <c10/util/Exception.h>

#include "torch_plugin/native/abi/abi.h"
#include "torch_plugin/native/native_allocator.h"
#include "torch_plugin/native/platform.h"

namespace nofrag::native {

// PyTorch's own allocator asks its streams at every allocation. nofrag serves most without asking anybody, so
// it asks when somebody looks.
void NativeAllocator::settle(DeviceState& state) {
  if (state.has_waiting()) {
    nofrag_settle(state.ordinal());  // fails in a fork's child, which may look all the same
  }
}

DeviceStats NativeAllocator::stats(int ordinal) {
  const Call call(*this);
  DeviceState& state = device(ordinal);
  settle(state);
  return state.stats();
}

void NativeAllocator::reset_accumulated(int ordinal) {
  device(ordinal).reset_accumulated();
}

void NativeAllocator::reset_peaks(int ordinal) {
  device(ordinal).reset_peaks();
  check(nofrag_reset_peaks(ordinal));
}

double NativeAllocator::fraction(int ordinal) {
  return device(ordinal).fraction;
}

void NativeAllocator::set_fraction(double fraction, int ordinal) {
  TORCH_CHECK(fraction >= 0.0 && fraction <= 1.0,
              "invalid fraction:",
              fraction,
              ". Please set within [0, 1].");
  const Call call(*this);
  check(nofrag_set_memory_fraction(ordinal, fraction));
  device(ordinal).fraction = fraction;
}

void NativeAllocator::empty_cache(PoolId pool) {
  const Call call(*this);
  sharing_.close_what_waits();
  const Context context = history_.gather(RecordContext::ALL);
  const ContextOfCall in_call(context);
  for (const auto& slot : devices_) {
    DeviceState* state = slot.load(std::memory_order_acquire);
    if (state == nullptr) {
      continue;
    }
    state->note_sync();
    if (pool == PoolId{0, 0}) {
      check(nofrag_trim(state->ordinal(), 0, nullptr));
    } else if (!pools_.exists(state->ordinal(), pool)) {
      // Released. It may be gone already, which is no fault.
      const nofrag_status status =
          nofrag_pool_trim(state->ordinal(), {pool.first, pool.second}, nullptr);
      if (status != NOFRAG_INVALID_ARGUMENT) {
        check(status);
      }
    }
    pools_.empty(state->ordinal(), pool);
  }
  if (CUDAAllocator* before = previous(); before != nullptr && before->initialized()) {
    before->emptyCache();
  }
}

// What cuDNN's benchmark mode asks for: how large a workspace could be had. All idle memory can be made into
// one block, and new memory with it.
void NativeAllocator::largest_block(int ordinal, std::size_t* size) {
  if (*size == 0) {
    *size = platform::memory_info(ordinal).first;
  }
  nofrag_device_stats stats{};
  stats.struct_size = sizeof stats;
  check(nofrag_get_stats(ordinal, &stats));
  const std::uint64_t idle = stats.free_handles_bytes + stats.kept_bytes;
  *size = std::max<std::size_t>(*size, std::max(idle, stats.largest_free_run_bytes));
}

void* NativeAllocator::base_of(void* address, std::size_t* size) {
  nofrag_block_info info{};
  info.struct_size = sizeof info;
  if (nofrag_find(address, &info) == NOFRAG_OK) {
    if (size != nullptr) {
      *size = info.size;
    }
    return info.address;
  }
  if (DeviceState* state = owner_of(address)) {
    if (size != nullptr) {
      state->with_block(address, [&](const Block& block) { *size = block.size; });
    }
    return address;
  }
  CUDAAllocator* before = previous();
  TORCH_CHECK(before != nullptr && before->initialized(), "invalid device pointer: ", address);
  return before->getBaseAllocation(address, size);
}

std::pair<std::size_t, std::size_t> NativeAllocator::memory_info(int ordinal) {
  return platform::memory_info(ordinal);
}

std::vector<SegmentSize> NativeAllocator::segment_sizes(int ordinal) {
  std::vector<SegmentSize> sizes;
  const SnapshotInfo now = snapshot({0, 0}, false);
  for (const SegmentInfo& segment : now.segments) {
    const bool counts = segment.device == ordinal && segment.is_expandable &&
                        segment.owner_private_pool_id == PoolId{0, 0};
    if (!counts) {
      continue;
    }
    const auto stream = static_cast<cudaStream_t>(segment.stream);
    const auto same = std::find_if(sizes.begin(), sizes.end(), [&](const SegmentSize& known) {
      return known.stream == stream && known.small == !segment.is_large;
    });
    if (same != sizes.end()) {
      same->size += segment.total_size;
    } else {
      sizes.push_back({stream, !segment.is_large, segment.total_size});
    }
  }
  return sizes;
}

}  // namespace nofrag::native
