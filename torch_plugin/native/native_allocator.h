// NativeAllocator: PyTorch's CUDA caching allocator on nofrag's C interface, whatever the release of PyTorch.
//
// Owns: one DeviceState a device, the pools, the history. It is made once and never destroyed: tensors may be
// freed while the process ends.
// Units: bytes. Invariants: a pointer that it did not give out goes to the allocator that was there before.
// Threads: any. Locks, in the order in which they may be held together: a custom pool's, nofrag's,
// a DeviceState's; none while user code runs, but a custom pool's while its own allocator is called.
// Failure: c10::OutOfMemoryError for want of memory, c10::Error otherwise.
// Fork: in a child of the process frees do nothing; allocations fail with nofrag's reason.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "torch_plugin/native/abi/core.h"
#include "torch_plugin/native/device_state.h"
#include "torch_plugin/native/history/history.h"
#include "torch_plugin/native/pools/pools.h"
#include "torch_plugin/native/sharing/sharing.h"

namespace nofrag::native {

class NativeAllocator final : public Core {
 public:
  static NativeAllocator& instance();

  // The allocator in whose place this one is put; it keeps what it has given out.
  void set_previous(CUDAAllocator* previous);
  [[nodiscard]] CUDAAllocator* previous() const {
    return previous_.load(std::memory_order_acquire);
  }

  // native_allocator.cc
  c10::DataPtr allocate_data(std::size_t size) override;
  [[nodiscard]] c10::DeleterFnPtr deleter() const override;
  void copy(void* to, const void* from, std::size_t size) const override;
  void* allocate(std::size_t size) override;
  void* allocate_on(std::size_t size, cudaStream_t stream) override;
  void free(void* block) override;
  void start(int device_count) override;
  bool started() override { return device_count_.load(std::memory_order_acquire) > 0; }
  void set_caching(bool wanted) override;
  [[nodiscard]] bool caching() const override;
  void record_stream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;

  // statistics.cc
  void* base_of(void* address, std::size_t* size) override;
  void largest_block(int ordinal, std::size_t* size) override;
  double fraction(int ordinal) override;
  void set_fraction(double fraction, int ordinal) override;
  void empty_cache(PoolId pool) override;
  DeviceStats stats(int ordinal) override;
  void reset_accumulated(int ordinal) override;
  void reset_peaks(int ordinal) override;
  std::vector<SegmentSize> segment_sizes(int ordinal) override;
  std::pair<std::size_t, std::size_t> memory_info(int ordinal) override;

  // history/recording.cc, history/snapshot.cc
  SnapshotInfo snapshot(PoolId pool, bool with_traces) override;
  bool history_enabled() override { return history_.recording(); }
  void record_history(const HistorySettings& settings) override;
  void annotate(const Annotations& metadata) override;
  void push_compile_context(const std::string& text) override;
  void pop_compile_context() override;
  void set_user_metadata(const std::string& text) override;
  std::string user_metadata() override;
  Context context_of(const void* address) override;
  void annotate_block(const void* address, const std::string& text) override;
  void add_oom_observer(torch_cuda::OutOfMemoryObserver observer) override;
  void add_tracker(torch_cuda::AllocatorTraceTracker tracker) override;

  // pools/graph_pools.cc
  void begin_pool(int ordinal, PoolId pool, StreamFilter filter) override;
  void end_pool(int ordinal, PoolId pool) override;
  void release_pool(int ordinal, PoolId pool) override;
  int pool_uses(int ordinal, PoolId pool) override;
  void retain_pool(int ordinal, PoolId pool, std::shared_ptr<CUDAAllocator> allocator) override;
  void set_use_on_oom(int ordinal, PoolId pool, bool use) override;
  void set_no_split(int ordinal, PoolId pool) override;
  bool pool_holds(int ordinal, PoolId pool, const std::unordered_set<void*>& blocks) override;
  std::shared_ptr<torch_cuda::AllocatorState> checkpoint(int ordinal, PoolId pool) override;
  CheckpointDelta restore(int ordinal,
                          const std::shared_ptr<torch_cuda::AllocatorState>& state) override;

  // sharing/ipc.cc
  torch_cuda::ShareableHandle share(void* address) override;
  std::shared_ptr<void> open_shared(const std::string& handle) override;
  void enable_peer(int ordinal, int accessed) override;
  cudaError_t copy_async(void* to,
                         int to_device,
                         const void* from,
                         int from_device,
                         std::size_t size,
                         cudaStream_t stream,
                         bool peer_enabled) override;

 private:
  static constexpr int kMostDevices = 64;

  // One call of PyTorch's. At the end of the outermost one of a thread, when no lock is held, trackers are told
  // what happened in it.
  class Call {
   public:
    explicit Call(NativeAllocator& allocator)
        : allocator_(allocator), counted_(allocator.history_.tracked()) {
      if (counted_) [[unlikely]] {
        enter();
      }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() {
      if (allocator_.history_.tracked()) [[unlikely]] {
        leave();
      }
    }

   private:
    static void enter();
    void leave() const;

    NativeAllocator& allocator_;
    const bool counted_;
  };

  NativeAllocator();
  ~NativeAllocator() override = default;

  DeviceState& device(int ordinal);
  [[nodiscard]] DeviceState* used_device(int ordinal) const {
    return devices_[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
  }
  DeviceState& make_state(int ordinal);
  // The device whose live block starts at `address`, or null.
  [[nodiscard]] DeviceState* owner_of(const void* address) const;

  void* allocate_block(int ordinal, std::size_t size, cudaStream_t stream);
  void* serve(DeviceState& state, Block& block, const Destination& where);
  void* serve_from_lenders(DeviceState& state, Block& block);
  bool release(DeviceState& state, void* address, const Context& context);
  void report(void* address, std::int64_t change, const Totals& totals, int ordinal) const;

  // statistics.cc: frees that waited for streams which are done now are completed.
  static void settle(DeviceState& state);
  // history/snapshot.cc
  void survey_device(DeviceState& state, std::vector<SegmentInfo>* segments);

  // out_of_memory.cc
  [[noreturn]] void fail(DeviceState& state, const Block& block, Context context);
  static int run_free_memory_callbacks(int ordinal, std::uint64_t needed, void* user);

  static void on_memory_event(const nofrag_memory_event* event, void* user);
  static void on_fork();

  std::atomic<CUDAAllocator*> previous_{nullptr};
  std::atomic<int> device_count_{0};
  std::atomic<bool> caching_{true};
  bool uncached_by_environment_ = false;
  std::atomic<bool> forked_{false};
  std::mutex mutex_;
  std::array<std::atomic<DeviceState*>, kMostDevices> devices_{};  // made under mutex_
  HistorySettings settings_;                                       // Sync: mutex_
  History history_;
  Pools pools_;
  Sharing sharing_;
};

// Throws c10::Error with nofrag's reason for what the calling thread's last call failed with.
[[noreturn]] void throw_last_error();
void check(nofrag_status status);

}  // namespace nofrag::native
