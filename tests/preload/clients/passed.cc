// Memory that a program takes from the driver past nofrag, as nofrag's statistics tell of it: usage: passed NAME.
// Exit 0: it held. Numbers are those of the JSON; what the fake device has in use must be explained by them.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <nofrag/nofrag.h>

#include "api.h"
#include "preload/passed/bounded_table.h"

#define EXPECT(condition)                                          \
  do {                                                             \
    if (!(condition)) {                                            \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      std::exit(1);                                                \
    }                                                              \
  } while (false)
#define GOOD(call) EXPECT((call) == CUDA_SUCCESS)

namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;
constexpr std::size_t kPart = 4 * kMib;
using Handle = CUmemGenericAllocationHandle;

api cu;
CUcontext context;
void* driver_library;

// By the names that the header's macros stand for, through whatever stands before the driver.
template <typename Function>
Function entry(const char* name, Function /*declared*/) {
  void* const found = way_named(usual_way())(name);
  return reinterpret_cast<Function>(found != nullptr ? found : dlsym(driver_library, name));
}
#define ENTRY(symbol, function) entry(symbol, &function)

std::string statistics() {
  const auto json =
      reinterpret_cast<decltype(&nofrag_stats_json)>(dlsym(RTLD_DEFAULT, "nofrag_stats_json"));
  EXPECT(json != nullptr);
  std::vector<char> text(1 << 20);
  EXPECT(json(text.data(), text.size(), nullptr) == NOFRAG_OK);
  return text.data();
}

// Of the first device; 0 where nothing was ever passed on.
unsigned long long number(const std::string& key, const char* list = "\"passed_on\"") {
  const std::string text = statistics();
  const std::size_t from = text.find(list);
  const std::size_t at = from == std::string::npos ? from : text.find("\"" + key + "\"", from);
  return at == std::string::npos
             ? 0
             : std::strtoull(text.c_str() + text.find(':', at) + 1, nullptr, 10);
}

// The device has in use what nofrag holds and what passed it by, and nothing else.
bool all_explained() {
  const auto in_use = reinterpret_cast<unsigned long long (*)(int)>(
      dlsym(driver_library, "fake_cuda_physical_in_use"))(0);
  return in_use ==
         number("reserved_bytes", "\"devices\"") + number("total_bytes") + number("managed_bytes");
}

Handle create(std::size_t size) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  Handle handle = 0;
  GOOD(ENTRY("cuMemCreate", cuMemCreate)(&handle, size, &properties, 0));
  return handle;
}

CUdeviceptr reserve(std::size_t size) {
  CUdeviceptr pointer = 0;
  GOOD(ENTRY("cuMemAddressReserve", cuMemAddressReserve)(&pointer, size, 0, 0, 0));
  return pointer;
}

void map(CUdeviceptr pointer, Handle handle) {
  GOOD(ENTRY("cuMemMap", cuMemMap)(pointer, kPart, 0, handle, 0));
}

CUresult release(Handle handle) {
  return ENTRY("cuMemRelease", cuMemRelease)(handle);
}

CUresult unmap(CUdeviceptr pointer, std::size_t size) {
  return ENTRY("cuMemUnmap", cuMemUnmap)(pointer, size);
}

void created() {
  EXPECT(number("created_bytes") == 0);
  const Handle whole = create(kPart);
  EXPECT(number("created_bytes") == kPart && all_explained());
  GOOD(release(whole));
  EXPECT(number("created_bytes") == 0 && number("peak_bytes") == kPart);
  EXPECT(release(whole) != CUDA_SUCCESS && number("created_bytes") == 0);
  // Released while mapped, as most programs do: it lives until it is unmapped.
  const CUdeviceptr range = reserve(4 * kPart);
  for (int i = 0; i < 4; ++i) {
    const Handle part = create(kPart);
    map(range + static_cast<unsigned>(i) * kPart, part);
    GOOD(release(part));
  }
  EXPECT(number("created_bytes") == 4 * kPart && all_explained());
  GOOD(unmap(range, kPart));
  EXPECT(number("created_bytes") == 3 * kPart && all_explained());
  GOOD(unmap(range + kPart, 3 * kPart));
  EXPECT(number("created_bytes") == 0 && all_explained());
  // One more handle, and a mapping that goes before the handles.
  const Handle held = create(kPart);
  map(range, held);
  Handle again = 0;
  GOOD(ENTRY("cuMemRetainAllocationHandle", cuMemRetainAllocationHandle)(
      &again, reinterpret_cast<void*>(range)));  // NOLINT(performance-no-int-to-ptr)
  EXPECT(again == held);
  GOOD(unmap(range, kPart));
  GOOD(release(held));
  EXPECT(number("created_bytes") == kPart);
  GOOD(release(again));
  EXPECT(number("created_bytes") == 0 && all_explained());
  // What the driver refuses changes nothing.
  reinterpret_cast<void (*)(const char*, unsigned long, int)>(
      dlsym(driver_library, "fake_cuda_fail"))("cuMemRelease", 1, CUDA_ERROR_INVALID_VALUE);
  const Handle kept = create(kPart);
  EXPECT(release(kept) == CUDA_ERROR_INVALID_VALUE && number("created_bytes") == kPart);
  GOOD(release(kept));
  EXPECT(number("created_bytes") == 0 && number("uncounted_calls") == 0);
}

// Released handles' values that come again, for memory of another size, while the first memory is mapped.
void values_again() {
  const auto next_handle = reinterpret_cast<void (*)(unsigned long long)>(
      dlsym(driver_library, "fake_cuda_next_handle"));
  const auto create_as = [&](Handle value, std::size_t size) {
    next_handle(value);
    EXPECT(create(size) == value);
  };
  const CUdeviceptr range = reserve(4 * kPart);
  const Handle value = create(kPart);
  map(range, value);
  map(range + kPart, value);
  GOOD(release(value));
  create_as(value, 2 * kPart);
  EXPECT(number("created_bytes") == 3 * kPart && all_explained());
  // The first memory's mappings are none of the second's.
  GOOD(release(value));
  EXPECT(number("created_bytes") == kPart && all_explained());
  GOOD(unmap(range, kPart));
  EXPECT(number("created_bytes") == kPart && all_explained());
  // And a third, mapped too: each lives as long as its own mappings.
  create_as(value, kPart);
  map(range + 2 * kPart, value);
  GOOD(release(value));
  create_as(value, kPart);
  map(range + 3 * kPart, value);
  EXPECT(number("created_bytes") == 3 * kPart && all_explained());
  GOOD(unmap(range + 2 * kPart, kPart));
  EXPECT(number("created_bytes") == 2 * kPart && all_explained());
  GOOD(release(value));
  EXPECT(number("created_bytes") == 2 * kPart && all_explained());
  GOOD(unmap(range + kPart, kPart));
  EXPECT(number("created_bytes") == kPart && all_explained());
  GOOD(unmap(range + 3 * kPart, kPart));
  EXPECT(number("created_bytes") == 0 && number("uncounted_calls") == 0 && all_explained());
}

void ours() {
  CUdeviceptr p = 0;
  GOOD(cu.alloc(&p, 64 * kMib));
  EXPECT(number("total_bytes") == 0 && number("peak_bytes") == 0 && all_explained());
  Handle handle = 0;
  GOOD(ENTRY("cuMemRetainAllocationHandle", cuMemRetainAllocationHandle)(
      &handle, reinterpret_cast<void*>(p)));  // NOLINT(performance-no-int-to-ptr)
  GOOD(release(handle));
  GOOD(cu.free(p));
  EXPECT(number("peak_bytes") == 0 && all_explained());
}

void blocks() {
  CUdeviceptr p = 0;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  GOOD(cu.alloc_managed(&p, 8 * kMib, CU_MEM_ATTACH_GLOBAL));
  EXPECT(number("managed_bytes") == 8 * kMib && number("total_bytes") == 0 && all_explained());
  GOOD(cu.free(p));
  EXPECT(number("managed_bytes") == 0);
  GOOD(cu.pool_create(&pool, &properties));
  GOOD(cu.alloc_from_pool(&p, 6 * kMib, pool, nullptr));
  EXPECT(number("pools_bytes") == 6 * kMib && all_explained());
  GOOD(cu.free_async(p, nullptr));
  EXPECT(number("pools_bytes") == 0 && number("peak_bytes") == 6 * kMib && all_explained());
}

// Pools are the device's: their blocks outlive a context, and count until they are freed.
void outlived() {
  CUmemoryPool usual = nullptr;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  CUdeviceptr p = 0;
  CUdeviceptr q = 0;
  CUdeviceptr managed = 0;
  GOOD(cu.default_pool(&usual, 0));
  GOOD(cu.pool_create(&pool, &properties));
  GOOD(cu.set_pool(0, pool));
  GOOD(cu.alloc_from_pool(&p, 6 * kMib, pool, nullptr));
  GOOD(cu.alloc_async(&q, 2 * kMib, nullptr));
  GOOD(cu.alloc_managed(&managed, 4 * kMib, CU_MEM_ATTACH_GLOBAL));
  for (int i = 0; i < 2; ++i) {
    GOOD(cu.reset(0));
    GOOD(cu.retain(&context, 0));
    GOOD(cu.set_current(context));
    EXPECT(number("pools_bytes") == 8 * kMib && number("managed_bytes") == 0 && all_explained());
  }
  GOOD(cu.free_async(p, nullptr));
  EXPECT(number("pools_bytes") == 2 * kMib && all_explained());
  GOOD(cu.free(q));
  EXPECT(number("pools_bytes") == 0 && all_explained());
  GOOD(cu.set_pool(0, usual));
}

void contexts() {
  CUdeviceptr p = 0;
  // Another context's memory is the driver's, and ends with it.
  CUcontext other = nullptr;
  GOOD(cu.context_create(&other, 0, 0));
  GOOD(cu.alloc(&p, 2 * kMib));
  CUdeviceptr freed = 0;
  GOOD(cu.alloc(&freed, 4 * kMib));
  EXPECT(number("allocated_bytes") == 6 * kMib && all_explained());
  GOOD(cu.free(freed));
  EXPECT(number("allocated_bytes") == 2 * kMib);
  GOOD(cu.context_destroy(other));
  GOOD(cu.set_current(context));
  EXPECT(number("allocated_bytes") == 0);
}

void arrays() {
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR flat = {2 * kMib, 4, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  GOOD(ENTRY("cuArrayCreate_v2", cuArrayCreate)(&array, &flat));
  EXPECT(number("arrays_bytes") == 8 * kMib && all_explained());
  GOOD(ENTRY("cuArrayDestroy", cuArrayDestroy)(array));
  EXPECT(number("arrays_bytes") == 0 && all_explained());
  CUDA_ARRAY3D_DESCRIPTOR deep = {1024, 1024, 4, CU_AD_FORMAT_FLOAT, 4, 0};
  GOOD(ENTRY("cuArray3DCreate_v2", cuArray3DCreate)(&array, &deep));
  EXPECT(number("arrays_bytes") == 64 * kMib);
  GOOD(cu.reset(0));  // ends it with its context
  EXPECT(number("arrays_bytes") == 0);
  GOOD(cu.retain(&context, 0));
  GOOD(cu.set_current(context));
  deep.Flags = CUDA_ARRAY3D_SPARSE;
  GOOD(ENTRY("cuArray3DCreate_v2", cuArray3DCreate)(&array, &deep));
  EXPECT(number("arrays_bytes") == 0 && number("uncounted_calls") == 0);
  deep = {64, 64, 0, CU_AD_FORMAT_NV12, 3, 0};
  GOOD(ENTRY("cuArray3DCreate_v2", cuArray3DCreate)(&array, &deep));
  EXPECT(number("arrays_bytes") == 0 && number("uncounted_calls") == 1);
  CUmipmappedArray levels = nullptr;
  deep = {1024, 1024, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
  GOOD(ENTRY("cuMipmappedArrayCreate", cuMipmappedArrayCreate)(&levels, &deep, 2));
  EXPECT(number("arrays_bytes") == kMib + kMib / 4);
  GOOD(ENTRY("cuMipmappedArrayDestroy", cuMipmappedArrayDestroy)(levels));
  EXPECT(number("arrays_bytes") == 0);
}

// Ends with memory left, for the summary.
void left() {
  create(8 * kPart);
  CUdeviceptr p = 0;
  GOOD(cu.alloc_managed(&p, kMib, CU_MEM_ATTACH_GLOBAL));
}

void threads() {
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([] {
      GOOD(cu.set_current(context));
      const CUdeviceptr range = reserve(kPart);
      for (int i = 0; i < 200; ++i) {
        const Handle handle = create(kPart);
        map(range, handle);
        GOOD(release(handle));
        CUdeviceptr p = 0;
        GOOD(cu.alloc_managed(&p, kMib, CU_MEM_ATTACH_GLOBAL));
        GOOD(unmap(range, kPart));
        GOOD(cu.free(p));
      }
    });
  }
  for (std::thread& thread : all) {
    thread.join();
  }
  EXPECT(number("total_bytes") == 0 && number("managed_bytes") == 0 && all_explained());
}

// The table against a std::map, with keys that share their homes.
void table() {
  nofrag::preload::BoundedTable<int, 6> bounded;
  std::map<std::uint64_t, int> model;
  std::uint64_t random = 1;
  for (int i = 0; i < 200'000; ++i) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t key = 1 + (random >> 33) % 80;
    if (random >> 63 != 0 || model.size() > 44) {
      EXPECT((bounded.find(key) != nullptr) == (model.count(key) == 1));
      if (model.erase(key) == 1) {
        EXPECT(*bounded.find(key) >= 0);
        bounded.erase(key);
      }
    } else {
      EXPECT(bounded.insert(key, i));
      model[key] = i;
    }
    EXPECT(bounded.size() == model.size());
    for (const auto& [known, value] : model) {
      EXPECT(bounded.find(known) != nullptr && *bounded.find(known) == value);
    }
  }
  bounded.erase_if([](int value) { return value % 2 == 0; });
  for (const auto& [known, value] : model) {
    EXPECT((bounded.find(known) == nullptr) == (value % 2 == 0));
  }
  nofrag::preload::BoundedTable<int, 4> full;
  for (std::uint64_t key = 1; key <= full.kMost; ++key) {
    EXPECT(full.insert(key, 1));
  }
  EXPECT(!full.insert(100, 1) && full.insert(1, 2) && full.find(100) == nullptr);
}

const std::map<std::string, void (*)()> kChecks = {{"created", created},
                                                   {"values-again", values_again},
                                                   {"ours", ours},
                                                   {"blocks", blocks},
                                                   {"outlived", outlived},
                                                   {"contexts", contexts},
                                                   {"arrays", arrays},
                                                   {"left", left},
                                                   {"threads", threads},
                                                   {"table", table}};

}  // namespace

int main(int count, char** words) {
  const auto check = kChecks.find(count > 1 ? words[1] : "");
  if (check == kChecks.end()) {
    std::fprintf(stderr, "usage: passed NAME\n");
    return 2;
  }
  driver_library = dlopen("libcuda.so.1", RTLD_NOW);
  load_api(&cu, usual_way());
  EXPECT(cu.init(0) == CUDA_SUCCESS && cu.retain(&context, 0) == CUDA_SUCCESS);
  EXPECT(cu.set_current(context) == CUDA_SUCCESS);
  CUdeviceptr first = 0;  // nofrag is in use
  GOOD(cu.alloc(&first, kMib));
  check->second();
  return 0;
}
