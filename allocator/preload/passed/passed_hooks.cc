// Entries that take device memory past nofrag, and those that end it: passed on, and counted.
#include "preload/entries.h"
#include "preload/hooks.h"
#include "preload/passed/passed.h"
#include "preload/retry.h"

namespace nofrag::preload {
namespace {

std::uint64_t key_of(const void* handle) {
  return VirtAddr(handle).value();
}

// Bytes of one number of a channel; 0: a format of pictures, whose planes and blocks are packed.
std::uint64_t bytes_of(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

// Saturating: what is too large for memory the driver has refused.
std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? 0 : product;
}

std::uint64_t at_least_one(std::uint64_t count) {
  return count == 0 ? 1 : count;
}

std::uint64_t size_of(const CUDA_ARRAY3D_DESCRIPTOR& array) {
  const std::uint64_t elements = times(times(at_least_one(array.Width), at_least_one(array.Height)),
                                       at_least_one(array.Depth));
  return times(elements, times(bytes_of(array.Format), array.NumChannels));
}

// All levels, each half as wide, high and (unless its depth counts layers) deep as the one before.
std::uint64_t size_of_levels(CUDA_ARRAY3D_DESCRIPTOR array, unsigned levels) {
  constexpr unsigned kLayers = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP;
  constexpr unsigned kMostLevels = 64;
  std::uint64_t size = 0;
  for (unsigned level = 0; level < levels && level < kMostLevels; ++level) {
    size += size_of(array);
    const bool last =
        array.Width <= 1 && array.Height <= 1 && (array.Depth <= 1 || (array.Flags & kLayers) != 0);
    if (last) {
      break;
    }
    array.Width = array.Width > 1 ? array.Width / 2 : array.Width;
    array.Height = array.Height > 1 ? array.Height / 2 : array.Height;
    if ((array.Flags & kLayers) == 0) {
      array.Depth = array.Depth > 1 ? array.Depth / 2 : array.Depth;
    }
  }
  return size;
}

// Memory is mapped into these later, and is counted where it is created.
bool has_no_memory(const CUDA_ARRAY3D_DESCRIPTOR& array) {
  return (array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
}

}  // namespace

CUresult hook_cuMemCreate(unsigned long long* handle,
                          size_t size,
                          const void* properties,
                          unsigned long long flags) {
  const CUresult result = Retry<unsigned long long*, size_t, const void*, unsigned long long>::call<
      Entry::k_cuMemCreate>(handle, size, properties, flags);
  if (result == CUDA_SUCCESS && counts_passed()) {
    const auto& asked = *static_cast<const CUmemAllocationProp*>(properties);
    if (asked.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      note_created(*handle, size, asked.location.id);
    }
  }
  return result;
}

CUresult hook_cuMemRelease(unsigned long long handle) {
  const std::uint64_t number = created_number(handle);
  const CUresult result = call_real(Entry::k_cuMemRelease, handle);
  if (number != 0 && result == CUDA_SUCCESS) {
    note_released(handle, number);
  }
  return result;
}

CUresult hook_cuMemMap(CUdeviceptr pointer,
                       size_t size,
                       size_t offset,
                       unsigned long long handle,
                       unsigned long long flags) {
  const CUresult result = call_real(Entry::k_cuMemMap, pointer, size, offset, handle, flags);
  if (result == CUDA_SUCCESS) {
    note_mapped(pointer, size, handle);
  }
  return result;
}

CUresult hook_cuMemUnmap(CUdeviceptr pointer, size_t size) {
  const CUresult result = call_real(Entry::k_cuMemUnmap, pointer, size);
  if (result == CUDA_SUCCESS) {
    note_unmapped(pointer, size);
  }
  return result;
}

CUresult hook_cuMemAllocManaged(CUdeviceptr* pointer, size_t size, unsigned flags) {
  const CUresult result =
      Retry<CUdeviceptr*, size_t, unsigned>::call<Entry::k_cuMemAllocManaged>(pointer, size, flags);
  if (result == CUDA_SUCCESS && counts_passed()) {
    note_block(*pointer, size, PassedOnKind::kManaged);
  }
  return result;
}

CUresult hook_cuArrayCreate_v2(void** array, const void* descriptor) {
  const CUresult result =
      Retry<void**, const void*>::call<Entry::k_cuArrayCreate_v2>(array, descriptor);
  if (result == CUDA_SUCCESS && counts_passed()) {
    const auto& flat = *static_cast<const CUDA_ARRAY_DESCRIPTOR*>(descriptor);
    note_block(key_of(*array),
               size_of({flat.Width, flat.Height, 0, flat.Format, flat.NumChannels, 0}),
               PassedOnKind::kArrays);
  }
  return result;
}

CUresult hook_cuArray3DCreate_v2(void** array, const void* descriptor) {
  const CUresult result =
      Retry<void**, const void*>::call<Entry::k_cuArray3DCreate_v2>(array, descriptor);
  if (result == CUDA_SUCCESS && counts_passed()) {
    const auto& asked = *static_cast<const CUDA_ARRAY3D_DESCRIPTOR*>(descriptor);
    if (!has_no_memory(asked)) {
      note_block(key_of(*array), size_of(asked), PassedOnKind::kArrays);
    }
  }
  return result;
}

CUresult hook_cuMipmappedArrayCreate(void** array, const void* descriptor, unsigned levels) {
  const CUresult result =
      Retry<void**, const void*, unsigned>::call<Entry::k_cuMipmappedArrayCreate>(
          array, descriptor, levels);
  if (result == CUDA_SUCCESS && counts_passed()) {
    const auto& asked = *static_cast<const CUDA_ARRAY3D_DESCRIPTOR*>(descriptor);
    if (!has_no_memory(asked)) {
      note_block(key_of(*array), size_of_levels(asked, levels), PassedOnKind::kArrays);
    }
  }
  return result;
}

CUresult hook_cuArrayDestroy(void* array) {
  return freeing(key_of(array), [&] { return call_real(Entry::k_cuArrayDestroy, array); });
}

CUresult hook_cuMipmappedArrayDestroy(void* array) {
  return freeing(key_of(array), [&] { return call_real(Entry::k_cuMipmappedArrayDestroy, array); });
}

}  // namespace nofrag::preload
