// What tests ask of the fake itself.
#include <utility>

#include "fake.h"

extern "C" {

// Counts a call of an entry that does nothing; what a test wants it to answer.
unsigned long fake_cuda_note(const char* name) {
  const std::lock_guard<std::recursive_mutex> lock(fake::driver().mutex);
  return static_cast<unsigned long>(fake::called(name));
}

// How often the entry was reached.
unsigned long fake_cuda_calls(const char* name) {
  const std::lock_guard<std::recursive_mutex> lock(fake::driver().mutex);
  const auto found = fake::driver().calls.find(name);
  return found != fake::driver().calls.end() ? found->second : 0;
}

// What the default streams were given since the last call of this, as fake.h says; of this thread until the next one.
const char* fake_cuda_order(void) {
  static thread_local std::string order;
  const std::lock_guard<std::recursive_mutex> lock(fake::driver().mutex);
  order = std::exchange(fake::driver().order, "");
  return order.c_str();
}

// The nth call of the entry from now answers `code` and does nothing.
void fake_cuda_fail(const char* name, unsigned long nth, int code) {
  const std::lock_guard<std::recursive_mutex> lock(fake::driver().mutex);
  fake::driver().faults.push_back({name, nth, code});
}

// Touching what is not mapped, unmapping what is in use: see SimulatedDriver.
unsigned long fake_cuda_violations(void) {
  const std::lock_guard<std::recursive_mutex> lock(fake::driver().mutex);
  for (const std::string& violation : fake::driver().sim->violations()) {
    std::fprintf(stderr, "violation: %s\n", violation.c_str());
  }
  return fake::driver().sim->violation_count();
}

unsigned long long fake_cuda_physical_in_use(int device) {
  return fake::driver().sim->physical_in_use(nofrag::DeviceOrdinal(device)).count();
}

// The value that the next cuMemCreate gives: one that was released, say.
void fake_cuda_next_handle(unsigned long long value) {
  const std::lock_guard<std::recursive_mutex> lock(fake::driver().mutex);
  fake::driver().next_handle = value;
}

// From now on every reset takes so long, and other threads come between.
void fake_cuda_slow_reset(unsigned milliseconds) {
  fake::driver().reset_takes.store(milliseconds);
}

// Memory of other processes, which counts against the device.
void fake_cuda_others_hold(int device, unsigned long long bytes) {
  fake::driver().sim->set_memory_of_others(nofrag::DeviceOrdinal(device), nofrag::Bytes(bytes));
}

}  // extern "C"
