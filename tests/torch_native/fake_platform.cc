#include "fake_platform.h"

#include <cstring>
#include <map>

namespace nofrag::test {

FakePlatform& current() {
  thread_local FakePlatform platform;
  return platform;
}

std::vector<std::string>& notes() {
  static std::vector<std::string> all;
  return all;
}

namespace {
std::map<cudaEvent_t, bool>& events() {
  static std::map<cudaEvent_t, bool> all;
  return all;
}
bool events_refused = false;
std::size_t calls = 0;
}  // namespace

void refuse_events(bool refused) {
  events_refused = refused;
}
std::size_t event_count() {
  return events().size();
}
std::size_t event_calls() {
  return calls;
}

void finish_events() {
  for (auto& [event, done] : events()) {
    done = true;
  }
}

}  // namespace nofrag::test

namespace nofrag::native::platform {

using namespace nofrag::test;

int current_device() {
  return current().device;
}
cudaStream_t current_stream(int /*device*/) {
  return current().stream;
}
cudaStream_t handle_of(c10::cuda::CUDAStream stream) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an external stream's id is its handle
  return reinterpret_cast<cudaStream_t>(static_cast<std::uintptr_t>(stream.id()));
}
std::pair<std::size_t, std::size_t> memory_info(int /*device*/) {
  return {std::size_t{3} << 30, std::size_t{80} << 30};
}
void copy(void* /*to*/, const void* /*from*/, std::size_t size) {
  notes().push_back("copy " + std::to_string(size));
}
cudaError_t copy_async(void* /*to*/, const void* /*from*/, std::size_t size, cudaStream_t /*s*/) {
  notes().push_back("copy_async " + std::to_string(size));
  return cudaSuccess;
}
cudaError_t copy_peer_async(void* /*to*/,
                            int to_device,
                            const void* /*from*/,
                            int from_device,
                            std::size_t size,
                            cudaStream_t /*stream*/) {
  notes().push_back("peer " + std::to_string(from_device) + "->" + std::to_string(to_device) + " " +
                    std::to_string(size));
  return cudaSuccess;
}
void enable_peer(int device, int accessed) {
  notes().push_back("enable " + std::to_string(device) + "->" + std::to_string(accessed));
}
bool record(int /*device*/, cudaStream_t stream, Event* event) noexcept {
  static std::uintptr_t last = 0;
  ++calls;
  if (events_refused) {
    return false;
  }
  notes().push_back("record " + std::to_string(reinterpret_cast<std::uintptr_t>(stream)));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a name, never followed
  *event = reinterpret_cast<Event>(++last);
  events()[*event] = false;
  return true;
}
Progress progress(Event event) noexcept {
  ++calls;
  if (events_refused) {
    return Progress::kUnknown;
  }
  return events().at(event) ? Progress::kDone : Progress::kRunning;
}
void wait(Event event) noexcept {
  ++calls;
  events().at(event) = true;
}
void discard(Event event) noexcept {
  events().erase(event);
}

}  // namespace nofrag::native::platform
