#include "preload/across.h"

#include <cstddef>

#include "preload/captures.h"
#include "preload/devices.h"

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
  return std::uint64_t{1} << device;
}

// Where memory of the driver's own lies; -1: on the host, or nowhere.
int device_of_memory(CUdeviceptr pointer) {
  unsigned type = 0;
  int device = -1;
  return real().pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) ==
                     CUDA_SUCCESS &&
                 type == CU_MEMORYTYPE_DEVICE &&
                 real().pointer_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) ==
                     CUDA_SUCCESS
             ? device
             : -1;
}

bool names_memory(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

template <typename Copy>
void add_ends(Reach& reach, const Copy* copy) {
  if (copy == nullptr) {
    return;
  }
  if (names_memory(copy->srcMemoryType)) {
    reach.add(copy->srcDevice);
  }
  if (names_memory(copy->dstMemoryType)) {
    reach.add(copy->dstDevice);
  }
}

}  // namespace

bool may_let_in() {
  return has_acted() && !InsideNofrag::here() && !Process::instance().exiting();
}

Reach::Reach() : lock_(gate()) {
  takes_part(current_device());
}

void Reach::takes_part(int device) {
  if (device >= 0 && device < Process::kMostDevices) {
    users_ |= bit(device);
  }
}

void Reach::add(CUdeviceptr pointer) {
  if (pointer == 0) {
    return;
  }
  if (const DeviceAllocator* const owner = owner_of(pointer); owner != nullptr) {
    owners_ |= bit(owner->device().value());
    takes_part(owner->device().value());
  } else {
    takes_part(device_of_memory(pointer));
  }
}

void Reach::add(CUstream stream) {
  if (!is_capturing(stream)) {  // else nothing may be asked of it
    takes_part(device_of_stream(stream));
  }
}

void Reach::add(CUcontext context) {
  takes_part(device_of(context));
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
  for (const BatchedCopy::End* end : {&copy.from, &copy.to}) {
    if (end->type == BatchedCopy::End::kPointer) {
      add(end->pointer);
    }
  }
}

bool Reach::let_in() {
  bool any = false;
  for (int owner = 0; owner < Process::kMostDevices; ++owner) {
    for (int user = 0; (owners_ & bit(owner)) != 0 && user < Process::kMostDevices; ++user) {
      if (user == owner || (users_ & bit(user)) == 0) {
        continue;
      }
      const Shared shared = share_with(owner, user);
      any = any || shared == Shared::kNew;
      if (shared == Shared::kRefused) {
        say_no_access(owner);
        pass_on(owner);
      }
    }
  }
  return any;
}

}  // namespace nofrag::preload
