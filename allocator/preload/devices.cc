#include "preload/devices.h"

#include <algorithm>
#include <array>

#include "preload/captures.h"
#include "preload/ended.h"
#include "preload/ipc/exports.h"
#include "preload/ipc/imports.h"
#include "preload/memory.h"
#include "preload/mode.h"
#include "runtime/log.h"

namespace nofrag::preload {
namespace {

// What ended contexts may leave taken: so many address ranges, and of the 2^47 addresses of a process (docs/driver.md)
// five eighths; the rest is for the next allocators and for others.
constexpr int kMostKeptRanges = 16;
constexpr Bytes kMostKeptAddresses(std::uint64_t{5} << 44);

constexpr auto kDevices = static_cast<std::size_t>(Process::kMostDevices);

std::array<Seat, kDevices> seats;
std::shared_mutex the_gate;
std::mutex prepare_mutex;
std::atomic<std::uint64_t> context_generation{1};
std::atomic<std::uint64_t> devices_seen;  // a bit each
std::atomic<bool> several;

// The last context this thread had current, and whose it was.
struct Remembered {
  CUcontext context = nullptr;
  std::uint64_t generation = 0;
  int device = -1;
};
thread_local Remembered remembered;

struct KnownStream {
  CUstream stream;
  int device;
};
std::mutex streams_mutex;
std::vector<KnownStream>* non_blocking;  // Sync: streams_mutex; leaked

bool in_range(int device) {
  return device >= 0 && static_cast<std::size_t>(device) < kDevices;
}

// Makes a context current for a while.
class Pushed {
 public:
  explicit Pushed(CUcontext context) : result_(real().context_push(context)) {}
  Pushed(const Pushed&) = delete;
  Pushed& operator=(const Pushed&) = delete;
  ~Pushed() {
    if (result_ == CUDA_SUCCESS) {
      CUcontext popped = nullptr;
      real().context_pop(&popped);
    }
  }
  [[nodiscard]] CUresult result() const { return result_; }

 private:
  CUresult result_;
};

CUcontext find_primary(int device) {
  unsigned flags = 0;
  int active = 0;
  if (real().primary_state(device, &flags, &active) != CUDA_SUCCESS || active == 0) {
    return nullptr;
  }
  CUcontext primary = nullptr;
  if (real().primary_retain(&primary, device) != CUDA_SUCCESS) {
    return nullptr;
  }
  real().primary_release(device);
  return primary;
}

int find_device_of(CUcontext context) {
  const Pushed pushed(context);
  CUdevice device = -1;
  if (pushed.result() != CUDA_SUCCESS || real().context_device(&device) != CUDA_SUCCESS ||
      !in_range(device)) {
    return -1;
  }
  const CUcontext primary = find_primary(device);
  if (primary != context) {
    return -1;
  }
  seat(device).primary.store(primary, std::memory_order_release);
  const std::uint64_t bit = std::uint64_t{1} << device;
  if ((devices_seen.fetch_or(bit, std::memory_order_acq_rel) & ~bit) != 0) {
    several.store(true, std::memory_order_release);
  }
  return device;
}

// Of the peers of `device`, those in `which`.
bool grant(DeviceAllocator& allocator, std::uint64_t which) {
  bool good = true;
  for (int peer = 0; which != 0 && good; ++peer, which >>= 1) {
    good = (which & 1) == 0 || allocator.grant_access(DeviceOrdinal(peer)).ok();
  }
  return good;
}

// Two of the visible devices of which the first has no way to the memory of the second; -1: there are none.
struct Apart {
  int first = -1;
  int second = -1;
};
Apart devices_apart() {
  int count = 0;
  if (real().device_count(&count) != CUDA_SUCCESS) {
    return {};
  }
  for (int first = 0; first < count; ++first) {
    for (int second = 0; second < count; ++second) {
      int able = 0;
      if (first != second &&
          (real().can_access_peer(&able, first, second) != CUDA_SUCCESS || able == 0)) {
        return {first, second};
      }
    }
  }
  return {};
}

Service decide_service(int device) {
  if (options().preload == PreloadMode::kNative) {
    return Service::kNative;
  }
  if (options().preload == PreloadMode::kAuto) {
    if (const Apart apart = devices_apart(); apart.first >= 0) {
      if (first_time(OnceMessage::kGpusApart)) {
        say("of the GPUs that this process sees, device %d cannot use the memory of device %d, "
            "and plain copies between them fail on mapped memory; the driver serves alone "
            "(CUDA_VISIBLE_DEVICES shows a process fewer; preload:vmm overrules)",
            apart.first,
            apart.second);
      }
      return Service::kNative;
    }
  }
  const int kept = Process::instance().kept_ranges();
  if (kept >= kMostKeptRanges || Process::instance().kept_addresses() >= kMostKeptAddresses) {
    say("contexts ended %d times while memory was in use that outlives them, and its addresses "
        "stay taken; the driver serves device %d from here on",
        kept,
        device);
    return Service::kNative;
  }
  const Result<DeviceAllocator*> made = Process::instance().device(device);
  if (!made) {
    give_up("starting nofrag", to_string(made.error().code));
    return Service::kNative;
  }
  if (!made.value()->uses_virtual_memory()) {
    return Service::kNative;  // said by the start
  }
  if (!grant(*made.value(), seat(device).peers.load())) {
    say_no_access(device);
    return Service::kNative;
  }
  if (courier_of(device) == nullptr) {
    give_up("making a stream", "the driver refused it");
    return Service::kNative;
  }
  return Service::kVmm;
}

}  // namespace

Seat& seat(int device) {
  return seats[static_cast<std::size_t>(device)];
}

int device_of(CUcontext context) {
  if (context == nullptr) {
    return -1;
  }
  const std::uint64_t generation = context_generation.load(std::memory_order_acquire);
  if (remembered.context != context || remembered.generation != generation) [[unlikely]] {
    remembered = {context, generation, find_device_of(context)};
  }
  return remembered.device;
}

CUcontext primary_of(int device) {
  if (!in_range(device)) {
    return nullptr;
  }
  const CUcontext known = seat(device).primary.load(std::memory_order_acquire);
  return known != nullptr ? known : find_primary(device);
}

std::uint64_t seen_devices() {
  return devices_seen.load(std::memory_order_acquire);
}

bool several_devices() {
  return several.load(std::memory_order_relaxed);
}

int ordinal_of(CUcontext context) {
  int device = device_of(context);
  if (device < 0 && context != nullptr) {
    const Pushed pushed(context);
    if (pushed.result() != CUDA_SUCCESS || real().context_device(&device) != CUDA_SUCCESS) {
      return -1;
    }
  }
  return device;
}

int current_device() {
  CUcontext context = nullptr;
  return real().context_current(&context) == CUDA_SUCCESS ? device_of(context) : -1;
}

int device_of_stream(CUstream stream) {
  constexpr std::uintptr_t kLastDefault = 2;
  if (reinterpret_cast<std::uintptr_t>(stream) <= kLastDefault) {
    return current_device();
  }
  CUcontext context = nullptr;
  return real().stream_context(stream, &context) == CUDA_SUCCESS ? device_of(context) : -1;
}

void forget_contexts() {
  context_generation.fetch_add(1, std::memory_order_acq_rel);
}

Service service_of(int device) {
  Seat& here = seat(device);
  Service service = here.service.load(std::memory_order_acquire);
  if (service == Service::kUnknown) [[unlikely]] {
    const std::lock_guard lock(prepare_mutex);
    service = here.service.load(std::memory_order_acquire);
    if (service == Service::kUnknown) {
      service = decide_service(device);
      here.service.store(service, std::memory_order_release);
    }
  }
  return service;
}

Shared share_with(int device, int peer) {
  const std::uint64_t bit = std::uint64_t{1} << peer;
  const std::lock_guard lock(prepare_mutex);
  std::atomic<std::uint64_t>& peers = seat(device).peers;
  if ((peers.fetch_or(bit) & bit) != 0) {
    return Shared::kAlready;
  }
  several.store(true, std::memory_order_release);
  // Without one it is seen to when nofrag's memory begins, and the driver's own needs nothing.
  DeviceAllocator* const allocator = Process::instance().used_device(device);
  if (allocator != nullptr && !grant(*allocator, bit)) {
    peers.fetch_and(~bit);
    return Shared::kRefused;
  }
  share_imports(device, peer);
  return Shared::kNew;
}

void say_no_access(int device) {
  say("another GPU needs access to the memory of device %d, and the driver refuses that for "
      "what nofrag maps; it "
      "serves the device from here on (preload:native does so from the start)",
      device);
}

void pass_on(int device) {
  seat(device).service.store(Service::kNative, std::memory_order_release);
}

CUstream courier_of(int device) {
  Seat& here = seat(device);
  CUstream courier = here.courier.load(std::memory_order_acquire);
  if (courier != nullptr) {
    return courier;
  }
  if (real().stream_create(&courier, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    return nullptr;
  }
  CUstream none = nullptr;
  if (!here.courier.compare_exchange_strong(none, courier)) {
    real().stream_destroy(courier);
    courier = none;
  }
  return courier;
}

bool is_courier(int device, CUstream stream) {
  return stream != nullptr && seat(device).courier.load(std::memory_order_relaxed) == stream;
}

DeviceAllocator* owner_of(CUdeviceptr pointer) {
  const Process& process = Process::instance();
  for (std::size_t i = 0; i < kDevices; ++i) {
    // Devices that were never served have no addresses of ours, but other doors may have used them.
    DeviceAllocator* const device = process.used_device(static_cast<int>(i));
    if (device != nullptr && device->owns(VirtAddr(std::uint64_t{pointer}))) {
      return device;
    }
  }
  return nullptr;
}

CUresult wait_for_device(int device) {
  CUcontext current = nullptr;
  const CUcontext primary = seat(device).primary.load(std::memory_order_acquire);
  if (real().context_current(&current) == CUDA_SUCCESS && current == primary) {
    return real().context_synchronize();
  }
  const Pushed pushed(primary);
  return pushed.result() == CUDA_SUCCESS ? real().context_synchronize() : pushed.result();
}

std::shared_mutex& gate() {
  return the_gate;
}

void drop_device(int device) {
  if (!in_range(device)) {
    return;
  }
  Seat& here = seat(device);
  const bool outlived = note_ended(device);
  const CUstream courier = here.courier.exchange(nullptr);
  forget_captures(device);
  forget_aside(device);
  forget_exports(device);
  forget_imports(device);
  Process::instance().drop_device(
      device, outlived ? Process::Addresses::kKept : Process::Addresses::kGivenBack);
  if (courier != nullptr) {
    real().stream_destroy(courier);
  }
  {
    const std::lock_guard lock(streams_mutex);
    if (non_blocking != nullptr) {
      std::erase_if(*non_blocking,
                    [&](const KnownStream& known) { return known.device == device; });
    }
  }
  here.primary.store(nullptr);
  here.peers.store(0);  // they had access to the context that ends
  here.async_live.store(0);
  here.async_peak.store(0);
  here.reserved_peak.store(0);
  if (here.service.load() == Service::kVmm) {
    here.service.store(Service::kUnknown);
  }
  forget_contexts();
}

void note_stream(CUstream stream, unsigned flags) {
  if ((flags & CU_STREAM_NON_BLOCKING) == 0) {
    return;
  }
  const int device = current_device();
  if (device < 0) {
    return;
  }
  const std::lock_guard lock(streams_mutex);
  if (non_blocking == nullptr) {
    non_blocking = new std::vector<KnownStream>;
  }
  non_blocking->push_back({stream, device});
}

void forget_stream(CUstream stream) {
  const std::lock_guard lock(streams_mutex);
  if (non_blocking != nullptr) {
    std::erase_if(*non_blocking, [&](const KnownStream& known) { return known.stream == stream; });
  }
}

std::vector<CUstream> streams_of(int device) {
  std::vector<CUstream> found;
  const std::lock_guard lock(streams_mutex);
  if (non_blocking != nullptr) {
    for (const KnownStream& known : *non_blocking) {
      if (known.device == device) {
        found.push_back(known.stream);
      }
    }
  }
  return found;
}

}  // namespace nofrag::preload
