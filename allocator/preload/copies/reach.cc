#include "preload/copies/reach.h"

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

template <typename Each>
void for_each_device(std::uint64_t devices, Each each) {
  for (int device = 0; devices != 0; ++device, devices >>= 1) {
    if ((devices & 1) != 0) {
      each(device);
    }
  }
}

// May something be put into the context's default stream? Not while one of its blocking streams is captured.
bool default_stream_is_free(CUcontext context) {
  if (real().context_push(context) != CUDA_SUCCESS) {
    return false;
  }
  const bool free = !is_capturing(CU_STREAM_LEGACY);
  CUcontext popped = nullptr;
  real().context_pop(&popped);
  return free;
}

}  // namespace

Reach::Reach(bool ordered, bool per_thread)
    : lock_(gate()), ordered_(ordered), per_thread_(per_thread), default_stream_(!per_thread) {
  if (real().context_current(&current_) == CUDA_SUCCESS && current_ != nullptr) {
    here_ = ordinal_of(current_);
  }
  users_ = bit(here_);
}

void Reach::add(CUdeviceptr pointer) {
  if (pointer == 0) {
    return;
  }
  End end;
  end.pointer = pointer;
  if (const DeviceAllocator* const owner = owner_of(pointer); owner != nullptr) {
    end.device = owner->device().value();
    end.ours = true;
    end.name = primary_of(end.device);
    owners_ |= bit(end.device);
  } else if (const ImportedRange range = imported_range(pointer); range.size != 0) {
    end.device = range.device;
    end.ours = true;
    imports_.push_back(pointer);
  }
  if (end_count_ < kEnds) {
    ends_[end_count_] = end;
  } else {
    resolve(end);
  }
  ++end_count_;
}

void Reach::add(CUstream stream) {
  stream_given_ = true;
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  stream_ = number == 0 && per_thread_ ? per_thread_stream() : stream;
  default_stream_ = stream_ != per_thread_stream() && number <= 2;
}

void Reach::add(CUcontext context) {
  context_given_ = true;
  users_ |= bit(ordinal_of(context));
}

void Reach::add(CUarray /*array*/) {
  array_ = true;
}

void Reach::add(const CUDA_MEMCPY2D* copy) {
  add_ends(*this, copy);
}

void Reach::add(const CUDA_MEMCPY3D* copy) {
  add_ends(*this, copy);
}

void Reach::add(const GraphNode* node) {
  if (node != nullptr && node->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    add(node->context);
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

void Reach::resolve(End& end) {
  if (!end.ours) {
    unsigned type = 0;
    unsigned managed = 0;
    int device = -1;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_CONTEXT};
    void* values[] = {&type, &managed, &device, static_cast<void*>(&end.name)};
    const bool known =
        real().pointer_attributes(4, attributes, values, end.pointer) == CUDA_SUCCESS;
    if (!known || type != CU_MEMORYTYPE_DEVICE || managed != 0) {
      end.name = nullptr;
      return;
    }
    end.device = device;
  }
  end.context = end.name != nullptr ? end.name : primary_of(end.device);
  places_ |= bit(end.device);
  users_ |= bit(end.device);
}

void Reach::resolve_ends() {
  for (End& end : ends_) {
    if (end.pointer != 0 && end.context == nullptr) {
      resolve(end);
    }
  }
}

void Reach::resolve_stream() {
  if (!stream_given_) {
    return;
  }
  captured_ = is_capturing(stream_);
  if (captured_) {  // nothing may be asked of it
    users_ |= bit(capture_device(stream_));
  } else if (!default_stream_) {
    CUcontext context = nullptr;
    if (stream_ != per_thread_stream() &&
        real().stream_context(stream_, &context) == CUDA_SUCCESS) {
      users_ |= bit(ordinal_of(context));
    }
  }
}

bool Reach::in_order_is_legal(const Route& route) const {
  if (!any_capture()) {
    return true;
  }
  for (const CUcontext context : {current_, route.others[0], route.others[1]}) {
    if (context != nullptr && !default_stream_is_free(context)) {
      return false;
    }
  }
  return true;
}

Route Reach::route(bool nameable) {
  Route route;
  if ((owners_ == 0 && imports_.empty()) || current_ == nullptr) {
    return route;
  }
  resolve_ends();
  if (places_ == bit(here_) && !array_) {
    return route;
  }
  resolve_stream();
  if (captured_) {
    return route;
  }
  const End& to = ends_[0];
  const End& from = ends_[1];
  if (nameable && end_count_ == kEnds && to.name != nullptr && from.name != nullptr) {
    return {Route::Way::kBetween, current_, to.name, from.name, {}};
  }
  if (!ordered_ || !default_stream_) {
    return route;
  }
  route.current = current_;
  int others = 0;
  bool at_home = false;
  for (const End& end : ends_) {
    at_home = at_home || end.context == current_;
    if (end.context != nullptr && end.context != current_ && end.context != route.others[0]) {
      route.others[others++] = end.context;
    }
  }
  if (others == 0 || !in_order_is_legal(route)) {
    return {};
  }
  route.way = others == 1 && !at_home && !array_ ? Route::Way::kInside : Route::Way::kFenced;
  return route;
}

bool Reach::let_in() {
  resolve_ends();
  resolve_stream();
  const bool node = !ordered_ && !stream_given_;
  const bool stream_unknown = captured_ && capture_device(stream_) < 0;
  if (array_ || stream_unknown || (node && !context_given_)) {
    users_ |= seen_devices();
  }
  bool any = false;
  for_each_device(owners_, [&](int owner) {
    for_each_device(users_ & ~bit(owner), [&](int user) {
      any = true;
      if (share_with(owner, user) == Shared::kRefused) {
        say_no_access(owner);
        pass_on(owner);
      }
    });
  });
  for (const CUdeviceptr pointer : imports_) {
    for_each_device(users_, [&](int user) { any = share_import(pointer, user) || any; });
  }
  return any;
}

}  // namespace nofrag::preload
