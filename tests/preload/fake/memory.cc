// The fake's memory: plain and stream-ordered allocations, virtual memory, what is asked about pointers.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "fake.h"

using fake::driver;

namespace {

nofrag::DeviceOrdinal ordinal(int device) {
  return nofrag::DeviceOrdinal(device);
}

nofrag::VirtAddr address_of(CUdeviceptr pointer) {
  return nofrag::VirtAddr(std::uint64_t{pointer});
}

CUresult allocate(CUdeviceptr* pointer, std::size_t size, CUmemoryPool pool, bool graph) {
  fake::Context* const context = fake::current();
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (pointer == nullptr || size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto made = driver().sim->malloc(ordinal(context->device), nofrag::Bytes(size));
  if (!made.ok()) {
    return fake::result_of(made.error().code);
  }
  *pointer = made.value().value();
  driver().allocations[*pointer] = {size, context, pool, false, graph, 0, {}};
  return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr pointer) {
  const auto found = driver().allocations.find(pointer);
  if (found == driver().allocations.end() || found->second.opened != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = found->second.context->device;
  driver().allocations.erase(found);
  driver().busy.clear();
  return fake::result_of(driver().sim->free(ordinal(device), address_of(pointer)).code());
}

template <typename Map>
auto holding(Map& map, CUdeviceptr pointer) {
  auto found = map.upper_bound(pointer);
  if (found == map.begin()) {
    return map.end();
  }
  --found;
  return pointer - found->first < found->second.size ? found : map.end();
}

// As which device the current one sees these bytes: peer access is to allocations, and mapped memory has its own.
nofrag::DeviceOrdinal seen_as(CUdeviceptr pointer) {
  const int device = fake::current() != nullptr ? fake::current()->device : 0;
  const auto found = holding(driver().allocations, pointer);
  const bool theirs = found != driver().allocations.end() &&
                      driver().peers.contains({device, found->second.context->device});
  return ordinal(theirs ? found->second.context->device : device);
}

constexpr std::size_t kStep = 512;

// What a legacy IPC handle holds.
struct Shared {
  std::uint64_t size;
  std::uint64_t process;
  CUdeviceptr pointer;
  std::uint64_t tag;  // its contents when the handle was taken
};

std::size_t used_of(CUmemoryPool pool) {
  std::size_t used = 0;
  for (const auto& [pointer, allocation] : driver().allocations) {
    used += allocation.pool == pool ? allocation.size : 0;
  }
  return used;
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  FAKE_ENTRY("cuMemGetInfo_v2")
  const fake::Context* const context = fake::current();
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const nofrag::MemoryInfo info = driver().sim->memory_info(ordinal(context->device)).value();
  *free = info.free.count();
  *total = info.total.count();
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* pointer, std::size_t size) {
  FAKE_ENTRY("cuMemAlloc_v2")
  if (const CUresult unsafe = fake::unsafe_in_capture(); unsafe != CUDA_SUCCESS) {
    return unsafe;
  }
  return allocate(pointer, size, nullptr, false);
}

CUresult cuMemAllocPitch(CUdeviceptr* pointer,
                         std::size_t* pitch,
                         std::size_t width,
                         std::size_t height,
                         unsigned element) {
  FAKE_ENTRY("cuMemAllocPitch_v2")
  if (pitch == nullptr || width == 0 || height == 0 ||
      (element != 4 && element != 8 && element != 16)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *pitch = (width + 511) / 512 * 512;
  return allocate(pointer, *pitch * height, nullptr, false);
}

CUresult cuMemFree(CUdeviceptr pointer) {
  FAKE_ENTRY("cuMemFree_v2")
  if (const CUresult unsafe = fake::unsafe_in_capture(); unsafe != CUDA_SUCCESS) {
    return unsafe;
  }
  if (fake::current() == nullptr) {
    // Without any context, what outlived its own can be freed nevertheless, and what is unknown is told so.
    const auto found = driver().allocations.find(pointer);
    const bool unknown = found == driver().allocations.end() && pointer != 0;
    const bool answered = unknown || (pointer != 0 && found->second.outlived);
    const CUresult none = fake::no_context();
    return answered && none == CUDA_ERROR_INVALID_CONTEXT ? release(pointer) : none;
  }
  return pointer == 0 ? CUDA_SUCCESS : release(pointer);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer,
                                 std::size_t size,
                                 CUmemoryPool pool,
                                 CUstream stream) {
  FAKE_ENTRY("cuMemAllocFromPoolAsync")
  return allocate(pointer, size, pool, fake::is_capturing(stream));
}

CUresult cuMemAllocAsync(CUdeviceptr* pointer, std::size_t size, CUstream stream) {
  FAKE_ENTRY("cuMemAllocAsync")
  const int device = fake::current() != nullptr ? fake::current()->device : 0;
  return allocate(pointer,
                  size,
                  driver().current_pools[static_cast<std::size_t>(device)],
                  fake::is_capturing(stream));
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  FAKE_ENTRY("cuMemFreeAsync")
  if (fake::current() == nullptr) {
    return fake::no_context();
  }
  const auto found = driver().allocations.find(pointer);
  if (fake::is_capturing(stream) && (found == driver().allocations.end() || !found->second.graph)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return release(pointer);
}

CUresult cuMemAllocManaged(CUdeviceptr* pointer, std::size_t size, unsigned /*flags*/) {
  FAKE_ENTRY("cuMemAllocManaged")
  return allocate(pointer, size, nullptr, false);
}

// ---- contents: one byte value a range

CUresult cuMemsetD8(CUdeviceptr pointer, unsigned char value, std::size_t count) {
  FAKE_ENTRY("cuMemsetD8_v2")
  return fake::result_of(driver()
                             .sim
                             ->write(nofrag::StreamId(0),
                                     address_of(pointer),
                                     nofrag::Bytes(count),
                                     std::uint64_t{value} + 1,
                                     seen_as(pointer))
                             .code());
}

// ---- virtual memory

CUresult cuMemGetAllocationGranularity(std::size_t* size,
                                       const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags /*option*/) {
  *size = driver().sim->device_info(ordinal(properties->location.id)).value().granularity.count();
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle,
                     std::size_t size,
                     const CUmemAllocationProp* properties,
                     unsigned long long /*flags*/) {
  FAKE_ENTRY("cuMemCreate")
  const auto made = driver().sim->create(ordinal(properties->location.id), nofrag::Bytes(size));
  if (!made.ok()) {
    return fake::result_of(made.error().code);
  }
  const unsigned long long chosen = std::exchange(driver().next_handle, 0);
  *handle = chosen != 0 ? chosen : made.value().raw;
  const bool shareable =
      properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  driver().handles[*handle] = {1, properties->location.id, size, shareable, made.value().raw};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  FAKE_ENTRY("cuMemRelease")
  const auto found = driver().handles.find(handle);
  if (found == driver().handles.end() || found->second.references == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return --found->second.references > 0
             ? CUDA_SUCCESS
             : fake::result_of(
                   driver().sim->release(nofrag::HandleId{found->second.memory}).code());
}

CUresult cuMemAddressReserve(CUdeviceptr* pointer,
                             std::size_t size,
                             std::size_t alignment,
                             CUdeviceptr /*hint*/,
                             unsigned long long /*flags*/) {
  FAKE_ENTRY("cuMemAddressReserve")
  const auto made = driver().sim->reserve(nofrag::Bytes(size), nofrag::Bytes(alignment));
  if (!made.ok()) {
    return fake::result_of(made.error().code);
  }
  *pointer = made.value().value();
  driver().reservations[*pointer] = size;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, std::size_t size) {
  FAKE_ENTRY("cuMemAddressFree")
  driver().reservations.erase(pointer);
  return fake::result_of(driver().sim->free_range(address_of(pointer), nofrag::Bytes(size)).code());
}

CUresult cuMemMap(CUdeviceptr pointer,
                  std::size_t size,
                  std::size_t /*offset*/,
                  CUmemGenericAllocationHandle handle,
                  unsigned long long /*flags*/) {
  FAKE_ENTRY("cuMemMap")
  const auto found = driver().handles.find(handle);
  const nofrag::HandleId memory{found != driver().handles.end() ? found->second.memory : handle};
  const auto mapped = driver().sim->map(address_of(pointer), nofrag::Bytes(size), memory);
  if (mapped) {
    driver().mappings[pointer] = {size, handle};
  }
  return fake::result_of(mapped.code());
}

CUresult cuMemUnmap(CUdeviceptr pointer, std::size_t size) {
  FAKE_ENTRY("cuMemUnmap")
  const auto unmapped = driver().sim->unmap(address_of(pointer), nofrag::Bytes(size));
  if (unmapped) {
    driver().mappings.erase(driver().mappings.lower_bound(pointer),
                            driver().mappings.lower_bound(pointer + size));
  }
  return fake::result_of(unmapped.code());
}

CUresult cuMemSetAccess(CUdeviceptr pointer,
                        std::size_t size,
                        const CUmemAccessDesc* access,
                        std::size_t /*count*/) {
  FAKE_ENTRY("cuMemSetAccess")
  return fake::result_of(
      driver()
          .sim->set_access(address_of(pointer), nofrag::Bytes(size), ordinal(access->location.id))
          .code());
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  FAKE_ENTRY("cuMemRetainAllocationHandle")
  const auto found = holding(driver().mappings, nofrag::VirtAddr(address).value());
  if (found == driver().mappings.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handle = found->second.handle;
  ++driver().handles[*handle].references;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* out,
                                      CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType /*type*/,
                                      unsigned long long /*flags*/) {
  FAKE_ENTRY("cuMemExportToShareableHandle")
  const auto found = driver().handles.find(handle);
  if (found == driver().handles.end() || !found->second.shareable) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A shared file with what the memory holds now: a tag every 512 bytes.
  std::vector<std::uint64_t> tags(found->second.size / kStep);
  for (const auto& [pointer, mapping] : driver().mappings) {
    for (std::size_t i = 0; mapping.handle == handle && i < tags.size(); ++i) {
      const auto tag =
          driver().sim->read_tag(address_of(pointer + i * kStep), ordinal(found->second.device));
      tags[i] = tag.ok() ? tag.value() : 0;
    }
  }
  const int descriptor = ::memfd_create("fake-cuda", 0);
  const std::size_t size = tags.size() * sizeof tags[0];
  if (descriptor < 0 || ::pwrite(descriptor, tags.data(), size, 0) != static_cast<ssize_t>(size)) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  std::memcpy(out, &descriptor, sizeof descriptor);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                        void* shareable,
                                        CUmemAllocationHandleType /*type*/) {
  FAKE_ENTRY("cuMemImportFromShareableHandle")
  const auto descriptor = static_cast<int>(nofrag::VirtAddr(shareable).value());
  const auto bytes = ::lseek(descriptor, 0, SEEK_END);
  if (bytes <= 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<std::uint64_t> tags(static_cast<std::size_t>(bytes) / sizeof(std::uint64_t));
  if (::pread(descriptor, tags.data(), static_cast<std::size_t>(bytes), 0) != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::size_t size = tags.size() * kStep;
  const auto made = driver().sim->create(ordinal(0), nofrag::Bytes(size));
  if (!made.ok()) {
    return fake::result_of(made.error().code);
  }
  *handle = made.value().raw;
  driver().handles[*handle] = {1, 0, size, true, *handle};
  CUdeviceptr window = 0;
  CUmemAccessDesc access{};
  cuMemAddressReserve(&window, size, 0, 0, 0);
  cuMemMap(window, size, 0, *handle, 0);
  cuMemSetAccess(window, size, &access, 1);
  for (std::size_t i = 0, next = 0; i < tags.size(); i = next) {
    for (next = i; next < tags.size() && tags[next] == tags[i]; ++next) {
    }
    if (tags[i] != 0) {
      cuMemsetD8(window + i * kStep, static_cast<unsigned char>(tags[i] - 1), (next - i) * kStep);
    }
  }
  driver().sim->device_synchronize(ordinal(0)).ignore();
  cuMemUnmap(window, size);
  cuMemAddressFree(window, size);
  return CUDA_SUCCESS;
}

CUresult cuMemGetHandleForAddressRange(void* /*handle*/,
                                       CUdeviceptr /*pointer*/,
                                       std::size_t /*size*/,
                                       CUmemRangeHandleType /*type*/,
                                       unsigned long long /*flags*/) {
  FAKE_ENTRY("cuMemGetHandleForAddressRange")
  return CUDA_SUCCESS;
}

// ---- questions about pointers

CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* size, CUdeviceptr pointer) {
  FAKE_ENTRY("cuMemGetAddressRange_v2")
  CUdeviceptr start = 0;
  std::size_t bytes = 0;
  if (const auto found = holding(driver().allocations, pointer);
      found != driver().allocations.end()) {
    start = found->first;
    bytes = found->second.size;
  } else if (const auto mapped = holding(driver().mappings, pointer);
             mapped != driver().mappings.end()) {
    start = mapped->first;
    bytes = mapped->second.size;
  } else {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) {
    *base = start;
  }
  if (size != nullptr) {
    *size = bytes;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  FAKE_ENTRY("cuPointerGetAttribute")
  const auto plain = holding(driver().allocations, pointer);
  const auto mapped = holding(driver().mappings, pointer);
  const bool is_plain = plain != driver().allocations.end();
  if (!is_plain && mapped == driver().mappings.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto answer = [&](auto value) {
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return answer(is_plain ? plain->second.context : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer(unsigned{CU_MEMORYTYPE_DEVICE});
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return answer(pointer);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer(is_plain ? plain->second.context->device
                             : driver().handles[mapped->second.handle].device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer(is_plain ? plain->first : driver().reservations.begin()->first);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer(is_plain ? plain->second.size : driver().reservations.begin()->second);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer(is_plain && plain->second.pool == nullptr ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer(0U);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer(is_plain ? plain->second.pool : nullptr);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuPointerGetAttributes(unsigned count,
                                CUpointer_attribute* attributes,
                                void** data,
                                CUdeviceptr pointer) {
  FAKE_ENTRY("cuPointerGetAttributes")
  for (unsigned i = 0; i < count; ++i) {
    const bool wide = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
                      attributes[i] == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    std::memset(data[i], 0, wide ? 8 : 4);
    cuPointerGetAttribute(data[i], attributes[i], pointer);
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* /*value*/,
                               CUpointer_attribute /*attribute*/,
                               CUdeviceptr /*pointer*/) {
  FAKE_ENTRY("cuPointerSetAttribute")
  return CUDA_SUCCESS;
}

// ---- pools

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  *pool = fake::default_pool(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  const std::lock_guard<std::recursive_mutex> lock(driver().mutex);
  *pool = driver().current_pools[static_cast<std::size_t>(device)];
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  FAKE_ENTRY("cuDeviceSetMemPool")
  driver().current_pools[static_cast<std::size_t>(device)] = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* /*properties*/) {
  FAKE_ENTRY("cuMemPoolCreate")
  *pool = reinterpret_cast<CUmemoryPool>(new char);  // leaked
  driver().pools.insert(*pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  FAKE_ENTRY("cuMemPoolGetAttribute")
  if (driver().pools.count(pool) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool counts = attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
  const unsigned long long number =
      counts ? used_of(pool) : driver().pool_values[pool][static_cast<int>(attribute)];
  std::memcpy(value, &number, sizeof number);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  FAKE_ENTRY("cuMemPoolSetAttribute")
  std::memcpy(
      &driver().pool_values[pool][static_cast<int>(attribute)], value, sizeof(unsigned long long));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t /*keep*/) {
  FAKE_ENTRY("cuMemPoolTrimTo")
  return driver().pools.count(pool) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAccess(CUmemoryPool /*pool*/,
                            const CUmemAccessDesc* /*map*/,
                            std::size_t /*count*/) {
  FAKE_ENTRY("cuMemPoolSetAccess")
  return CUDA_SUCCESS;
}

// ---- legacy IPC, of plain allocations

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  FAKE_ENTRY("cuIpcGetMemHandle")
  const auto found = holding(driver().allocations, pointer);
  if (found == driver().allocations.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  driver().sim->device_synchronize(ordinal(found->second.context->device)).ignore();
  const auto tag =
      driver().sim->read_tag(address_of(pointer), ordinal(found->second.context->device));
  std::memset(handle, 0, sizeof *handle);
  const Shared shared{found->second.size,
                      static_cast<std::uint64_t>(::getpid()),
                      found->first,
                      tag.ok() ? tag.value() : 0};
  std::memcpy(handle, &shared, sizeof shared);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned /*flags*/) {
  FAKE_ENTRY("cuIpcOpenMemHandle_v2")
  if (fake::current() == nullptr) {
    return fake::no_context();
  }
  Shared shared{};
  std::memcpy(&shared, &handle, sizeof shared);
  if (shared.process == static_cast<std::uint64_t>(::getpid())) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const std::string shown(reinterpret_cast<const char*>(&handle), sizeof handle);
  for (auto& [at, allocation] : driver().allocations) {
    if (allocation.opened != 0 && allocation.context == fake::current() &&
        allocation.shown == shown) {
      ++allocation.opened;
      *pointer = at;
      return CUDA_SUCCESS;
    }
  }
  const CUresult result = allocate(pointer, shared.size, nullptr, false);
  if (result == CUDA_SUCCESS) {
    driver().allocations[*pointer].opened = 1;
    driver().allocations[*pointer].shown = shown;
    if (shared.tag != 0) {
      cuMemsetD8(*pointer, static_cast<unsigned char>(shared.tag - 1), shared.size);
      driver().sim->device_synchronize(ordinal(fake::current()->device)).ignore();
    }
  }
  return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
  FAKE_ENTRY("cuIpcCloseMemHandle")
  if (fake::current() == nullptr) {
    return fake::no_context();
  }
  const auto found = driver().allocations.find(pointer);
  if (found == driver().allocations.end() || found->second.opened == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return --found->second.opened != 0 ? CUDA_SUCCESS : release(pointer);
}

}  // extern "C"
