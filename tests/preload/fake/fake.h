// Fake: a libcuda.so.1 over nofrag's simulated driver, for the preload's tests on machines without a GPU.
//
// Owns: the simulated driver, contexts, the program's plain allocations, mappings and captures, one lock over
// all. It answers as the real driver does where the preload depends on it (error codes, what it says of mapped
// memory), and counts calls by name so that tests can see which reached it. Contents are one byte value a
// range. Layer: tests. Threads: any. Failure: CUresults, and those that fake_cuda_fail asks for.
// Environment: FAKE_CUDA_DEVICES (1), FAKE_CUDA_MIB (1024), FAKE_CUDA_NO_VMM, FAKE_CUDA_FAIL (NAME:NTH:CODE,...).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "driver/real/driver_api.h"
#include "driver/simulated/simulated_driver.h"

namespace fake {

struct Context {
  int device = 0;
  bool primary = false;
  std::atomic<bool> alive = false;
  int retained = 0;
};

struct Allocation {
  std::size_t size = 0;
  Context* context = nullptr;
  CUmemoryPool pool = nullptr;  // of cuMemAllocAsync
  bool outlived = false;        // of a pool, and its primary context has ended
  bool graph = false;           // made by a capture
  unsigned opened = 0;          // by cuIpcOpenMemHandle, so often
  std::string shown;            // the handle that it was opened by
};

struct Mapping {
  std::size_t size = 0;
  unsigned long long handle = 0;
};

struct Handle {
  int references = 1;
  int device = 0;
  std::size_t size = 0;
  bool shareable = false;
  unsigned long long memory = 0;  // what the simulated driver calls it
};

struct Capture {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool lost = false;
};

struct Driver {
  Driver();
  std::recursive_mutex mutex;
  std::unique_ptr<nofrag::SimulatedDriver> sim;
  int devices = 1;
  bool initialised = false;
  std::vector<std::unique_ptr<Context>> primaries;
  std::set<Context*> contexts;  // living ones of cuCtxCreate
  // For good: handles stay comparable, and destructors of threads may still call.
  std::vector<std::unique_ptr<Context>> made;
  std::vector<std::unique_ptr<std::vector<Context*>>> stacks;
  std::map<CUdeviceptr, Allocation> allocations;
  std::map<CUdeviceptr, Mapping> mappings;
  std::map<CUdeviceptr, std::size_t> reservations;
  std::map<unsigned long long, Handle> handles;
  unsigned long long next_handle = 0;  // the value of the next cuMemCreate's; 0: a new one
  std::map<CUstream, Context*> streams;
  std::set<CUstream> busy;
  std::map<CUstream, Capture> captures;
  std::set<std::pair<int, int>> peers;  // the first device may use what the second allocated
  std::vector<CUmemoryPool> current_pools;
  std::set<CUmemoryPool> pools;
  std::map<CUmemoryPool, std::map<int, unsigned long long>> pool_values;
  std::map<std::string, unsigned long> calls;
  // What the default streams were given, in order, as device numbers: "0>1 " the work of the first is waited for by
  // the second's, "copy 1 " a copy.
  std::string order;
  std::map<CUevent, int> recorded;  // in which device's default stream; -1: in another stream
  struct Fault {
    std::string name;
    unsigned long nth;
    int code;
  };
  std::vector<Fault> faults;
  std::atomic<unsigned> reset_takes{0};  // milliseconds
};

Driver& driver();
// Counts the call; an error that a test asked for, or CUDA_SUCCESS.
CUresult called(const char* name);
// Of the calling thread; nullptr: none, or one that has ended.
Context* current();
// What calls that need one answer then.
CUresult no_context();
CUresult result_of(nofrag::Errc code);
// The legacy one, of the calling thread's current context.
bool is_default_stream(CUstream stream);
// What a call that may not be made while something is captured answers to this thread.
CUresult unsafe_in_capture();
CUmemoryPool default_pool(int device);
bool is_capturing(CUstream stream);
// Waits for the context's work and ends its memory, streams and captures. What a pool gave in a primary context is the
// device's: it stays as it is until it is freed.
void empty(Context* context);
CUstreamCaptureMode& thread_mode();
std::vector<Context*>& stack();

}  // namespace fake

// Begins every entry: lock, count, fault.
#define FAKE_ENTRY(name)                                                       \
  const std::lock_guard<std::recursive_mutex> fake_lock(fake::driver().mutex); \
  if (const CUresult fault = fake::called(name); fault != CUDA_SUCCESS) {      \
    return fault;                                                              \
  }
