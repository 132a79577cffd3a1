#include "preload/across.h"

#include <cstddef>

#include "preload/captures.h"
#include "preload/ipc/imports.h"
#include "preload/memory.h"

namespace nofrag::preload {

#if CUDA_VERSION >= 12080
static_assert(offsetof(GraphNode, context) == offsetof(CUgraphNodeParams, memcpy.copyCtx) &&
              offsetof(GraphNode, copy) == offsetof(CUgraphNodeParams, memcpy.copyParams));
static_assert(offsetof(BatchedCopy, from.pointer) ==
                  offsetof(CUDA_MEMCPY3D_BATCH_OP, src.op.ptr.ptr) &&
              offsetof(BatchedCopy, to.pointer) ==
                  offsetof(CUDA_MEMCPY3D_BATCH_OP, dst.op.ptr.ptr) &&
              sizeof(BatchedCopy) == sizeof(CUDA_MEMCPY3D_BATCH_OP) &&
              static_cast<int>(BatchedCopy::End::kPointer) ==
                  static_cast<int>(CU_MEMCPY_OPERAND_TYPE_POINTER));
#endif

namespace {

std::uint64_t bit(int device) {
  return device >= 0 && device < Process::kMostDevices ? std::uint64_t{1} << device : 0;
}

template <typename Copy>
void add_ends(Reach& reach, const Copy* copy) {
  if (copy == nullptr) {
    return;
  }
  const auto add = [&](CUmemorytype type, CUdeviceptr memory, CUarray array) {
    if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED) {
      reach.add(memory);
    } else if (type == CU_MEMORYTYPE_ARRAY) {
      reach.add(array);
    }
  };
  add(copy->dstMemoryType, copy->dstDevice, copy->dstArray);
  add(copy->srcMemoryType, copy->srcDevice, copy->srcArray);
}

// What `first`'s default stream has been given comes before what that of `then` is given from now on.
void order(CUcontext first, CUcontext then) {
  const CUstream stream = CU_STREAM_LEGACY;
  bool good = false;
  CUcontext popped = nullptr;
  CUevent event = nullptr;
  if (real().context_push(first) == CUDA_SUCCESS) {
    good = real().event_create(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
           real().event_record(event, stream) == CUDA_SUCCESS;
    real().context_pop(&popped);
  }
  if (good && real().context_push(then) == CUDA_SUCCESS) {
    good = real().stream_wait_event(stream, event, 0) == CUDA_SUCCESS;
    real().context_pop(&popped);
  }
  if (event != nullptr) {
    real().event_destroy(event);  // once it has happened
  }
  if (!good && real().context_push(first) == CUDA_SUCCESS) {
    static_cast<void>(real().context_synchronize());
    real().context_pop(&popped);
  }
}

template <typename Each>
void for_each_device(std::uint64_t devices, Each each) {
  for (int device = 0; devices != 0; ++device, devices >>= 1) {
    if ((devices & 1) != 0) {
      each(device);
    }
  }
}

}  // namespace

bool may_carry() {
  return has_acted() && !InsideNofrag::here() && !Process::instance().exiting();
}

Reach::Reach(bool per_thread)
    : lock_(gate()), per_thread_(per_thread), default_stream_(!per_thread) {
  if (real().context_current(&current_) == CUDA_SUCCESS && current_ != nullptr) {
    static_cast<void>(device_of(current_));  // notes that it is in use
    static_cast<void>(real().context_device(&here_));
  }
  users_ = bit(here_);
}

Reach::End Reach::end_of_others(CUdeviceptr pointer) {
  if (const ImportedRange range = imported_range(pointer); range.size != 0) {
    return {range.device, nullptr};
  }
  unsigned type = 0;
  unsigned managed = 0;
  End end;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      CU_POINTER_ATTRIBUTE_CONTEXT};
  void* values[] = {&type, &managed, &end.device, &end.context};
  const bool known = real().pointer_attributes(4, attributes, values, pointer) == CUDA_SUCCESS;
  return known && type == CU_MEMORYTYPE_DEVICE && managed == 0 ? end : End{};
}

void Reach::add(CUdeviceptr pointer) {
  if (pointer == 0) {
    return;
  }
  const DeviceAllocator* const owner = owner_of(pointer);
  End end;
  if (owner != nullptr) {
    end = {owner->device().value(), primary_of(owner->device().value())};
    owners_ |= bit(end.device);
  } else {
    end = end_of_others(pointer);
  }
  places_ |= bit(end.device);
  users_ |= bit(end.device);
  if (end_count_ < kEnds) {
    ends_[end_count_] = end;
  }
  ++end_count_;
}

void Reach::add(CUstream stream) {
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  const CUstream meant = number == 0 && per_thread_ ? per_thread_stream() : stream;
  default_stream_ = meant != per_thread_stream() && number <= 2;
  captured_ = places_ != bit(here_) && is_capturing(meant);
  if (!default_stream_ && !captured_) {  // else nothing may be asked of it
    users_ |= bit(device_of_stream(meant));
  }
}

void Reach::add(CUcontext context) {
  other_form_ = true;
  users_ |= bit(device_of(context));
}

void Reach::add(CUarray /*array*/) {
  other_form_ = true;
}

void Reach::add(const CUDA_MEMCPY2D* copy) {
  add_ends(*this, copy);
}

void Reach::add(const CUDA_MEMCPY3D* copy) {
  add_ends(*this, copy);
}

void Reach::add(const GraphNode* node) {
  other_form_ = true;
  default_stream_ = false;
  if (node != nullptr && node->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    users_ |= bit(device_of(node->context));
    add(&node->copy);
  }
}

void Reach::add(const BatchedCopy& copy) {
  for (const BatchedCopy::End* end : {&copy.to, &copy.from}) {
    if (end->type == BatchedCopy::End::kPointer) {
      add(end->pointer);
    }
  }
}

Route Reach::route(bool linear) const {
  Route route;
  if (owners_ == 0 || current_ == nullptr || places_ == bit(here_) || captured_) {
    return route;
  }
  const End& to = ends_[0];
  const End& from = ends_[1];
  if (linear && end_count_ == kEnds && to.context != nullptr && from.context != nullptr) {
    return {Route::Way::kBetween, to.context, from.context, nullptr, 0};
  }
  if (!default_stream_ || any_capture()) {
    return route;
  }
  if (places_ == owners_ && (places_ & (places_ - 1)) == 0 && !other_form_) {
    route.way = Route::Way::kInside;
    for_each_device(places_, [&](int device) { route.home = primary_of(device); });
    return route.home != nullptr ? route : Route{};
  }
  route.way = Route::Way::kFenced;
  route.home = current_;
  route.others = places_ & ~bit(here_);
  return route;
}

bool Reach::let_in() const {
  bool any = false;
  for_each_device(owners_, [&](int owner) {
    for_each_device(users_ & ~bit(owner), [&](int user) {
      const Shared shared = share_with(owner, user);
      any = any || shared == Shared::kNew;
      if (shared == Shared::kRefused) {
        say_no_access(owner);
        pass_on(owner);
      }
    });
  });
  return any;
}

CUresult copy_between(
    const Route& route, bool per_thread, CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return (per_thread ? real().copy_peer_ptds : real().copy_peer)(
      to, route.to, from, route.from, size);
}

CUresult copy_between(const Route& route,
                      bool per_thread,
                      CUdeviceptr to,
                      CUdeviceptr from,
                      std::size_t size,
                      CUstream stream) {
  return (per_thread ? real().copy_peer_async_ptsz : real().copy_peer_async)(
      to, route.to, from, route.from, size, stream);
}

Fence::Fence(const Route& route) : route_(route) {
  if (route_.way == Route::Way::kInside) {
    static_cast<void>(real().context_current(&current_));
    order(current_, route_.home);
    pushed_ = real().context_push(route_.home) == CUDA_SUCCESS;
  } else if (route_.way == Route::Way::kFenced) {
    for_each_device(route_.others, [&](int device) { order(primary_of(device), route_.home); });
  }
}

Fence::~Fence() {
  if (pushed_) {
    CUcontext popped = nullptr;
    real().context_pop(&popped);
    order(route_.home, current_);
  } else if (route_.way == Route::Way::kFenced) {
    for_each_device(route_.others, [&](int device) { order(route_.home, primary_of(device)); });
  }
}

}  // namespace nofrag::preload
