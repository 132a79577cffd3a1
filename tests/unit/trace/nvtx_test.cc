// What a tool hears of nofrag through NVTX: this program is the tool (NVTX's static injection).
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>

#include "device/device_allocator.h"
#include "driver/simulated/simulated_driver.h"
#include "trace/nvtx/nvtx_sink.h"

namespace nofrag {
namespace {

// Everything the tool was told, kept as a tool would.
struct Tool {
  std::map<std::uint64_t, std::uint64_t> heaps;    // sizes, by address
  std::map<std::uint64_t, std::uint64_t> regions;  // sizes, by address
  std::vector<std::string> ranges;                 // open ones
  std::map<std::string, int> seen;
  int wrong = 0;

  [[nodiscard]] bool inside_a_heap(std::uint64_t address, std::uint64_t size) const {
    auto at = heaps.upper_bound(address);
    return at != heaps.begin() && address + size <= std::prev(at)->first + std::prev(at)->second;
  }
};
Tool* tool = nullptr;

std::uint64_t number(const void* pointer) {
  return VirtAddr(pointer).value();
}

nvtxMemHeapHandle_t heap_register(nvtxDomainHandle_t, const nvtxMemHeapDesc_t* heap) {
  const auto* range = static_cast<const nvtxMemVirtualRangeDesc_t*>(heap->typeSpecificDesc);
  tool->wrong += tool->heaps.contains(number(range->ptr)) ? 1 : 0;
  tool->heaps[number(range->ptr)] = range->size;
  return static_cast<nvtxMemHeapHandle_t>(const_cast<void*>(range->ptr));
}
void heap_unregister(nvtxDomainHandle_t, nvtxMemHeapHandle_t heap) {
  const std::uint64_t address = number(heap);
  const auto at = tool->heaps.find(address);
  if (at == tool->heaps.end()) {
    ++tool->wrong;
    return;
  }
  const auto region = tool->regions.lower_bound(address);
  tool->wrong += region != tool->regions.end() && region->first < address + at->second ? 1 : 0;
  tool->heaps.erase(at);
}
void regions_register(nvtxDomainHandle_t, const nvtxMemRegionsRegisterBatch_t* batch) {
  const auto* range = static_cast<const nvtxMemVirtualRangeDesc_t*>(batch->regionDescElements);
  const std::uint64_t address = number(range->ptr);
  const bool known = tool->regions.contains(address);
  tool->wrong += known || !tool->inside_a_heap(address, range->size) ? 1 : 0;
  tool->regions[address] = range->size;
}
void regions_unregister(nvtxDomainHandle_t, const nvtxMemRegionsUnregisterBatch_t* batch) {
  tool->wrong += tool->regions.erase(number(batch->refElements->pointer)) == 1 ? 0 : 1;
}

template <typename Function>
void set_slot(const nvtxExtModuleSegment_t& segment, std::size_t id, Function function) {
  segment.functionSlots[id] = reinterpret_cast<std::intptr_t>(function);
}

int initialize_memory(nvtxExtModuleInfo_t* info) {
  for (std::size_t i = 0; i < info->segments[0].slotCount; ++i) {
    info->segments[0].functionSlots[i] = 0;
  }
  set_slot(info->segments[0], NVTX3EXT_CBID_nvtxMemHeapRegister, &heap_register);
  set_slot(info->segments[0], NVTX3EXT_CBID_nvtxMemHeapUnregister, &heap_unregister);
  set_slot(info->segments[0], NVTX3EXT_CBID_nvtxMemRegionsRegister, &regions_register);
  set_slot(info->segments[0], NVTX3EXT_CBID_nvtxMemRegionsUnregister, &regions_unregister);
  return 1;
}

int range_push(nvtxDomainHandle_t, const nvtxEventAttributes_t* range) {
  tool->ranges.emplace_back(range->message.ascii);
  ++tool->seen[range->message.ascii];
  return static_cast<int>(tool->ranges.size());
}
int range_pop(nvtxDomainHandle_t) {
  tool->wrong += tool->ranges.empty() ? 1 : 0;
  tool->ranges.pop_back();
  return 0;
}

int initialize_core(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) {
    return 0;
  }
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&range_push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&range_pop);
  return 1;
}

class NvtxTest : public testing::Test {
 protected:
  NvtxTest() {
    tool = &heard_;
    // Where NVTX looks, at its first call, for a tool in the program itself.
    InitializeInjectionNvtxExtension_fnptr = &initialize_memory;
    InitializeInjectionNvtx2_fnptr = &initialize_core;
    start(Backend::kAuto);
  }
  ~NvtxTest() override {
    allocator_->set_event_sink(nullptr);
    tool = nullptr;
  }

  void start(Backend backend) {
    SimulatedDeviceSpec spec;
    spec.info.total_memory = kGiB;
    allocator_.reset();
    driver_ = std::make_unique<SimulatedDriver>(spec);
    driver_->set_stream_lag_us(0);
    Options options;
    options.guard = Bytes(512);
    options.backend = backend;
    allocator_ = std::move(DeviceAllocator::create(*driver_, DeviceOrdinal(0), options).value());
  }

  Tool heard_;
  std::unique_ptr<SimulatedDriver> driver_;
  std::unique_ptr<DeviceAllocator> allocator_;
};

TEST_F(NvtxTest, RegionsAreTheBlocksInTheirMappings) {
  ASSERT_TRUE(NvtxSink::available());
  NvtxSink sink(true);
  allocator_->set_event_sink(&sink);
  const VirtAddr small = allocator_->allocate(Bytes(1000), StreamId(0)).value();
  const VirtAddr next = allocator_->allocate(Bytes(1000), StreamId(0)).value();
  EXPECT_EQ(heard_.regions.at(small.value()), 1000U) << "what was asked for, and no more";
  EXPECT_GE(next.value() - small.value(), 1000U + 512U) << "nobody's bytes between two blocks";
  // Over several mappings: a region in each, which together are the block.
  const VirtAddr large = allocator_->allocate(200 * kMiB, StreamId(0)).value();
  std::uint64_t at = large.value();
  int parts = 0;
  for (auto part = heard_.regions.find(at); part != heard_.regions.end() && part->first == at;
       ++part) {
    at += part->second;
    ++parts;
  }
  EXPECT_EQ(at, large.value() + (200 * kMiB).count());
  EXPECT_GT(parts, 1);
  for (const VirtAddr block : {small, large, next}) {
    EXPECT_TRUE(allocator_->free(block).ok());
  }
  EXPECT_TRUE(heard_.regions.empty());
  EXPECT_FALSE(heard_.heaps.empty());
  allocator_->trim();
  EXPECT_TRUE(heard_.heaps.empty());
  EXPECT_EQ(heard_.wrong, 0);
}

TEST_F(NvtxTest, WhateverTheLayoutTheToolIsNotContradicted) {
  NvtxSink sink(true);
  allocator_->set_event_sink(&sink);
  std::uint64_t random = 12345;
  const auto next = [&random] {
    return random = random * 6364136223846793005U + 1442695040888963407U;
  };
  std::vector<VirtAddr> live;
  for (int i = 0; i < 3000; ++i) {
    const Bytes size(1 + (next() >> 20) % (std::uint64_t{4096} << (next() >> 33) % 16));
    const Result<VirtAddr> block = allocator_->allocate(size, StreamId((next() >> 40) % 2 * 0x100));
    if (block.ok()) {
      live.push_back(block.value());
    }
    while (!block.ok() || live.size() > 60) {
      if (live.empty()) {
        break;
      }
      std::swap(live.back(), live[(next() >> 30) % live.size()]);
      ASSERT_TRUE(allocator_->free(live.back()).ok());
      live.pop_back();
      if (live.size() < 30) {
        break;
      }
    }
    ASSERT_EQ(heard_.wrong, 0) << "step " << i;
  }
  EXPECT_GT(heard_.seen["nofrag: create"], 0);
  EXPECT_TRUE(heard_.ranges.empty()) << "every range was closed";
  for (const VirtAddr block : live) {
    ASSERT_TRUE(allocator_->free(block).ok());
  }
  EXPECT_TRUE(heard_.regions.empty());
  EXPECT_EQ(heard_.wrong, 0);
}

// compute-sanitizer takes whole allocations of the driver for heaps, and no part of one.
TEST_F(NvtxTest, OnThePlainBackendEachBlockIsARegionOfItsOwnAllocation) {
  start(Backend::kPlain);
  NvtxSink sink(true);
  allocator_->set_event_sink(&sink);
  std::vector<VirtAddr> live;
  for (const std::uint64_t size : {1000U, 512U, 3U << 20U, 1U}) {
    const VirtAddr block = allocator_->allocate(Bytes(size), StreamId(0)).value();
    EXPECT_EQ(heard_.regions.at(block.value()), size);
    EXPECT_EQ(heard_.heaps.at(block.value()), round_up(Bytes(size + 512), Bytes(512)).count());
    live.push_back(block);
  }
  // The driver refuses to free one: it is still there, and goes later.
  driver_->fail_call(DriverCall::kFree, 1, Errc::kDriverFailure);
  EXPECT_TRUE(allocator_->free(live[0]).ok());
  EXPECT_EQ(heard_.regions.size(), 3U);
  EXPECT_EQ(heard_.heaps.size(), 4U);
  for (const VirtAddr block : {live[1], live[2], live[3]}) {
    EXPECT_TRUE(allocator_->free(block).ok());
  }
  allocator_->trim();
  EXPECT_TRUE(heard_.regions.empty());
  EXPECT_TRUE(heard_.heaps.empty());
  EXPECT_EQ(heard_.wrong, 0);
}

TEST_F(NvtxTest, WithRangesAloneNoMemoryIsNamed) {
  NvtxSink sink(false);
  allocator_->set_event_sink(&sink);
  ASSERT_TRUE(allocator_->allocate(200 * kMiB, StreamId(0)).ok());
  EXPECT_TRUE(heard_.heaps.empty());
  EXPECT_TRUE(heard_.regions.empty());
  EXPECT_GT(heard_.seen["nofrag: create"], 0);
}

}  // namespace
}  // namespace nofrag
