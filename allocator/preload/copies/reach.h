// Reach: what a copy concerns, and so how it must be made.
//
// Owns: nothing for longer than a call; who has access stands in devices.h and ipc/imports.h. Holds the gate shared
// (devices.h) while it lives. Layer: preload. Units: devices as bits of a mask.
// Threads: each its own. Failure: what cannot be found out is taken for memory of the host's, or the copy for one that is
// made as it is. Cost: the gate and a look-up for each address; where none is ours, nothing else.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "preload/copies/forms.h"
#include "preload/devices.h"
#include "preload/mode.h"

namespace nofrag::preload {

// How a copy is to be made: as it is; with the devices named; in the memory's context and in order with the current one;
// as it is, and in order with others.
struct Route {
  enum class Way : unsigned char { kPlain, kBetween, kInside, kFenced };
  Way way = Way::kPlain;
  CUcontext current = nullptr;
  CUcontext to = nullptr;    // kBetween
  CUcontext from = nullptr;  // kBetween
  CUcontext others[2] =
      {};  // kInside: [0] is the memory's; kFenced: one or two beside the current one
};

class Reach {
 public:
  // `ordered`, `per_thread`: has_order and is_per_thread of the entry.
  Reach(bool ordered, bool per_thread);
  // The arguments of the call, in their order.
  void add(CUdeviceptr pointer);
  void add(CUstream stream);
  void add(CUcontext context);
  void add(CUarray array);
  void add(const CUDA_MEMCPY2D* copy);
  void add(const CUDA_MEMCPY3D* copy);
  void add(const GraphNode* node);
  void add(const BatchedCopy& copy);
  // Sizes, memory of the host, nodes: say nothing about it.
  template <typename Other>
  void add(const Other& /*argument*/) {}

  // `nameable`: cuMemcpyPeer has its form, and was not refused.
  [[nodiscard]] Route route(bool nameable);
  // Gives all that take part access to what is named; where it is not known who does, all GPUs that the program uses.
  // False: there is nobody to give it to. (True also where all had it: another thread may have been first.)
  [[nodiscard]] bool let_in();

 private:
  // Where memory that is named lies.
  struct End {
    CUdeviceptr pointer = 0;
    int device = -1;              // -1: on the host, or on whichever device uses it
    bool ours = false;            // nofrag's, or imported from another process
    CUcontext name = nullptr;     // null: it cannot be named by one
    CUcontext context = nullptr;  // whose default stream it is in order with
  };
  static constexpr int kEnds = 2;

  void resolve(End& end);
  void resolve_ends();
  void resolve_stream();
  [[nodiscard]] bool in_order_is_legal(const Route& route) const;

  const InsideNofrag inside_;
  const std::shared_lock<std::shared_mutex> lock_;
  const bool ordered_;
  const bool per_thread_;
  CUcontext current_ = nullptr;
  int here_ = -1;  // the device of the current context, primary or not
  bool stream_given_ = false;
  CUstream stream_ = nullptr;
  bool default_stream_;  // the legacy one: those of each thread have no order with other GPUs
  bool captured_ = false;
  bool array_ = false;  // whose device nobody tells
  bool context_given_ = false;
  std::vector<CUdeviceptr> imports_;
  std::uint64_t owners_ = 0;  // with memory of nofrag's that is named
  std::uint64_t places_ = 0;  // where memory that is named lies
  std::uint64_t users_ = 0;   // the same, and of the current context, the stream and the node
  End ends_[kEnds];
  int end_count_ = 0;  // beyond kEnds (batches) they are not kept
};

}  // namespace nofrag::preload
