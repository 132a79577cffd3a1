#include "trace/nvtx/nvtx_sink.h"

#include <algorithm>

#if NOFRAG_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>
#endif

namespace nofrag {

#if NOFRAG_HAVE_NVTX

namespace {

const void* pointer(std::uint64_t address) {
  return VirtAddr(address).pointer();
}

nvtxMemHeapHandle_t register_heap(nvtxDomainHandle_t domain,
                                  std::uint64_t address,
                                  std::uint64_t size) {
  nvtxMemVirtualRangeDesc_t range{};
  range.ptr = pointer(address);
  range.size = size;
  nvtxMemHeapDesc_t heap{};
  heap.extCompatID = NVTX_EXT_COMPATID_MEM;
  heap.structSize = sizeof heap;
  heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
  heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  heap.typeSpecificDescSize = sizeof range;
  heap.typeSpecificDesc = &range;
  return nvtxMemHeapRegister(domain, &heap);
}

void register_region(nvtxDomainHandle_t domain,
                     nvtxMemHeapHandle_t heap,
                     std::uint64_t address,
                     std::uint64_t size) {
  nvtxMemVirtualRangeDesc_t range{};
  range.ptr = pointer(address);
  range.size = size;
  nvtxMemRegionsRegisterBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof batch;
  batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  batch.heap = heap;
  batch.regionCount = 1;
  batch.regionDescElementSize = sizeof range;
  batch.regionDescElements = &range;
  nvtxMemRegionsRegister(domain, &batch);
}

void unregister_region(nvtxDomainHandle_t domain, std::uint64_t address) {
  nvtxMemRegionRef_t region{};
  region.pointer = pointer(address);
  nvtxMemRegionsUnregisterBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof batch;
  batch.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
  batch.refCount = 1;
  batch.refElementSize = sizeof region;
  batch.refElements = &region;
  nvtxMemRegionsUnregister(domain, &batch);
}

}  // namespace

bool NvtxSink::available() {
  return true;
}

NvtxSink::NvtxSink(bool memory) : memory_(memory), domain_(nvtxDomainCreateA("nofrag")) {}

void NvtxSink::on_work_begin(const char* name) {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  nvtxDomainRangePushEx(domain_, &range);
}

void NvtxSink::on_work_end() {
  nvtxDomainRangePop(domain_);
}

// The parts of a block, one a mapping: visit(heap, address, size).
template <typename Visitor>
void NvtxSink::for_each_part(std::uint64_t address, std::uint64_t size, Visitor&& visit) const {
  auto at = heaps_.upper_bound(address);
  if (at != heaps_.begin()) {
    --at;
  }
  for (; at != heaps_.end() && at->first < address + size; ++at) {
    const std::uint64_t from = std::max(address, at->first);
    const std::uint64_t to = std::min(address + size, at->first + at->second.size);
    if (from < to) {
      visit(at->second.handle, from, to - from);
    }
  }
}

void NvtxSink::add_block(std::uint64_t address, std::uint64_t size) {
  blocks_[address] = size;
  for_each_part(
      address, size, [this](nvtxMemHeapHandle_t heap, std::uint64_t from, std::uint64_t bytes) {
        register_region(domain_, heap, from, bytes);
      });
}

void NvtxSink::remove_block(std::uint64_t address) {
  const auto block = blocks_.find(address);
  if (block == blocks_.end()) {
    return;
  }
  for_each_part(
      address, block->second, [this](nvtxMemHeapHandle_t, std::uint64_t from, std::uint64_t) {
        unregister_region(domain_, from);
      });
  blocks_.erase(block);
}

void NvtxSink::add_mapping(std::uint64_t address, std::uint64_t size) {
  heaps_[address] = {size, register_heap(domain_, address, size)};
}

void NvtxSink::remove_mapping(std::uint64_t address) {
  if (const auto heap = heaps_.find(address); heap != heaps_.end()) {
    nvtxMemHeapUnregister(domain_, heap->second.handle);
    heaps_.erase(heap);
  }
}

void NvtxSink::on_event(const AllocatorEvent& event) {
  if (!memory_) {
    return;
  }
  const std::uint64_t address = event.address.value();
  const std::lock_guard lock(mutex_);
  switch (event.kind) {
    case EventKind::kAlloc:
    case EventKind::kExisting:
      add_block(address, event.requested.is_zero() ? event.size.count() : event.requested.count());
      break;
    case EventKind::kFreeRequested:
      remove_block(address);
      break;
    case EventKind::kMap:
      add_mapping(address, event.size.count());
      break;
    case EventKind::kUnmap:
      remove_mapping(address);
      break;
    default:
      break;
  }
}

#else

bool NvtxSink::available() {
  return false;
}
NvtxSink::NvtxSink(bool memory) : memory_(memory) {}
void NvtxSink::on_work_begin(const char* /*name*/) {}
void NvtxSink::on_work_end() {}
void NvtxSink::on_event(const AllocatorEvent& /*event*/) {}

#endif

}  // namespace nofrag
