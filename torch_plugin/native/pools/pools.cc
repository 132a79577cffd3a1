#include "torch_plugin/native/pools/pools.h"

#include <algorithm>
#include <exception>

#include <c10/util/Exception.h>

#include <nofrag/frameworks.h>

namespace nofrag::native {
namespace {

nofrag_pool to_c(PoolId pool) {
  return {pool.first, pool.second};
}

void expect_ok(nofrag_status status) {
  if (status != NOFRAG_OK) {
    const char* reason = nullptr;
    nofrag_last_error(&reason);
    TORCH_CHECK(false, "nofrag: ", reason);
  }
}

// nofrag need not know the filter: the pool of each allocation is named to it. It must know that a pool is
// being filled, since a capture may be under way.
int never(void* /*stream*/, void* /*user*/) {
  return 0;
}

}  // namespace

Destination Pools::ask(int device, cudaStream_t stream) const {
  std::vector<Filling> asked;
  {
    const std::lock_guard lock(mutex_);
    asked = fillings_;
  }
  for (auto filling = asked.rbegin(); filling != asked.rend(); ++filling) {
    if (filling->device != device || (*filling->filter && !(*filling->filter)(stream))) {
      continue;
    }
    const std::lock_guard lock(mutex_);
    const auto state = states_.find({device, filling->pool});
    // Ended and released by another thread meanwhile: nobody's any more.
    if (state != states_.end() && state->second.uses > 0) {
      return {filling->pool, state->second.no_split, state->second.custom};
    }
  }
  return {};
}

// Without the mutex: a custom pool holds its own while it asks the user's allocator, which may come here.
void Pools::settle_custom(int device) const {
  for (const auto& [pool, own] : custom(device)) {
    own->settle();
  }
}

void Pools::begin(DeviceState& device, PoolId pool, StreamFilter filter) {
  settle_custom(device.ordinal());
  const std::lock_guard lock(mutex_);
  const int ordinal = device.ordinal();
  TORCH_CHECK(std::none_of(fillings_.begin(),
                           fillings_.end(),
                           [&](const Filling& f) { return f.device == ordinal && f.pool == pool; }),
              "beginAllocateToPool: already recording to this mempool_id");
  expect_ok(nofrag_pool_begin(ordinal, to_c(pool), never, nullptr));
  ++states_[{ordinal, pool}].uses;
  fillings_.push_back({ordinal, pool, std::make_shared<const StreamFilter>(std::move(filter))});
  filling_.fetch_add(1, std::memory_order_release);
  device.note_filling(true);
}

void Pools::end(DeviceState& device, PoolId pool) {
  {
    const std::lock_guard lock(mutex_);
    end_locked(device, pool);
  }
  settle_custom(device.ordinal());
  if (!device.filling()) {
    empty_later(device.ordinal());
  }
}

// What could not be given back while pools were filled. It belongs to other pools than the one that ends: what its
// allocator throws does not end the caller's work.
void Pools::empty_later(int device) {
  std::vector<PoolId> pools;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, state] : states_) {
      if (key.first == device && state.empty_later && state.uses == 0) {
        pools.push_back(key.second);
      }
    }
  }
  for (const PoolId& pool : pools) {
    try {
      empty(device, pool);
    } catch (const std::exception& problem) {
      TORCH_WARN("a released pool's memory could not be given back: ", problem.what());
    }
  }
}

void Pools::end_locked(DeviceState& device, PoolId pool) {
  const auto found =
      std::find_if(fillings_.rbegin(), fillings_.rend(), [&](const Filling& filling) {
        return filling.device == device.ordinal() && filling.pool == pool;
      });
  TORCH_CHECK(found != fillings_.rend(), "endAllocatePool: not currently recording to mempool_id");
  fillings_.erase(std::next(found).base());
  filling_.fetch_sub(1, std::memory_order_release);
  device.note_filling(false);
  expect_ok(nofrag_pool_end(device.ordinal(), to_c(pool)));
}

Pools::State& Pools::used(int device, PoolId pool) {
  const auto found = states_.find({device, pool});
  TORCH_CHECK(found != states_.end() && found->second.uses > 0,
              "there is no pool {",
              pool.first,
              ", ",
              pool.second,
              "} in use on device ",
              device);
  return found->second;
}

void Pools::release(DeviceState& device, PoolId pool) {
  const std::lock_guard lock(mutex_);
  State& state = used(device.ordinal(), pool);
  --state.uses;
  if (state.uses == 0) {
    state.lends = false;
    state.no_split = false;
  }
  expect_ok(nofrag_pool_release(device.ordinal(), to_c(pool)));
  if (state.uses == 0 && state.custom == nullptr) {
    states_.erase({device.ordinal(), pool});  // what it holds is nofrag's to reuse
  }
}

void Pools::retain(DeviceState& device, PoolId pool, std::shared_ptr<CUDAAllocator> allocator) {
  const std::lock_guard lock(mutex_);
  const Key key{device.ordinal(), pool};
  const auto found = states_.find(key);
  TORCH_CHECK(allocator == nullptr || found == states_.end() || found->second.uses == 0,
              "a pool in use cannot be given another allocator");
  expect_ok(nofrag_pool_retain(device.ordinal(), to_c(pool)));
  State& state = states_[key];
  ++state.uses;
  if (allocator != nullptr) {
    state.custom = std::make_shared<CustomPool>(device, pool, std::move(allocator));
  }
}

int Pools::uses(int device, PoolId pool) const {
  const std::lock_guard lock(mutex_);
  const auto found = states_.find({device, pool});
  return found == states_.end() ? 0 : found->second.uses;
}

bool Pools::exists(int device, PoolId pool) const {
  return uses(device, pool) > 0;
}

bool Pools::no_split(int device, PoolId pool) const {
  const std::lock_guard lock(mutex_);
  const auto found = states_.find({device, pool});
  return found != states_.end() && found->second.no_split;
}

void Pools::set_use_on_oom(DeviceState& device, PoolId pool, bool use) {
  const std::lock_guard lock(mutex_);
  State& state = used(device.ordinal(), pool);
  // Memory of another allocator is not nofrag's to lend.
  if (state.custom == nullptr) {
    expect_ok(nofrag_pool_lend_when_short(device.ordinal(), to_c(pool), use ? 1 : 0));
  }
  state.lends = use;
  device.lending.store(std::any_of(states_.begin(),
                                   states_.end(),
                                   [&](const auto& entry) {
                                     return entry.first.first == device.ordinal() &&
                                            entry.second.lends;
                                   }),
                       std::memory_order_relaxed);
}

void Pools::set_no_split(int device, PoolId pool) {
  const std::lock_guard lock(mutex_);
  State& state = used(device, pool);
  state.no_split = true;
  if (state.custom != nullptr) {
    state.custom->set_no_split();
  }
}

void Pools::empty(int device, PoolId pool) {
  const bool all = pool == PoolId{0, 0};
  std::vector<std::pair<Key, std::shared_ptr<CustomPool>>> released;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, state] : states_) {
      const bool meant = key.first == device && (all || key.second == pool);
      if (meant && state.uses == 0 && state.custom != nullptr) {
        released.emplace_back(key, state.custom);
      }
    }
  }
  for (const auto& [key, custom] : released) {
    const bool gone = custom->empty();
    const std::lock_guard lock(mutex_);
    const auto state = states_.find(key);
    if (state == states_.end() || state->second.uses > 0 || state->second.custom != custom) {
      continue;
    }
    if (gone) {
      states_.erase(state);
    } else {
      state->second.empty_later = true;
    }
  }
}

std::vector<Destination> Pools::lenders(int device) const {
  const std::lock_guard lock(mutex_);
  std::vector<Destination> result;
  for (const auto& [key, state] : states_) {
    if (key.first == device && state.lends && state.custom != nullptr) {
      result.push_back({key.second, state.no_split, state.custom});
    }
  }
  return result;
}

std::vector<std::pair<PoolId, std::shared_ptr<CustomPool>>> Pools::custom(int device) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<PoolId, std::shared_ptr<CustomPool>>> result;
  for (const auto& [key, state] : states_) {
    if (key.first == device && state.custom != nullptr) {
      result.emplace_back(key.second, state.custom);
    }
  }
  return result;
}

}  // namespace nofrag::native
