// Across: copies that concern memory of nofrag's on a GPU other than the current one.
//
// What cuMemAlloc gives out is every GPU's to copy from and to, and a copy in the legacy default stream is in order with
// the default streams of all GPUs that it concerns. Mapped memory has neither: it is refused (CUDA_ERROR_INVALID_VALUE,
// at once) to GPUs without access, and with access that order is lost. So such a copy is made in another way (measured by
// tests/gpu/preload/device_order.cu; docs/decisions/0007-preload.md):
//   between two blocks             with the devices named (cuMemcpyPeer), which works on mapped memory and keeps the order
//   with the host, default stream  in the context of the memory's device, between events that keep the order
//   else in the default stream     as it is, between such events
//   else, and while captured       as it is
// Where it is refused all the same, the GPUs that take part get access to the memory, for good, and it is called once
// more. Access comes last, because every mapping then costs 400 us more for each GPU (docs/driver.md).
// Owns: nothing. Layer: preload. Threads: any. Failure: the driver's answer, of the last call if there were several.
// Cost: one load a call in a process that uses one GPU, else that of Reach.
#pragma once

#include <type_traits>

#include "preload/copies/fence.h"
#include "preload/copies/reach.h"
#include "preload/entries.h"

namespace nofrag::preload {

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

// cuMemcpy3DBatchAsync, of which `rest` ends with the flags, an integer as addresses are, and the stream.
template <typename... Rest>
void collect(Reach& reach, std::size_t count, const BatchedCopy* copies, Rest... rest) {
  for (std::size_t i = 0; copies != nullptr && i < count; ++i) {
    reach.add(copies[i]);
  }
  const auto add_stream = [&](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), CUstream>) {
      reach.add(argument);
    }
  };
  (add_stream(rest), ...);
}

inline CUresult copy_between(
    const Route& route, bool per_thread, CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  const auto call = per_thread ? real().copy_peer_ptds : real().copy_peer;
  return call(to, route.to, from, route.from, size);
}
inline CUresult copy_between(const Route& route,
                             bool per_thread,
                             CUdeviceptr to,
                             CUdeviceptr from,
                             std::size_t size,
                             CUstream stream) {
  const auto call = per_thread ? real().copy_peer_async_ptsz : real().copy_peer_async;
  return call(to, route.to, from, route.from, size, stream);
}

template <typename... Arguments>
struct Across {
  template <Entry entry, bool ordered, bool per_thread>
  static CUresult call(Arguments... arguments) {
    if (several_devices()) [[unlikely]] {
      return carry<entry, ordered, per_thread>(false, arguments...);
    }
    const CUresult result = call_real(entry, arguments...);
    return result != CUDA_ERROR_INVALID_VALUE
               ? result
               : carry<entry, ordered, per_thread>(true, arguments...);
  }

 private:
  // The forms that cuMemcpyPeer has.
  static constexpr bool kNameable =
      std::is_same_v<void(Arguments...), void(CUdeviceptr, CUdeviceptr, std::size_t)> ||
      std::is_same_v<void(Arguments...), void(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>;

  // `refused`: it was called as it is, and CUDA_ERROR_INVALID_VALUE was the answer.
  template <Entry entry, bool ordered, bool per_thread>
  [[gnu::noinline]] static CUresult carry(bool refused, Arguments... arguments) {
    if (!has_acted()) {
      return refused ? CUDA_ERROR_INVALID_VALUE : call_real(entry, arguments...);
    }
    const auto find_route = [&](bool nameable) {
      Reach reach(ordered, per_thread);
      collect(reach, arguments...);
      return reach.route(nameable);
    };
    Route route = find_route(kNameable);
    if constexpr (kNameable) {
      if (route.way == Route::Way::kBetween) {
        const CUresult result = copy_between(route, per_thread, arguments...);
        if (result != CUDA_ERROR_INVALID_VALUE) {
          return result;
        }
        route = find_route(false);
      }
    }
    const Fence fence(route);
    const CUresult result = refused && route.way == Route::Way::kPlain
                                ? CUDA_ERROR_INVALID_VALUE
                                : call_real(entry, arguments...);
    if (result != CUDA_ERROR_INVALID_VALUE) {
      return result;
    }
    const bool let_in = [&] {
      Reach reach(ordered, per_thread);
      collect(reach, arguments...);
      return reach.let_in();
    }();
    return let_in ? call_real(entry, arguments...) : result;
  }
};

}  // namespace nofrag::preload
