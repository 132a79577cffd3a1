// The fake's arrays: memory of the simulated device with a handle of its own. An array's size is what a test says by
// its width (in bytes: tests use one channel of one byte), but for arrays that memory is mapped into later.
#include "fake.h"

using fake::driver;

namespace {

struct Array {
  nofrag::VirtAddr address;
  int device = 0;
  bool alive = true;
};

CUresult make(void** array, std::size_t bytes, unsigned flags) {
  const fake::Context* const context = fake::current();
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  auto* const made = new Array;  // leaked: handles stay comparable
  made->device = context->device;
  if ((flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0) {
    const auto memory =
        driver().sim->malloc(nofrag::DeviceOrdinal(context->device), nofrag::Bytes(bytes));
    if (!memory.ok()) {
      delete made;
      return fake::result_of(memory.error().code);
    }
    made->address = memory.value();
  }
  *array = made;
  return CUDA_SUCCESS;
}

CUresult destroy(void* handle) {
  auto* const array = static_cast<Array*>(handle);
  if (array == nullptr || !array->alive) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  array->alive = false;
  return array->address.value() == 0
             ? CUDA_SUCCESS
             : fake::result_of(
                   driver().sim->free(nofrag::DeviceOrdinal(array->device), array->address).code());
}

std::size_t at_least_one(std::size_t count) {
  return count == 0 ? 1 : count;
}

std::size_t elements(const CUDA_ARRAY3D_DESCRIPTOR& array) {
  return at_least_one(array.Width) * at_least_one(array.Height) * at_least_one(array.Depth);
}

}  // namespace

extern "C" {

CUresult cuArrayCreate(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  FAKE_ENTRY("cuArrayCreate_v2")
  return make(
      reinterpret_cast<void**>(array), descriptor->Width * at_least_one(descriptor->Height), 0);
}

CUresult cuArray3DCreate(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  FAKE_ENTRY("cuArray3DCreate_v2")
  return make(reinterpret_cast<void**>(array), elements(*descriptor), descriptor->Flags);
}

// (As much as its first level.)
CUresult cuMipmappedArrayCreate(CUmipmappedArray* array,
                                const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                unsigned /*levels*/) {
  FAKE_ENTRY("cuMipmappedArrayCreate")
  return make(reinterpret_cast<void**>(array), elements(*descriptor), descriptor->Flags);
}

CUresult cuArrayDestroy(CUarray array) {
  FAKE_ENTRY("cuArrayDestroy")
  return destroy(array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  FAKE_ENTRY("cuMipmappedArrayDestroy")
  return destroy(array);
}

}  // extern "C"
