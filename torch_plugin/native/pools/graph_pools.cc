// Private pools, as CUDA graphs, trees of graphs and MemPools use them; checkpoints of them.
#include <algorithm>

#include <c10/util/Exception.h>

#include "torch_plugin/native/native_allocator.h"

namespace nofrag::native {
namespace {

// What lived in a pool at one moment.
struct Checkpoint : torch_cuda::AllocatorState {
  int device = 0;
  PoolId pool{0, 0};
  std::vector<Block> blocks;
};

c10::Device cuda_device(int ordinal) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(ordinal)};
}

}  // namespace

void NativeAllocator::begin_pool(int ordinal, PoolId pool, StreamFilter filter) {
  const Call call(*this);
  pools_.begin(device(ordinal), pool, std::move(filter));
}

void NativeAllocator::end_pool(int ordinal, PoolId pool) {
  const Call call(*this);
  pools_.end(device(ordinal), pool);
}

void NativeAllocator::release_pool(int ordinal, PoolId pool) {
  const Call call(*this);
  pools_.release(device(ordinal), pool);
}

int NativeAllocator::pool_uses(int ordinal, PoolId pool) {
  return pools_.uses(ordinal, pool);
}

void NativeAllocator::retain_pool(int ordinal,
                                  PoolId pool,
                                  std::shared_ptr<CUDAAllocator> allocator) {
  const Call call(*this);
  pools_.retain(device(ordinal), pool, std::move(allocator));
}

void NativeAllocator::set_use_on_oom(int ordinal, PoolId pool, bool use) {
  const Call call(*this);
  pools_.set_use_on_oom(device(ordinal), pool, use);
}

void NativeAllocator::set_no_split(int ordinal, PoolId pool) {
  pools_.set_no_split(ordinal, pool);
}

bool NativeAllocator::pool_holds(int ordinal,
                                 PoolId pool,
                                 const std::unordered_set<void*>& blocks) {
  TORCH_CHECK(pools_.exists(ordinal, pool), "Could not find pool of id");
  std::size_t live = 0;
  bool all_expected = true;
  device(ordinal).for_each_live([&](const Block& block) {
    if (block.pool == pool) {
      ++live;
      all_expected = all_expected && blocks.count(block.address) > 0;
    }
  });
  return all_expected && live == blocks.size();
}

std::shared_ptr<torch_cuda::AllocatorState> NativeAllocator::checkpoint(int ordinal, PoolId pool) {
  TORCH_CHECK(pools_.exists(ordinal, pool), "Could not find pool of id");
  auto state = std::make_shared<Checkpoint>();
  state->device = ordinal;
  state->pool = pool;
  device(ordinal).for_each_live([&](const Block& block) {
    if (block.pool == pool) {
      TORCH_CHECK(block.custom == nullptr,
                  "a pool whose memory another allocator gives cannot be checkpointed");
      state->blocks.push_back(block);
    }
  });
  return state;
}

// Back to what lived then: everything that lives in the pool now is freed, and what lived then is allocated
// at the same addresses. A block that lives at both moments is in both lists, as PyTorch's callers expect; its
// memory is not touched.
CheckpointDelta NativeAllocator::restore(int ordinal,
                                         const std::shared_ptr<torch_cuda::AllocatorState>& state) {
  const auto wanted = std::dynamic_pointer_cast<Checkpoint>(state);
  TORCH_CHECK(wanted != nullptr && wanted->device == ordinal,
              "Expected a checkpoint of this device");
  TORCH_CHECK(pools_.exists(ordinal, wanted->pool), "Could not find private pool id");
  const Call call(*this);
  DeviceState& device_state = device(ordinal);
  const Context context = history_.gather(RecordContext::STATE);
  CheckpointDelta delta;
  std::vector<Block> gone;
  bool shared = false;
  device_state.for_each_live([&](const Block& block) {
    if (block.pool == wanted->pool) {
      shared = shared || block.shared_streams;
      gone.push_back(block);
    }
  });
  TORCH_CHECK(!shared, "Events should have synchronized when setting checkpointed block");
  std::vector<nofrag_pool_block> blocks;
  for (const Block& block : wanted->blocks) {
    blocks.push_back({block.address, block.served, block.stream});
  }
  const ContextOfCall in_call(context);
  const DeviceState::Restoring restoring(device_state);
  // All or nothing: if it is refused, the records are still right.
  check(nofrag_pool_restore(
      ordinal, {wanted->pool.first, wanted->pool.second}, blocks.data(), blocks.size()));
  std::vector<Block> made = wanted->blocks;
  for (Block& block : made) {
    block.context = context;
    block.shared_streams = false;
  }
  device_state.note_restored(gone, std::move(made), context);
  for (const Block& block : gone) {
    delta.ptrs_freed.push_back(block.address);
  }
  for (const Block& block : wanted->blocks) {
    delta.dataptrs_allocd.emplace_back(
        block.address, block.address, deleter(), cuda_device(ordinal));
  }
  return delta;
}

}  // namespace nofrag::native
