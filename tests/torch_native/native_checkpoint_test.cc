// Checkpoints of pools as Python restores them: torch._C._cuda_setCheckpointPoolState(device, state, stale, owners).
// The two lists stay on PyTorch's side of the interface; with them it takes the deleters from storages whose blocks are
// gone, and hands the blocks that came back to the storages that are to own them. Both lean on what the allocator gives:
// a deleter that is known by its address, and DataPtrs whose context it takes.
#include <unordered_map>
#include <unordered_set>

#include <c10/core/Storage.h>

#include "native_fixture.h"

namespace nofrag::test {
namespace {

class NativeCheckpointTest : public NativeTest {
 public:
  static constexpr PoolId kPool{0, 77};
  static constexpr std::int64_t kBlock = kMiB;

  NativeCheckpointTest() {
    allocator().beginAllocateToPool(0, kPool, [](cudaStream_t) { return true; });
  }
  ~NativeCheckpointTest() override {
    allocator().endAllocateToPool(0, kPool);
    while (allocator().getPoolUseCount(0, kPool) > 0) {
      allocator().releasePool(0, kPool);
    }
    allocator().emptyCache({0, 0});
  }

  static c10::Storage storage_of(c10::DataPtr data) {
    return {c10::Storage::use_byte_size_t{}, kMiB, std::move(data), &allocator(), false};
  }
  static c10::Storage make() { return storage_of(allocator().allocate(kMiB)); }
  // Of a block that nobody owns yet, as a tensor is made from an address.
  static c10::Storage at(void* address) {
    return storage_of({address, c10::Device(c10::DeviceType::CUDA, 0)});
  }
  static void drop(c10::Storage& storage) { storage = c10::Storage(); }
  static void* address_of(const c10::Storage& storage) { return storage.data_ptr().get(); }

  // What PyTorch's binding does, in its order.
  static void restore(const std::shared_ptr<torch_cuda::AllocatorState>& state,
                      const std::vector<c10::StorageImpl*>& stale,
                      const std::vector<c10::StorageImpl*>& owners) {
    torch_cuda::CheckpointDelta delta = allocator().setCheckpointPoolState(0, state);
    std::unordered_set<void*> made;
    for (const c10::DataPtr& data : delta.dataptrs_allocd) {
      made.insert(data.get());
    }
    const std::unordered_set<void*> freed(delta.ptrs_freed.begin(), delta.ptrs_freed.end());
    std::size_t gone = 0;
    for (void* const address : freed) {
      gone += made.count(address) == 0 ? 1U : 0U;
    }
    ASSERT_GE(stale.size(), gone)
        << "PyTorch refuses when a block went whose owner it does not know";
    for (c10::StorageImpl* const storage : stale) {
      if (freed.count(storage->data_ptr().get()) > 0) {
        ASSERT_TRUE(storage->_mutable_data_ptr_no_checks().compare_exchange_deleter(
            allocator().raw_deleter(), &c10::detail::deleteNothing))
            << "PyTorch knows the deleter of no other allocator";
      }
    }
    std::unordered_map<void*, c10::StorageImpl*> takers;
    for (c10::StorageImpl* const storage : owners) {
      takers[storage->data_ptr().get()] = storage;
    }
    for (c10::DataPtr& data : delta.dataptrs_allocd) {
      if (const auto taker = takers.find(data.get()); taker != takers.end()) {
        ASSERT_EQ(taker->second->data_ptr().get_context(), nullptr);
        taker->second->set_data_ptr_noswap(std::move(data));
      } else {
        data.release_context();  // whoever knows its address frees it
      }
    }
  }
};

TEST_F(NativeCheckpointTest, OwnersOfRestoredBlocksFreeThem) {
  c10::Storage first = make();
  c10::Storage second = make();
  void* const addresses[] = {address_of(first), address_of(second)};
  const auto state = allocator().getCheckpointState(0, kPool);
  drop(first);
  drop(second);
  EXPECT_EQ(allocated(), 0);
  c10::Storage owners[] = {at(addresses[0]), at(addresses[1])};
  restore(state, {}, {owners[0].unsafeGetStorageImpl(), owners[1].unsafeGetStorageImpl()});
  EXPECT_EQ(allocated(), 2 * kBlock);
  EXPECT_EQ(address_of(owners[0]), addresses[0]);
  drop(owners[0]);
  EXPECT_EQ(allocated(), kBlock);
  EXPECT_TRUE(allocator().checkPoolLiveAllocations(0, kPool, {addresses[1]}));
  drop(owners[1]);
  EXPECT_EQ(allocated(), 0);
}

// A block that lives at both moments changes hands: the old owner has a deleter that does nothing, the new one frees.
TEST_F(NativeCheckpointTest, ABlockThatLivesAtBothMomentsHasOneOwner) {
  c10::Storage old_owner = make();
  void* const address = address_of(old_owner);
  const auto state = allocator().getCheckpointState(0, kPool);
  c10::Storage later = make();  // is no more once the state is back
  c10::Storage owner = at(address);
  restore(state,
          {old_owner.unsafeGetStorageImpl(), later.unsafeGetStorageImpl()},
          {owner.unsafeGetStorageImpl()});
  EXPECT_EQ(allocated(), kBlock);
  drop(old_owner);
  drop(later);
  EXPECT_EQ(allocated(), kBlock) << "what a stale owner held is not its own any more";
  EXPECT_TRUE(allocator().checkPoolLiveAllocations(0, kPool, {address}));
  drop(owner);
  EXPECT_EQ(allocated(), 0);
}

TEST_F(NativeCheckpointTest, WhatNoOwnerTakesIsFreedByItsAddress) {
  c10::Storage taken = make();
  c10::Storage left = make();
  void* const taken_address = address_of(taken);
  void* const left_address = address_of(left);
  const auto state = allocator().getCheckpointState(0, kPool);
  drop(taken);
  drop(left);
  c10::Storage owner = at(taken_address);
  restore(state, {}, {owner.unsafeGetStorageImpl()});
  EXPECT_EQ(allocated(), 2 * kBlock) << "no DataPtr that nobody took has freed anything";
  drop(owner);
  EXPECT_EQ(allocated(), kBlock);
  allocator().raw_delete(left_address);
  EXPECT_EQ(allocated(), 0);
}

// Restored again and again, as trees of graphs do from one recording to the next.
TEST_F(NativeCheckpointTest, RestoringAgainHandsTheSameBlocksOn) {
  c10::Storage storage = make();
  void* const address = address_of(storage);
  const auto state = allocator().getCheckpointState(0, kPool);
  for (int i = 0; i < 3; ++i) {
    c10::Storage next = at(address);
    restore(state, {storage.unsafeGetStorageImpl()}, {next.unsafeGetStorageImpl()});
    storage = std::move(next);  // the old one goes, and frees nothing
    EXPECT_EQ(allocated(), kBlock);
    EXPECT_TRUE(allocator().checkPoolLiveAllocations(0, kPool, {address}));
  }
  drop(storage);
  EXPECT_EQ(allocated(), 0);
}

}  // namespace
}  // namespace nofrag::test
