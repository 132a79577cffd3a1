// Across: copies that the driver refuses because they reach memory of nofrag's from another GPU.
//
// Any GPU's plain copies may reach what cuMemAlloc gave out on another one; memory that was mapped is refused to GPUs
// that were not given access (CUDA_ERROR_INVALID_VALUE, at once, also while a stream is captured). So where a copy is
// refused, the GPUs that take part are given access to the memory of nofrag's that it names, for good, and it is called
// once more. Not before, because a mapping for one more GPU costs 400 us (docs/driver.md), and few programs need it.
// Copies with devices named (cuMemcpyPeer) work without; sets of another GPU's memory are refused in either case.
// Owns: nothing; who has access stands in devices.h. Layer: preload. Threads: any. Failure: the driver's answer, of
// the second call if there was one. Cost: nothing beside the call while it succeeds.
#pragma once

#include <cstdint>
#include <shared_mutex>

#include "preload/entries.h"
#include "preload/mode.h"

namespace nofrag::preload {

// As the driver has them since CUDA 12.2 and 12.8 (checked in across.cc); nofrag compiles with the header of 12.0, too.
struct GraphNode {  // CUgraphNodeParams, as far as copies fill it
  CUgraphNodeType type;
  int reserved[3];
  int flags;
  int more_reserved;
  CUcontext context;
  CUDA_MEMCPY3D copy;
};
struct BatchedCopy {  // CUDA_MEMCPY3D_BATCH_OP
  struct End {
    static constexpr int kPointer = 1;
    int type;
    CUdeviceptr pointer;
    std::size_t rest[3];
  };
  End from;
  End to;
  std::size_t extent[3];
  int order;
  unsigned flags;
};

// Is there anything to do here where a copy is refused?
[[nodiscard]] bool may_let_in();

// The devices that a copy concerns: whose memory of ours it names, and which must get at it.
class Reach {
 public:
  Reach();  // the current device takes part
  void add(CUdeviceptr pointer);
  void add(CUstream stream);
  void add(CUcontext context);
  void add(const CUDA_MEMCPY2D* copy);
  void add(const CUDA_MEMCPY3D* copy);
  void add(const GraphNode* node);
  void add(const BatchedCopy& copy);
  // Sizes, memory of the host, arrays, nodes: say nothing about it.
  template <typename Other>
  void add(const Other& /*argument*/) {}

  // True: somebody got access who had none.
  [[nodiscard]] bool let_in();

 private:
  void takes_part(int device);

  const InsideNofrag inside_;
  const std::shared_lock<std::shared_mutex> lock_;
  std::uint64_t owners_ = 0;  // a bit a device
  std::uint64_t users_ = 0;
};

template <typename... Arguments>
void collect(Reach& reach, Arguments... arguments) {
  (reach.add(arguments), ...);
}

// cuMemcpyBatchAsync
template <typename... Rest>
void collect(Reach& reach,
             CUdeviceptr* to,
             CUdeviceptr* from,
             std::size_t* /*sizes*/,
             std::size_t count,
             Rest... rest) {
  for (std::size_t i = 0; to != nullptr && from != nullptr && i < count; ++i) {
    reach.add(to[i]);
    reach.add(from[i]);
  }
  (reach.add(rest), ...);
}

// cuMemcpy3DBatchAsync
template <typename... Rest>
void collect(Reach& reach, std::size_t count, const BatchedCopy* copies, Rest... rest) {
  for (std::size_t i = 0; copies != nullptr && i < count; ++i) {
    reach.add(copies[i]);
  }
  (reach.add(rest), ...);
}

template <typename... Arguments>
struct Across {
  template <Entry entry>
  static CUresult call(Arguments... arguments) {
    const CUresult result = call_real(entry, arguments...);
    if (result != CUDA_ERROR_INVALID_VALUE || !may_let_in()) [[likely]] {
      return result;
    }
    return let_in(arguments...) ? call_real(entry, arguments...) : result;
  }

 private:
  static bool let_in(Arguments... arguments) {
    Reach reach;
    collect(reach, arguments...);
    return reach.let_in();
  }
};

}  // namespace nofrag::preload
