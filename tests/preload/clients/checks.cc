// What only the fake driver can show of the preload, as named checks: usage: checks NAME. Exit 0: it held.
// Reaches the driver in the usual way (ways.h), nofrag's C interface by looking whether it is in the process.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>

#include <nofrag/nofrag.h>

#include "api.h"

#define EXPECT(condition)                                          \
  do {                                                             \
    if (!(condition)) {                                            \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      std::exit(1);                                                \
    }                                                              \
  } while (false)

namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;

api cu;
CUcontext context;
void* driver_library;

template <typename Function>
Function control(const char* name) {
  return reinterpret_cast<Function>(dlsym(driver_library, name));
}

unsigned long calls(const char* name) {
  return control<unsigned long (*)(const char*)>("fake_cuda_calls")(name);
}

void fail(const char* name, int code) {
  control<void (*)(const char*, unsigned long, int)>("fake_cuda_fail")(name, 1, code);
}

unsigned long long held() {
  return control<unsigned long long (*)(int)>("fake_cuda_physical_in_use")(0);
}

// Does nofrag have this pointer in a live block?
bool is_ours(CUdeviceptr pointer) {
  const auto find = reinterpret_cast<decltype(&nofrag_find)>(dlsym(RTLD_DEFAULT, "nofrag_find"));
  nofrag_block_info info{};
  info.struct_size = sizeof info;
  return find != nullptr && find(reinterpret_cast<void*>(pointer), &info) == NOFRAG_OK;  // NOLINT
}

CUdeviceptr take(std::size_t size) {
  CUdeviceptr p = 0;
  EXPECT(cu.alloc(&p, size) == CUDA_SUCCESS);
  return p;
}

// Every owned entry gives memory of nofrag's, and none of the driver's functions behind them is reached.
void owned() {
  CUdeviceptr p = 0;
  std::size_t pitch = 0;
  CUstream stream = nullptr;
  CUmemoryPool pool = nullptr;
  EXPECT(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  EXPECT(cu.default_pool(&pool, 0) == CUDA_SUCCESS);
  EXPECT(is_ours(p = take(1000)) && cu.free(p) == CUDA_SUCCESS && !is_ours(p));
  EXPECT(cu.alloc_pitch(&p, &pitch, 100, 10, 4) == CUDA_SUCCESS && is_ours(p) &&
         cu.free(p) == CUDA_SUCCESS);
  const unsigned long learnt = calls("cuMemAllocPitch_v2");  // how the driver chooses pitches
  EXPECT(cu.alloc_pitch(&p, &pitch, 700, 10, 4) == CUDA_SUCCESS && is_ours(p) &&
         cu.free(p) == CUDA_SUCCESS);
  EXPECT(calls("cuMemAllocPitch_v2") == learnt && calls("cuMemFree_v2") == learnt);
  EXPECT(cu.alloc_async(&p, kMib, stream) == CUDA_SUCCESS && is_ours(p) &&
         cu.free_async(p, stream) == CUDA_SUCCESS);
  EXPECT(cu.alloc_async_ptsz(&p, kMib, nullptr) == CUDA_SUCCESS && is_ours(p));
  EXPECT(cu.free_async_ptsz(p, nullptr) == CUDA_SUCCESS);
  EXPECT(cu.alloc_from_pool(&p, kMib, pool, stream) == CUDA_SUCCESS && is_ours(p) &&
         cu.free(p) == CUDA_SUCCESS);
  for (const char* entry :
       {"cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync"}) {
    EXPECT(calls(entry) == 0);
  }
}

// The same calls, all the driver's: off, native, stood aside.
void passed_on() {
  CUdeviceptr p = 0;
  EXPECT(!is_ours(p = take(1000)) && cu.free(p) == CUDA_SUCCESS);
  EXPECT(cu.alloc_async(&p, kMib, nullptr) == CUDA_SUCCESS && !is_ours(p));
  EXPECT(cu.free_async(p, nullptr) == CUDA_SUCCESS);
  EXPECT(calls("cuMemAlloc_v2") >= 1 && calls("cuMemFree_v2") >= 1 &&
         calls("cuMemAllocAsync") == 1);
}

void free_waits() {
  const unsigned long before = calls("cuCtxSynchronize");
  EXPECT(cu.free(take(kMib)) == CUDA_SUCCESS);
  EXPECT(calls("cuCtxSynchronize") == before + 1);
}

// The per-thread default stream has one name and is another stream in every thread: memory of one thread's, freed
// on another's, waits for both.
void per_thread_streams() {
  CUdeviceptr p = 0;
  std::thread([&] {
    EXPECT(cu.set_current(context) == CUDA_SUCCESS);
    EXPECT(cu.alloc_async_ptsz(&p, kMib, nullptr) == CUDA_SUCCESS);
  }).join();
  const unsigned long events = calls("cuEventRecord");
  EXPECT(cu.free_async_ptsz(p, nullptr) == CUDA_SUCCESS);
  EXPECT(calls("cuEventRecord") > events);
}

// A free that fails leaves the block as it was: live, shared, counted.
void failed_frees_change_nothing() {
  CUmemoryPool pool = nullptr;
  unsigned long long used = 0;
  EXPECT(cu.default_pool(&pool, 0) == CUDA_SUCCESS);
  const CUdeviceptr p = take(3 * kMib);
  CUdeviceptr q = 0;
  EXPECT(cu.alloc_async(&q, 3 * kMib, nullptr) == CUDA_SUCCESS);
  CUipcMemHandle before;
  CUipcMemHandle after;
  EXPECT(cu.ipc_get(&before, p) == CUDA_SUCCESS);
  for (const CUdeviceptr block : {p, q}) {
    fail("cuCtxSynchronize", 700);
    EXPECT(cu.free(block) == 700 && is_ours(block));
  }
  EXPECT(cu.ipc_get(&after, p) == CUDA_SUCCESS && std::memcmp(&before, &after, sizeof after) == 0);
  EXPECT(cu.pool_get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS &&
         used == 3 * kMib);
  EXPECT(cu.free(p) == CUDA_SUCCESS && cu.free(q) == CUDA_SUCCESS && !is_ours(p) && !is_ours(q));
}

// What was freed during a capture and could not be freed after it either is tried again.
void set_aside_until_it_goes() {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  EXPECT(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const CUdeviceptr p = take(100 * kMib);
  EXPECT(cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  EXPECT(cu.free(p) == CUDA_SUCCESS && is_ours(p));
  EXPECT(cu.free(p) == CUDA_ERROR_INVALID_VALUE);
  EXPECT(cu.end_capture(stream, &graph) == CUDA_SUCCESS);
  fail("cuCtxSynchronize", 700);
  CUdeviceptr q = take(kMib);
  EXPECT(is_ours(p) && cu.free(p) == CUDA_ERROR_INVALID_VALUE);
  EXPECT(!is_ours(p) && cu.free(q) == CUDA_SUCCESS);
}

// A context that ends takes with it what was captured in it, shared from it and set aside.
void reset_forgets() {
  CUstream stream = nullptr;
  CUipcMemHandle first;
  CUipcMemHandle second;
  EXPECT(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const CUdeviceptr aside = take(3 * kMib);
  const CUdeviceptr shared = take(3 * kMib);
  EXPECT(cu.ipc_get(&first, shared) == CUDA_SUCCESS);
  EXPECT(cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  EXPECT(cu.free(aside) == CUDA_SUCCESS);
  EXPECT(cu.reset(0) == CUDA_SUCCESS && cu.retain(&context, 0) == CUDA_SUCCESS);
  EXPECT(cu.set_current(context) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    const CUdeviceptr p = take(3 * kMib);
    EXPECT(is_ours(p) && cu.ipc_get(&second, p) == CUDA_SUCCESS);
    EXPECT(std::memcmp(&first, &second, sizeof first) != 0);
  }
}

// Contexts that end and begin again while other threads look pointers up, allocate and free.
void contexts_end_beside_others() {
  std::atomic<bool> over{false};
  std::vector<std::thread> workers;
  for (int t = 0; t < 4; ++t) {
    workers.emplace_back([&] {
      std::size_t size = 0;
      CUdeviceptr p = 0;
      while (!over) {
        // Each holds the context while it works in it, and asks of a pointer that may be gone when it does not.
        CUcontext mine = nullptr;
        EXPECT(cu.range(&p, &size, p) != CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT(cu.retain(&mine, 0) == CUDA_SUCCESS && cu.set_current(mine) == CUDA_SUCCESS);
        p = take(64 * 1024);
        EXPECT(cu.range(nullptr, &size, p) == CUDA_SUCCESS && size == 64 * 1024);
        EXPECT(cu.free(p) == CUDA_SUCCESS);
        EXPECT(cu.release(0) == CUDA_SUCCESS);
      }
    });
  }
  EXPECT(cu.release(0) == CUDA_SUCCESS);
  for (int i = 0; i < 300; ++i) {
    EXPECT(cu.retain(&context, 0) == CUDA_SUCCESS && cu.set_current(context) == CUDA_SUCCESS);
    EXPECT(cu.free(take(kMib)) == CUDA_SUCCESS);
    EXPECT(cu.release(0) == CUDA_SUCCESS);
  }
  over = true;
  for (std::thread& worker : workers) {
    worker.join();
  }
}

void free_does_not_wait() {
  CUstream stream = nullptr;
  EXPECT(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const unsigned long before = calls("cuCtxSynchronize");
  const unsigned long events = calls("cuEventRecord");
  EXPECT(cu.free(take(kMib)) == CUDA_SUCCESS);
  EXPECT(calls("cuCtxSynchronize") == before && calls("cuEventRecord") > events);
}

// Memory that comes with waits on the device is only handed out when they are over: 60 of 64 MiB (limit), freed
// on a stream whose work is not done.
void memory_is_ready() {
  CUstream stream = nullptr;
  CUdeviceptr p = 0;
  EXPECT(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  EXPECT(cu.alloc_async(&p, 60 * kMib, stream) == CUDA_SUCCESS);
  EXPECT(cu.free_async(p, stream) == CUDA_SUCCESS);
  const unsigned long waits =
      calls("cuStreamSynchronize") + calls("cuEventSynchronize") + calls("cuCtxSynchronize");
  const CUdeviceptr q = take(60 * kMib);
  EXPECT(calls("cuStreamSynchronize") + calls("cuEventSynchronize") + calls("cuCtxSynchronize") >
         waits);
  EXPECT(cu.free(q) == CUDA_SUCCESS);
}

// Each entry that is passed on: out of memory, once more after idle memory went back; without any, once.
void retries() {
  static const struct {
    const char* name;
    bool retried;
  } entries[] = {
#define NOFRAG_HOOK(symbol) {#symbol, false},
#define NOFRAG_RETRY(symbol, ...) {#symbol, true},
#define NOFRAG_ACROSS(symbol, ...) {#symbol, false},
#include ENTRIES
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS
  };
  using Any = int (*)(const void*,
                      const void*,
                      const void*,
                      const void*,
                      const void*,
                      const void*,
                      const void*,
                      const void*,
                      const void*,
                      const void*,
                      const void*);
  int seen = 0;
  for (const auto& entry : entries) {
    const bool owned_retry = std::strcmp(entry.name, "cuStreamCreate") == 0 ||
                             std::strcmp(entry.name, "cuDevicePrimaryCtxRetain") == 0 ||
                             std::strcmp(entry.name, "cuStreamCreateWithPriority") == 0;
    if (!entry.retried && !owned_retry) {
      continue;
    }
    EXPECT(cu.free(take(100 * kMib)) == CUDA_SUCCESS);
    const unsigned long long idle = held();
    EXPECT(idle >= 100 * kMib);
    const auto call = reinterpret_cast<Any>(way_named(usual_way())(entry.name));
    const unsigned long before = calls(entry.name);
    fail(entry.name, CUDA_ERROR_OUT_OF_MEMORY);
    fail(entry.name, 719);
    const int result = call(nullptr,
                            nullptr,
                            nullptr,
                            nullptr,
                            nullptr,
                            nullptr,
                            nullptr,
                            nullptr,
                            nullptr,
                            nullptr,
                            nullptr);
    if (result != 719 || calls(entry.name) != before + 2 || held() >= idle - 99 * kMib) {
      std::fprintf(
          stderr, "%s: %d after %lu calls\n", entry.name, result, calls(entry.name) - before);
      std::exit(1);
    }
    ++seen;
    // Nothing idle is left: no second call.
    fail(entry.name, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(call(nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr) == 2);
    EXPECT(calls(entry.name) == before + 3);
  }
  EXPECT(seen > 40);
}

// Under capture there is no second call: giving back waits.
void no_retry_in_capture() {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  EXPECT(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  EXPECT(cu.free(take(100 * kMib)) == CUDA_SUCCESS);
  EXPECT(cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  fail("cuMemAllocManaged", CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr p = 0;
  EXPECT(cu.alloc_managed(&p, kMib, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(calls("cuMemAllocManaged") == 1);
  EXPECT(cu.end_capture(stream, &graph) == CUDA_SUCCESS);
}

void limit() {  // of 256 MiB
  std::size_t free = 0;
  std::size_t total = 0;
  CUdeviceptr p = 0;
  EXPECT(cu.info(&free, &total) == CUDA_SUCCESS && total == 256 * kMib && free == 256 * kMib);
  EXPECT(cu.alloc(&p, 300 * kMib) == CUDA_ERROR_OUT_OF_MEMORY);
  p = take(200 * kMib);
  EXPECT(cu.info(&free, &total) == CUDA_SUCCESS && total == 256 * kMib && free <= 56 * kMib);
  EXPECT(cu.alloc(&p, 100 * kMib) == CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(cu.alloc_async(&p, 100 * kMib, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
}

// A stream's last event is recorded before it is destroyed; its memory serves others, and its handle is not used
// again.
void stream_ends() {
  for (int i = 0; i < 20; ++i) {
    CUstream stream = nullptr;
    CUdeviceptr p = 0;
    CUdeviceptr q = 0;
    EXPECT(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    EXPECT(cu.alloc_async(&p, 8 * kMib, stream) == CUDA_SUCCESS &&
           cu.free_async(p, stream) == CUDA_SUCCESS);
    EXPECT(cu.alloc_async(&q, 4 * kMib, stream) == CUDA_SUCCESS);
    const unsigned long events = calls("cuEventRecord");
    EXPECT(cu.stream_destroy(stream) == CUDA_SUCCESS);
    EXPECT(calls("cuEventRecord") > events);
    EXPECT(cu.free_async(q, nullptr) == CUDA_SUCCESS);
    EXPECT(cu.free(take(8 * kMib)) == CUDA_SUCCESS);
  }
}

// Memory that others know of stays where it is until it is freed, under every way of making it known.
void exports_pin() {
  CUipcMemHandle handle;
  unsigned long long allocation = 0;
  const auto retain = reinterpret_cast<int (*)(unsigned long long*, CUdeviceptr)>(
      way_named(usual_way())("cuMemRetainAllocationHandle"));
  const auto range =
      reinterpret_cast<int (*)(void*, CUdeviceptr, std::size_t, int, unsigned long long)>(
          way_named(usual_way())("cuMemGetHandleForAddressRange"));
  const auto set = reinterpret_cast<int (*)(const void*, int, CUdeviceptr)>(
      way_named(usual_way())("cuPointerSetAttribute"));
  const auto stats =
      reinterpret_cast<decltype(&nofrag_get_stats)>(dlsym(RTLD_DEFAULT, "nofrag_get_stats"));
  const auto pinned = [&] {
    nofrag_device_stats now{};
    now.struct_size = sizeof now;
    EXPECT(stats(0, &now) == NOFRAG_OK);
    return now.pinned_bytes;
  };
  int yes = 1;
  for (int way = 0; way < 4; ++way) {
    const CUdeviceptr p = take(3 * kMib);
    EXPECT(pinned() == 0);
    EXPECT((way == 0   ? static_cast<int>(cu.ipc_get(&handle, p))
            : way == 1 ? retain(&allocation, p)
            : way == 2 ? range(&allocation, p, 2 * kMib, 1, 0)
                       : set(&yes, 6, p)) == 0);
    EXPECT(pinned() >= 2 * kMib);
    EXPECT(cu.free(p) == CUDA_SUCCESS && pinned() == 0);
  }
}

// A version that came after nofrag: found, not taken over, and said (the test reads stderr). One from before: as
// it is.
void versions() {
  using Find = int (*)(const char*, void**, int, unsigned long long, int*);
  const auto find = reinterpret_cast<Find>(way_named(usual_way())("cuGetProcAddress_v2"));
  void* function = nullptr;
  int status = 0;
  EXPECT(find("cuMemAlloc", &function, 2000, 0, &status) == 0 && function != nullptr);
  unsigned old = 0;
  EXPECT(reinterpret_cast<int (*)(unsigned*, unsigned)>(function)(&old, 16) == 0 &&
         calls("cuMemAlloc") == 1);
  EXPECT(find("", &function, 0, 0, nullptr) == 500 && function == nullptr);
  EXPECT(find("cuNoSuchThing", &function, 13000, 0, &status) == 0 && function == nullptr &&
         status == 1);
  EXPECT(find("cuMemAlloc", nullptr, 13000, 0, &status) == 1);
  std::fprintf(stderr, "-- before\n");
  EXPECT(find("cuMemGetAddressRange", &function, 13010, 0, &status) == 0 && function != nullptr);
  EXPECT(reinterpret_cast<int (*)(void*, void*, unsigned long long)>(function)(
             nullptr, nullptr, 0) == 0);
  EXPECT(calls("cuMemGetAddressRange_v3") == 1);
}

// ---- processes and threads

void fork_after_use() {
  CUdeviceptr p = take(kMib);
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr q = 0;
    cu.free(p);
    cu.alloc(&q, kMib);
    cu.alloc_async(&q, kMib, nullptr);
    std::size_t free = 0;
    std::size_t total = 0;
    cu.info(&free, &total);
    std::exit(0);
  }
  int status = 1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  EXPECT(is_ours(p) && cu.free(p) == CUDA_SUCCESS);
  const pid_t second = fork();
  if (second == 0) {
    execl("/bin/true", "true", static_cast<char*>(nullptr));
    _exit(9);
  }
  EXPECT(waitpid(second, &status, 0) == second && status == 0);
}

struct FreesAtExit {
  CUdeviceptr pointer = 0;
  ~FreesAtExit() {
    if (pointer != 0) {
      cu.free(pointer);
      CUdeviceptr late = 0;
      cu.alloc(&late, kMib);
      cu.free(late);
    }
  }
};
FreesAtExit frees_at_exit;

// Destructors after main, exit handlers, a thread that is still at it, thread-local destructors.
void exits() {
  frees_at_exit.pointer = take(kMib);
  std::atexit([] {
    CUdeviceptr p = 0;
    cu.alloc(&p, kMib);
    cu.free(p);
  });
  std::vector<std::thread> ended;
  for (int i = 0; i < 8; ++i) {
    ended.emplace_back([] {
      thread_local FreesAtExit of_thread;
      EXPECT(cu.set_current(context) == CUDA_SUCCESS);
      of_thread.pointer = take(64 * 1024);
    });
  }
  for (std::thread& thread : ended) {
    thread.join();
  }
  static std::atomic<bool> working{false};
  std::thread([] {
    cu.set_current(context);
    for (;;) {
      CUdeviceptr p = 0;
      cu.alloc(&p, 64 * 1024);
      cu.free(p);
      working = true;
    }
  }).detach();
  while (!working) {
    std::this_thread::yield();
  }
}

void quick_exit_now() {
  take(kMib);
  std::_Exit(0);
}

// The program closes what it opened; entries that it had found still work.
void closes() {
  for (int i = 0; i < 3; ++i) {
    EXPECT(dlclose(dlopen("libcuda.so.1", RTLD_NOW)) == 0);
  }
  EXPECT(cu.free(take(kMib)) == CUDA_SUCCESS);
}

void threads() {
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < 8; ++t) {
    workers.emplace_back([t] {
      EXPECT(cu.set_current(context) == CUDA_SUCCESS);
      CUstream stream = nullptr;
      EXPECT(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
      std::vector<CUdeviceptr> mine;
      unsigned random = t + 1;
      for (int i = 0; i < 3000; ++i) {
        random = random * 1664525U + 1013904223U;
        CUdeviceptr p = 0;
        if (mine.size() > 20) {
          const std::size_t at = (random >> 8) % mine.size();
          EXPECT((random % 2 != 0U ? cu.free(mine[at]) : cu.free_async(mine[at], stream)) ==
                 CUDA_SUCCESS);
          mine[at] = mine.back();
          mine.pop_back();
        }
        const std::size_t size = std::size_t{1} << (9 + (random >> 12) % 11);
        EXPECT((random % 3 == 0 ? cu.alloc(&p, size) : cu.alloc_async(&p, size, stream)) ==
               CUDA_SUCCESS);
        CUdeviceptr base = 0;
        std::size_t found = 0;
        EXPECT(cu.range(&base, &found, p + size - 1) == CUDA_SUCCESS && base == p && found == size);
        mine.push_back(p);
      }
      for (const CUdeviceptr p : mine) {
        EXPECT(cu.free(p) == CUDA_SUCCESS);
      }
      EXPECT(cu.stream_destroy(stream) == CUDA_SUCCESS);
    });
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
}

const std::map<std::string, void (*)()> kChecks = {{"owned", owned},
                                                   {"passed-on", passed_on},
                                                   {"free-waits", free_waits},
                                                   {"free-does-not-wait", free_does_not_wait},
                                                   {"per-thread-streams", per_thread_streams},
                                                   {"failed-frees", failed_frees_change_nothing},
                                                   {"set-aside", set_aside_until_it_goes},
                                                   {"reset-forgets", reset_forgets},
                                                   {"contexts-end", contexts_end_beside_others},
                                                   {"memory-is-ready", memory_is_ready},
                                                   {"retries", retries},
                                                   {"no-retry-in-capture", no_retry_in_capture},
                                                   {"limit", limit},
                                                   {"stream-ends", stream_ends},
                                                   {"exports-pin", exports_pin},
                                                   {"versions", versions},
                                                   {"fork", fork_after_use},
                                                   {"exits", exits},
                                                   {"quick-exit", quick_exit_now},
                                                   {"closes", closes},
                                                   {"threads", threads}};

}  // namespace

int main(int count, char** words) {
  const auto check = kChecks.find(count > 1 ? words[1] : "");
  if (check == kChecks.end()) {
    std::fprintf(stderr, "usage: checks NAME\n");
    return 2;
  }
  driver_library = dlopen("libcuda.so.1", RTLD_NOW);
  load_api(&cu, usual_way());
  EXPECT(cu.init(0) == CUDA_SUCCESS && cu.retain(&context, 0) == CUDA_SUCCESS);
  EXPECT(cu.set_current(context) == CUDA_SUCCESS);
  check->second();
  EXPECT(control<unsigned long (*)()>("fake_cuda_violations")() == 0);
  return 0;
}
