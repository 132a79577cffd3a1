// The fake's state, devices, contexts, streams, events and captures.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "fake.h"

namespace fake {
namespace {

long number(const char* name, long otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtol(text, nullptr, 10) : otherwise;
}

thread_local std::vector<Context*>* thread_stack;  // one of Driver::stacks
thread_local CUstreamCaptureMode mode_of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;

}  // namespace

Driver::Driver() : devices(static_cast<int>(number("FAKE_CUDA_DEVICES", 1))) {
  nofrag::SimulatedDeviceSpec spec;
  spec.info.total_memory =
      nofrag::Bytes(static_cast<std::uint64_t>(number("FAKE_CUDA_MIB", 1024)) << 20);
  spec.info.virtual_memory = std::getenv("FAKE_CUDA_NO_VMM") == nullptr;
  sim = std::make_unique<nofrag::SimulatedDriver>(
      std::vector<nofrag::SimulatedDeviceSpec>(static_cast<std::size_t>(devices), spec), "fake");
  sim->set_violations_fail(false);
  for (int i = 0; i < devices; ++i) {
    auto primary = std::make_unique<Context>();
    primary->device = i;
    primary->primary = true;
    primaries.push_back(std::move(primary));
    current_pools.push_back(default_pool(i));
    pools.insert(default_pool(i));
  }
  // "cuMemMap:3:999": the third cuMemMap answers 999.
  for (const char* at = std::getenv("FAKE_CUDA_FAIL"); at != nullptr && *at != '\0';) {
    const char* const colon = std::strchr(at, ':');
    char* end = nullptr;
    const unsigned long nth = std::strtoul(colon + 1, &end, 10);
    faults.push_back(
        {std::string(at, colon), nth, static_cast<int>(std::strtol(end + 1, &end, 10))});
    at = *end == ',' ? end + 1 : nullptr;
  }
}

Driver& driver() {
  static Driver* const the_driver = new Driver;
  return *the_driver;
}

CUresult called(const char* name) {
  Driver& d = driver();
  ++d.calls[name];
  for (auto fault = d.faults.begin(); fault != d.faults.end(); ++fault) {
    if (fault->name == name && --fault->nth == 0) {
      const auto code = static_cast<CUresult>(fault->code);
      d.faults.erase(fault);
      return code;
    }
  }
  return CUDA_SUCCESS;
}

std::vector<Context*>& stack() {
  if (thread_stack == nullptr) {
    const std::lock_guard<std::recursive_mutex> lock(driver().mutex);
    driver().stacks.push_back(std::make_unique<std::vector<Context*>>());
    thread_stack = driver().stacks.back().get();
  }
  return *thread_stack;
}

Context* current() {
  Context* const top = stack().empty() ? nullptr : stack().back();
  return top != nullptr && top->alive ? top : nullptr;
}

CUresult no_context() {
  return stack().empty() || stack().back() == nullptr ? CUDA_ERROR_INVALID_CONTEXT
                                                      : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUstreamCaptureMode& thread_mode() {
  return mode_of_thread;
}

CUresult result_of(nofrag::Errc code) {
  switch (code) {
    case nofrag::Errc::kOk:
      return CUDA_SUCCESS;
    case nofrag::Errc::kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case nofrag::Errc::kNotReady:
      return CUDA_ERROR_NOT_READY;
    case nofrag::Errc::kNotSupported:
      return CUDA_ERROR_NOT_SUPPORTED;
    case nofrag::Errc::kCapturing:
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    case nofrag::Errc::kDriverFailure:
      return CUDA_ERROR_UNKNOWN;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult unsafe_in_capture() {
  for (auto& [stream, capture] : driver().captures) {
    if (capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
        thread_mode() != CU_STREAM_CAPTURE_MODE_RELAXED) {
      capture.lost = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

CUmemoryPool default_pool(int device) {
  static char names[64];
  return reinterpret_cast<CUmemoryPool>(&names[device]);
}

bool is_default_stream(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY;
}

bool is_capturing(CUstream stream) {
  return driver().captures.count(stream) != 0;
}

void empty(Context* context) {
  Driver& d = driver();
  d.sim->device_synchronize(nofrag::DeviceOrdinal(context->device)).ignore();
  std::erase_if(d.peers, [context](const auto& pair) {
    return pair.first == context->device || pair.second == context->device;
  });
  for (auto it = d.allocations.begin(); it != d.allocations.end();) {
    fake::Allocation& allocation = it->second;
    bool theirs = allocation.context == context;
    if (theirs && context->primary && allocation.pool != nullptr && !allocation.graph) {
      allocation.outlived = true;
      theirs = false;
    }
    if (theirs) {
      d.sim
          ->free(nofrag::DeviceOrdinal(context->device), nofrag::VirtAddr(std::uint64_t{it->first}))
          .ignore();
    }
    it = theirs ? d.allocations.erase(it) : std::next(it);
  }
  std::erase_if(d.captures, [&](const auto& entry) {
    const auto stream = d.streams.find(entry.first);
    const bool theirs = stream != d.streams.end() && stream->second == context;
    if (theirs) {
      d.sim->end_capture(nofrag::StreamId(nofrag::VirtAddr(entry.first).value()),
                         nofrag::DeviceOrdinal(context->device));
    }
    return theirs;
  });
  std::erase_if(d.streams, [&](const auto& entry) { return entry.second == context; });
}

}  // namespace fake

using fake::driver;

namespace {

nofrag::DeviceOrdinal ordinal(int device) {
  return nofrag::DeviceOrdinal(device);
}

bool valid(int device) {
  return device >= 0 && device < driver().devices;
}

nofrag::StreamId id_of(CUstream stream) {
  return nofrag::StreamId(nofrag::VirtAddr(stream).value());
}

// The device of a call on a stream or event, or -1.
int here() {
  const fake::Context* const context = fake::current();
  return context != nullptr ? context->device : -1;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned /*flags*/) {
  FAKE_ENTRY("cuInit")
  driver().initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  FAKE_ENTRY("cuDriverGetVersion")
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult /*error*/, const char** name) {
  *name = "FAKE_ERROR";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  FAKE_ENTRY("cuDeviceGetCount")
  *count = driver().devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* able, CUdevice device, CUdevice peer) {
  FAKE_ENTRY("cuDeviceCanAccessPeer")
  const int count = driver().devices;
  if (device < 0 || peer < 0 || device >= count || peer >= count) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *able = device != peer && std::getenv("FAKE_CUDA_APART") == nullptr ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  FAKE_ENTRY("cuDeviceGet")
  *device = index;
  return valid(index) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice /*device*/) {
  std::strncpy(name, "fake", static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  *bytes = driver().sim->device_info(ordinal(device)).value().total_memory.count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const nofrag::DeviceInfo info = driver().sim->device_info(ordinal(device)).value();
  *value = attribute == 102   ? static_cast<int>(info.virtual_memory)
           : attribute == 103 ? 1
           : attribute == 110 ? 1
                              : 0;
  return CUDA_SUCCESS;
}

// ---- contexts

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAKE_ENTRY("cuDevicePrimaryCtxRetain")
  if (!valid(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  fake::Context& primary = *driver().primaries[static_cast<std::size_t>(device)];
  ++primary.retained;
  primary.alive = true;
  *context = reinterpret_cast<CUcontext>(&primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  FAKE_ENTRY("cuDevicePrimaryCtxRelease_v2")
  fake::Context& primary = *driver().primaries[static_cast<std::size_t>(device)];
  if (primary.retained == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (--primary.retained == 0) {
    fake::empty(&primary);
    primary.alive = false;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  std::this_thread::sleep_for(std::chrono::milliseconds(driver().reset_takes.load()));
  FAKE_ENTRY("cuDevicePrimaryCtxReset_v2")
  fake::Context& primary = *driver().primaries[static_cast<std::size_t>(device)];
  fake::empty(&primary);
  primary.alive = false;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = driver().primaries[static_cast<std::size_t>(device)]->alive ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned /*flags*/, CUdevice device) {
  FAKE_ENTRY("cuCtxCreate_v2")
  driver().made.push_back(std::make_unique<fake::Context>());
  fake::Context* const made = driver().made.back().get();
  made->device = device;
  made->alive = true;
  driver().contexts.insert(made);
  fake::stack().push_back(made);
  *context = reinterpret_cast<CUcontext>(made);
  return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context) {
  FAKE_ENTRY("cuCtxDestroy_v2")
  auto* const old = reinterpret_cast<fake::Context*>(context);
  if (driver().contexts.erase(old) == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  fake::empty(old);
  old->alive = false;
  std::erase(fake::stack(), old);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(fake::stack().empty() ? nullptr : fake::stack().back());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (!fake::stack().empty()) {
    fake::stack().pop_back();
  }
  if (context != nullptr) {
    fake::stack().push_back(reinterpret_cast<fake::Context*>(context));
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  fake::stack().push_back(reinterpret_cast<fake::Context*>(context));
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (fake::stack().empty()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *context = reinterpret_cast<CUcontext>(fake::stack().back());
  fake::stack().pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  // Also of one that has ended.
  const fake::Context* const top = fake::stack().empty() ? nullptr : fake::stack().back();
  *device = top != nullptr ? top->device : -1;
  return top != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxSynchronize(void) {
  FAKE_ENTRY("cuCtxSynchronize")
  if (here() < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (!driver().captures.empty()) {
    driver().captures.begin()->second.lost = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  driver().busy.clear();
  return fake::result_of(driver().sim->device_synchronize(ordinal(here())).code());
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned /*flags*/) {
  FAKE_ENTRY("cuCtxEnablePeerAccess")
  const auto* const theirs = reinterpret_cast<const fake::Context*>(peer);
  if (here() < 0 || theirs == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (here() == theirs->device) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  const bool fresh = driver().peers.emplace(here(), theirs->device).second;
  return fresh ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

// ---- streams and events

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned /*flags*/, int /*priority*/) {
  FAKE_ENTRY("cuStreamCreateWithPriority")
  if (here() < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const auto made = driver().sim->stream_create(ordinal(here()));
  if (!made.ok()) {
    return fake::result_of(made.error().code);
  }
  *stream = static_cast<CUstream>(nofrag::VirtAddr(made.value().value()).pointer());
  driver().streams[*stream] = fake::current();
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  FAKE_ENTRY("cuStreamCreate")
  return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy(CUstream stream) {
  FAKE_ENTRY("cuStreamDestroy_v2")
  if (driver().streams.erase(stream) == 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  driver().captures.erase(stream);
  return fake::result_of(
      driver().sim->stream_destroy(ordinal(here() < 0 ? 0 : here()), id_of(stream)).code());
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  const std::lock_guard<std::recursive_mutex> lock(driver().mutex);
  const auto found = driver().streams.find(stream);
  *context = reinterpret_cast<CUcontext>(found != driver().streams.end() ? found->second
                                                                         : fake::current());
  return *context != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuStreamGetFlags(CUstream /*stream*/, unsigned* flags) {
  *flags = CU_STREAM_NON_BLOCKING;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  const auto known = driver().sim->stream_identity(ordinal(here() < 0 ? 0 : here()), id_of(stream));
  *id = known.ok() ? known.value() : 0;
  return known.ok() ? CUDA_SUCCESS : fake::result_of(known.error().code);
}

CUresult cuStreamQuery(CUstream stream) {
  FAKE_ENTRY("cuStreamQuery")
  return driver().busy.count(stream) != 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  FAKE_ENTRY("cuStreamSynchronize")
  if (here() < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (fake::is_capturing(stream)) {
    driver().captures[stream].lost = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  driver().busy.erase(stream);
  return fake::result_of(driver().sim->stream_synchronize(ordinal(here()), id_of(stream)).code());
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned /*flags*/) {
  FAKE_ENTRY("cuStreamWaitEvent")
  driver().busy.insert(stream);
  const auto found = driver().recorded.find(event);
  if (fake::is_default_stream(stream) && found != driver().recorded.end()) {
    driver().order += std::to_string(found->second) + ">" + std::to_string(here()) + " ";
  }
  const nofrag::EventId id{nofrag::VirtAddr(event).value()};
  return fake::result_of(driver().sim->stream_wait(ordinal(here()), id_of(stream), id).code());
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const std::lock_guard<std::recursive_mutex> lock(driver().mutex);
  *status =
      fake::is_capturing(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  FAKE_ENTRY("cuStreamBeginCapture_v2")
  driver().captures[stream] = {mode, false};
  driver().sim->begin_capture(id_of(stream), ordinal(here()));
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  FAKE_ENTRY("cuStreamEndCapture")
  const auto found = driver().captures.find(stream);
  if (found == driver().captures.end()) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  const bool lost = found->second.lost;
  driver().captures.erase(found);
  const bool kept = driver().sim->end_capture(id_of(stream), ordinal(here()));
  *graph = nullptr;
  return lost || !kept ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, fake::thread_mode());
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned /*flags*/) {
  FAKE_ENTRY("cuEventCreate")
  const auto made = driver().sim->event_create(ordinal(here()));
  *event = made.ok() ? static_cast<CUevent>(nofrag::VirtAddr(made.value().raw).pointer()) : nullptr;
  return made.ok() ? CUDA_SUCCESS : fake::result_of(made.error().code);
}

CUresult cuEventDestroy(CUevent event) {
  FAKE_ENTRY("cuEventDestroy_v2")
  driver().recorded.erase(event);
  const nofrag::EventId id{nofrag::VirtAddr(event).value()};
  return fake::result_of(driver().sim->event_destroy(ordinal(here()), id).code());
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  FAKE_ENTRY("cuEventRecord")
  driver().recorded[event] = fake::is_default_stream(stream) ? here() : -1;
  const nofrag::EventId id{nofrag::VirtAddr(event).value()};
  return fake::result_of(driver().sim->event_record(ordinal(here()), id, id_of(stream)).code());
}

CUresult cuEventQuery(CUevent event) {
  FAKE_ENTRY("cuEventQuery")
  const nofrag::EventId id{nofrag::VirtAddr(event).value()};
  return fake::result_of(driver().sim->event_query(ordinal(here()), id).code());
}

CUresult cuEventSynchronize(CUevent event) {
  FAKE_ENTRY("cuEventSynchronize")
  const nofrag::EventId id{nofrag::VirtAddr(event).value()};
  return fake::result_of(driver().sim->event_synchronize(ordinal(here()), id).code());
}

}  // extern "C"
