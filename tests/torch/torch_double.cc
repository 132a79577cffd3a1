// Stands for libtorch_cuda.so: it calls the hooks through pointers, as CUDAPluggableAllocator does,
// and catches what they throw by type.
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include "c10_double.h"

namespace {

// Declared in full by CUDA; PyTorch's filter takes the pointer type.
struct CUstream_st;
using Stream = CUstream_st*;
using PoolId = std::pair<unsigned long long, unsigned long long>;

using AllocHook = void*(std::size_t, int, Stream);
using FreeHook = void(void*, std::size_t, int, Stream);
using BeginHook = void(int, PoolId, std::function<bool(Stream)>);
using EndHook = void(int, PoolId);

int failures = 0;

void expect(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "torch_double: %s\n", what);
    ++failures;
  }
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

void out_of_memory_is_caught_by_type(AllocHook* alloc) {
  try {
    alloc(100 * kMiB, 0, nullptr);
    expect(false, "100 MiB were served under a limit of 64 MiB");
  } catch (const c10::OutOfMemoryError& error) {
    const char* start =
        "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of ";
    expect(std::strncmp(error.what(), start, std::strlen(start)) == 0, error.what());
    expect(std::strstr(error.what(), "limit") != nullptr, error.what());
    expect(typeid(error) == typeid(c10::OutOfMemoryError), "the object's own type is another");
    expect(std::strstr(error.what(), "(from nofrag_torch_alloc)") != nullptr, error.what());
  } catch (const c10::Error& error) {
    expect(false, "c10::Error instead of c10::OutOfMemoryError");
  }
}

void other_failures_are_errors(AllocHook* alloc) {
  try {
    alloc(512, 7, nullptr);
    expect(false, "device 7 exists");
  } catch (const c10::OutOfMemoryError&) {
    expect(false, "a wrong device is no lack of memory");
  } catch (const c10::Error& error) {
    expect(error.msg().find("there is no device 7") != std::string::npos, error.what());
  }
}

void job_goes_on(AllocHook* alloc, FreeHook* release) {
  void* block = alloc(32 * kMiB, 0, nullptr);
  expect(block != nullptr, "nothing is served after the failures");
  release(block, 32 * kMiB, 0, nullptr);
}

void threads_at_once(AllocHook* alloc) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([alloc] {
      for (int i = 0; i < 50; ++i) {
        out_of_memory_is_caught_by_type(alloc);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  expect(c10::Error::alive() == 0, "exceptions were not destroyed");
}

void pools_by_value(
    AllocHook* alloc, FreeHook* release, BeginHook* begin, EndHook* end, EndHook* drop) {
  auto* const captured = reinterpret_cast<Stream>(0x100);
  int asked = 0;
  // Large enough a capture that std::function keeps it on the heap.
  std::vector<int> heavy(100, 1);
  const PoolId id{0x1122334455667788ULL, 0x99aabbccddeeff00ULL};
  begin(0, id, [&asked, heavy, captured](Stream stream) {
    asked += heavy[99];
    return stream == captured;
  });
  heavy.clear();
  void* inside = alloc(4096, 0, captured);
  void* outside = alloc(4096, 0, nullptr);
  expect(asked == 2, "the filter was not asked for both allocations");
  end(0, id);
  release(inside, 4096, 0, captured);
  release(outside, 4096, 0, nullptr);
  drop(0, id);
  try {
    begin(0, PoolId{0, 0}, nullptr);
    expect(false, "the default pool was begun");
  } catch (const c10::Error& error) {
    expect(error.msg().find("invalid argument") != std::string::npos, error.what());
  }
}

// PyTorch's filter asks CUDA about the stream and throws what CUDA answers. The exception must come
// out as it went in, and nothing may stay locked behind it (then the alloc below would hang).
void a_filter_that_throws_passes_through(
    AllocHook* alloc, FreeHook* release, BeginHook* begin, EndHook* end, EndHook* drop) {
  const PoolId id{7, 7};
  begin(0, id, [](Stream) -> bool { throw c10::Error({"filter", "torch", 1}, "sticky error"); });
  for (int i = 0; i < 3; ++i) {
    try {
      alloc(4096, 0, nullptr);
      expect(false, "the filter's exception was swallowed");
    } catch (const c10::Error& error) {
      expect(error.msg() == "sticky error", error.what());
    }
  }
  end(0, id);
  drop(0, id);
  std::thread([&] { release(alloc(4096, 0, nullptr), 4096, 0, nullptr); }).join();
  expect(c10::Error::alive() == 0, "exceptions were not destroyed");
}

template <typename Hook>
Hook* as_hook(void* address) {
  return reinterpret_cast<Hook*>(address);
}

}  // namespace

// Where PyTorch's own allocator throws, its library emits the type's virtual table.
extern "C" [[noreturn]] void torch_double_native_out_of_memory() {
  throw c10::OutOfMemoryError({"malloc", "native", 1}, "CUDA out of memory.");
}

// The hooks, in this order: alloc, free, begin, end, release.
extern "C" int torch_double_run(void** hooks) {
  auto* const alloc = as_hook<AllocHook>(hooks[0]);
  auto* const release = as_hook<FreeHook>(hooks[1]);
  out_of_memory_is_caught_by_type(alloc);
  other_failures_are_errors(alloc);
  job_goes_on(alloc, release);
  threads_at_once(alloc);
  pools_by_value(alloc,
                 release,
                 as_hook<BeginHook>(hooks[2]),
                 as_hook<EndHook>(hooks[3]),
                 as_hook<EndHook>(hooks[4]));
  a_filter_that_throws_passes_through(alloc,
                                      release,
                                      as_hook<BeginHook>(hooks[2]),
                                      as_hook<EndHook>(hooks[3]),
                                      as_hook<EndHook>(hooks[4]));
  return failures;
}
