// Devices: what the preload knows of each GPU of the process: its primary context, and whether we serve it.
//
// Owns: for each device its seat (below) with the courier: a stream without work of its own, in whose name
// the memory of cuMemAlloc is taken. Such memory may be used on any stream at once, so an allocation is only
// handed out when the courier has nothing to wait for. Layer: preload.
// We serve memory of primary contexts (the CUDA runtime's). Others (cuCtxCreate, green contexts) have the
// driver's memory, which dies with them.
// Threads: any. Whatever touches a device's allocator holds the gate shared, and so does whatever makes one, opens
// or closes an import, or holds the context for the program; a context that ends (reset, last release) is counted
// down, dropped and given to the driver with the gate held alone. Shared holds nest: they must not wait for who
// waits for the gate alone (glibc's rwlock prefers readers, which is what std::shared_mutex is made of here).
// Failure: a device that cannot be served is passed on to the driver from then on, said once.
// Cost: which device: the driver's answer which context is current, and a compare.
#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "device/device_allocator.h"
#include "preload/real_calls.h"
#include "runtime/process.h"

namespace nofrag::preload {

enum class Service : unsigned char { kUnknown, kVmm, kNative };

struct Seat {
  std::atomic<Service> service{Service::kUnknown};
  std::atomic<CUcontext> primary{nullptr};  // as last seen, until its end is seen
  std::atomic<CUstream> courier{nullptr};
  std::atomic<CUmemoryPool> default_pool{nullptr};
  std::atomic<bool> other_pool{false};  // cuDeviceSetMemPool chose another one
  std::atomic<int> retained{0};         // by the program, as far as we saw
  std::atomic<std::uint64_t> pitch{0};  // what row pitches are multiples of; 0 = not learnt
  std::atomic<bool> async_used{false};
  std::atomic<std::uint64_t> async_live{0};  // bytes of cuMemAllocAsync that are ours
  std::atomic<std::uint64_t> async_peak{0};
  std::atomic<std::uint64_t> reserved_peak{0};
  std::atomic<std::uint64_t> peers{0};  // a bit a device that may use this one's memory
};

// pre: 0 <= device < Process::kMostDevices.
[[nodiscard]] Seat& seat(int device);

// The device whose primary context this is, or -1.
[[nodiscard]] int device_of(CUcontext context);
// The device of a context of any kind, or -1.
[[nodiscard]] int ordinal_of(CUcontext context);
// Of the calling thread's current context.
[[nodiscard]] int current_device();
// The primary context of a device; null: there is none now.
[[nodiscard]] CUcontext primary_of(int device);
// Was the primary context of more than one device ever seen, or one device's memory shared with another?
[[nodiscard]] bool several_devices();
// Those whose primary context was ever seen, as bits.
[[nodiscard]] std::uint64_t seen_devices();
// Of the context of a stream; 0, 1 and 2 (default streams) are the current context's.
[[nodiscard]] int device_of_stream(CUstream stream);
// Contexts were made or destroyed: what threads remember of them is void.
void forget_contexts();

// Finds out, at first, how memory of the device is to be served. pre: the gate is held.
[[nodiscard]] Service service_of(int device);
void say_no_access(int device);
// From now on the driver serves what is new on this device.
void pass_on(int device);
// What nofrag maps on `device`, now and later, can be used by `peer` too. kRefused: the driver will not have it.
// pre: the gate is held.
// What is imported there, too. kAlready: it was given before, by whichever thread.
enum class Shared : unsigned char { kAlready, kNew, kRefused };
[[nodiscard]] Shared share_with(int device, int peer);
// The courier; nullptr if it cannot be made. pre: the primary context of `device` is current.
[[nodiscard]] CUstream courier_of(int device);
[[nodiscard]] bool is_courier(int device, CUstream stream);

// The allocator whose addresses these are, in every phase of the process; null: not ours.
// pre: the gate is held.
[[nodiscard]] DeviceAllocator* owner_of(CUdeviceptr pointer);

// Waits for all work of the device's primary context.
[[nodiscard]] CUresult wait_for_device(int device);

// Shared: while memory is served. Alone: while a context ends.
[[nodiscard]] std::shared_mutex& gate();
// The primary context is about to be destroyed: its blocks are no more (ended.h says what of them stays), nor what was
// imported in it.
// pre: the gate is held alone.
void drop_device(int device);

// Non-blocking streams, which no wait on the legacy stream covers; for frees that do not wait.
void note_stream(CUstream stream, unsigned flags);
void forget_stream(CUstream stream);
[[nodiscard]] std::vector<CUstream> streams_of(int device);

}  // namespace nofrag::preload
