// CustomPool: the blocks of a pool whose segments come from an allocator that the user brought
// (torch.cuda.MemPool(allocator)): memory of NCCL, for instance, which nofrag can neither map nor move.
//
// It follows PyTorch's own policy for such pools: segments of 2 MiB for blocks of up to 1 MiB, of 20 MiB for
// up to 10 MiB, else of the block's size in steps of 2 MiB; the best fit among free blocks of the same stream;
// neighbours merge. Segments go back when the pool is emptied, never before.
// Owns: its segments, through the allocator, which it keeps alive.
// Units: bytes. Invariants: blocks tile each segment; a free block has free neighbours only while it waits.
// While a pool of the device is being filled a capture may be under way: then no event is recorded or asked
// about, nothing is waited for and nothing given back; blocks that other streams used stay where they are.
// Threads: any, one mutex a pool. The user's allocator is asked for memory under it, and given it back without.
// Failure: nullptr where the user's allocator gives nothing; its exceptions pass. free and record_stream throw
// nothing of their own: tensors are freed in destructors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "torch_plugin/native/abi/types.h"
#include "torch_plugin/native/device_state.h"
#include "torch_plugin/native/platform.h"
#include "torch_plugin/native/stream_name.h"

namespace nofrag::native {

class CustomPool {
 public:
  CustomPool(DeviceState& device, PoolId pool, std::shared_ptr<CUDAAllocator> allocator)
      : device_(device), pool_(pool), allocator_(std::move(allocator)) {}
  CustomPool(const CustomPool&) = delete;
  CustomPool& operator=(const CustomPool&) = delete;
  ~CustomPool() = default;

  // pre: size is a positive multiple of 512. The block may be larger (`*given`) where nothing is split.
  void* allocate(std::size_t size, cudaStream_t stream, std::size_t* given);
  // The same from what is free, without a new segment.
  void* reuse(std::size_t size, cudaStream_t stream, std::size_t* given);
  void record_stream(const void* block, cudaStream_t stream);
  // True if the block is free now; false if other streams still use it: it is reported to the device's
  // state when they are done.
  bool free(const Block& block);
  // Takes in what streams have finished, without waiting.
  void settle();
  // Gives free segments back; true if none is left. Waits for streams that still use freed blocks. Trackers are told
  // of each before it goes; a call that a tracker makes gives nothing back. pre: the caller holds no lock.
  bool empty();
  void set_no_split() { no_split_ = true; }

  struct Span {
    std::size_t address;
    std::size_t size;
    bool free;
  };
  struct Segment {
    std::size_t size = 0;
    StreamName stream;
    bool small = false;
    std::map<std::size_t, Span> spans;  // by address
  };
  // By address; a copy, of the moment in which `look` is called: no block of the pool comes or goes meanwhile.
  [[nodiscard]] std::map<std::size_t, Segment> segments(const std::function<void()>& look);

 private:
  // The end of a stream's work at the block's free, or soon after it.
  struct Mark {
    StreamName stream;
    platform::Event event = nullptr;  // null: still to be recorded
  };
  struct Waiting {
    const void* address;
    std::uint64_t serial;
    std::vector<Mark> marks;
  };

  void* take_free(std::size_t size, cudaStream_t stream, bool small, std::size_t* given);
  void give_free(std::size_t address);
  void poll(bool wait);
  void set(Mark& mark) const noexcept;
  bool passed(Mark& mark, bool wait) const noexcept;
  [[nodiscard]] std::map<std::size_t, Segment>::iterator segment_of(std::size_t address);

  DeviceState& device_;
  const PoolId pool_;
  const std::shared_ptr<CUDAAllocator> allocator_;
  std::mutex mutex_;
  bool no_split_ = false;
  std::map<std::size_t, Segment> segments_;                       // Sync: mutex_
  std::map<std::size_t, std::set<StreamName>> streams_of_block_;  // Sync: mutex_
  std::vector<Waiting> waiting_;                                  // Sync: mutex_
};

}  // namespace nofrag::native
