// Across: copies that concern memory of nofrag's on a GPU other than the current one.
//
// What cuMemAlloc gives out is every GPU's to copy from and to, and a copy in the default stream is in order with the
// default streams of all GPUs that it concerns. Mapped memory has neither: it is refused (CUDA_ERROR_INVALID_VALUE, at
// once) to GPUs without access, and with access the order is lost. So such a copy is made in another way (measured by
// tests/gpu/preload/device_order.cu):
//   between two blocks             with the devices named (cuMemcpyPeer), which works on mapped memory and keeps the order
//   with the host, default stream  in the context of the memory's device, between events that keep the order
//   else, and while captured       as it is; where refused, the GPUs that take part get access to the memory, for good,
//                                  and it is called once more; in the default stream between such events
// (The default streams of each thread, where a program is built for them, have no such order.)
// Access comes last, because every mapping then costs 400 us more for each GPU (docs/driver.md). Sets of another GPU's
// memory are the driver's to refuse, or not once there is access; batches, graph nodes and copies in other streams have no such order to keep.
// Owns: nothing. Layer: preload. Threads: any. Failure: the driver's answer. Cost: one load a call in a process that
// uses one GPU, else about 0.1 us.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <string_view>
#include <type_traits>

#include "preload/devices.h"
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

// Is there anything to do here?
[[nodiscard]] bool may_carry();

// How a copy is to be made.
struct Route {
  enum class Way : unsigned char { kPlain, kBetween, kInside, kFenced };
  Way way = Way::kPlain;
  CUcontext to = nullptr;    // kBetween
  CUcontext from = nullptr;  // kBetween
  CUcontext home = nullptr;  // kInside: of the memory; kFenced: the current one
  std::uint64_t others = 0;  // kFenced: a bit a device whose default stream is to be in order
};

// What a copy concerns: where the memory that it names lies, and which GPUs must get at it.
class Reach {
 public:
  explicit Reach(bool per_thread);
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

  // `linear`: it is named by two addresses and nothing else.
  [[nodiscard]] Route route(bool linear) const;
  // True: somebody got access who had none.
  [[nodiscard]] bool let_in() const;

 private:
  // Where memory that is named lies.
  struct End {
    int device = -1;              // -1: on the host, or on whichever device uses it
    CUcontext context = nullptr;  // null: it cannot be named by one
  };
  static constexpr int kEnds = 2;

  [[nodiscard]] static End end_of_others(CUdeviceptr pointer);

  const InsideNofrag inside_;
  const std::shared_lock<std::shared_mutex> lock_;
  CUcontext current_ = nullptr;
  int here_ = -1;  // the device of the current context, primary or not
  bool per_thread_;
  bool default_stream_;  // the legacy one; those of each thread have no order with other GPUs
  bool captured_ = false;
  bool other_form_ = false;   // a node, a batch, an array: none that can be made elsewhere
  std::uint64_t owners_ = 0;  // a bit a device with memory of ours that is named
  std::uint64_t places_ = 0;  // the same, and where other memory that is named lies
  std::uint64_t users_ = 0;   // the same, and of the current context and the stream
  End ends_[kEnds];
  int end_count_ = 0;
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

// cuMemcpyPeer and cuMemcpyPeerAsync, of the program's kind of default streams.
[[nodiscard]] CUresult copy_between(
    const Route& route, bool per_thread, CUdeviceptr to, CUdeviceptr from, std::size_t size);
[[nodiscard]] CUresult copy_between(const Route& route,
                                    bool per_thread,
                                    CUdeviceptr to,
                                    CUdeviceptr from,
                                    std::size_t size,
                                    CUstream stream);

// Keeps the default streams of the GPUs that a copy concerns in order while it lives, and for kInside has the memory's
// context current.
class Fence {
 public:
  explicit Fence(const Route& route);
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;
  ~Fence();

 private:
  const InsideNofrag inside_;
  const Route route_;
  CUcontext current_ = nullptr;
  bool pushed_ = false;
};

constexpr bool is_per_thread(std::string_view symbol) {
  return symbol.ends_with("_ptds") || symbol.ends_with("_ptsz");
}

template <typename... Arguments>
struct Across {
  template <Entry entry, bool per_thread>
  static CUresult call(Arguments... arguments) {
    if (several_devices()) [[unlikely]] {
      return may_carry() ? carry<entry, per_thread>(false, arguments...)
                         : call_real(entry, arguments...);
    }
    const CUresult result = call_real(entry, arguments...);
    return result != CUDA_ERROR_INVALID_VALUE || !may_carry()
               ? result
               : carry<entry, per_thread>(true, arguments...);
  }

 private:
  // The forms that cuMemcpyPeer has.
  static constexpr bool kLinear =
      std::is_same_v<void(Arguments...), void(CUdeviceptr, CUdeviceptr, std::size_t)> ||
      std::is_same_v<void(Arguments...), void(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>;

  // `refused`: it was called as it is, and CUDA_ERROR_INVALID_VALUE was the answer.
  template <Entry entry, bool per_thread>
  [[gnu::noinline]] static CUresult carry(bool refused, Arguments... arguments) {
    const Route route = find_route<per_thread>(arguments...);
    if constexpr (kLinear) {
      if (route.way == Route::Way::kBetween) {
        return copy_between(route, per_thread, arguments...);
      }
    }
    const Fence fence(route);
    const CUresult result = refused && route.way == Route::Way::kPlain
                                ? CUDA_ERROR_INVALID_VALUE
                                : call_real(entry, arguments...);
    return result == CUDA_ERROR_INVALID_VALUE && let_in<per_thread>(arguments...)
               ? call_real(entry, arguments...)
               : result;
  }

  template <bool per_thread>
  static Route find_route(Arguments... arguments) {
    Reach reach(per_thread);
    collect(reach, arguments...);
    return reach.route(kLinear);
  }

  template <bool per_thread>
  static bool let_in(Arguments... arguments) {
    Reach reach(per_thread);
    collect(reach, arguments...);
    return reach.let_in();
  }
};

}  // namespace nofrag::preload
