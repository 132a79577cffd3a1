// Forms: what the copying entries of the driver are, as far as the preload must know it.
//
// Owns: nothing: the driver's structures, and what an entry's name says. Layer: preload. Units: as the driver's.
// Invariants: the structures lie as the driver's do (checked in reach.cc). Threads: pure functions.
// Failure: none. Cost: none, the names are known to the compiler.
#pragma once

#include <cstddef>
#include <string_view>

#include "driver/real/driver_api.h"

namespace nofrag::preload {

// As the driver has them since CUDA 12.2 and 12.8 (checked in reach.cc); nofrag compiles with the header of 12.0, too.
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

// Of a program that is built for default streams of each thread.
constexpr bool is_per_thread(std::string_view symbol) {
  return symbol.ends_with("_ptds") || symbol.ends_with("_ptsz");
}
// In the legacy default stream it is in order with those of all GPUs that it concerns. (Nodes of graphs and batches are
// in no default stream.)
constexpr bool has_order(std::string_view symbol) {
  return !symbol.starts_with("cuGraph") && symbol.find("Batch") == std::string_view::npos;
}

}  // namespace nofrag::preload
