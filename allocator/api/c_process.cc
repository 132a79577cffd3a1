// The C interface: start, version, errors, driver, callbacks.
#include <cstddef>

#include "api/edge.h"
#include "runtime/process.h"

using nofrag::Process;

namespace {

constexpr const char* kStatusNames[] = {"ok",
                                        "out of memory",
                                        "memory limit reached",
                                        "invalid argument",
                                        "unknown pointer",
                                        "not supported",
                                        "not ready",
                                        "not initialized",
                                        "driver failure",
                                        "not allowed during graph capture",
                                        "already initialized",
                                        "bad configuration",
                                        "not usable after fork",
                                        "process is exiting",
                                        "buffer too small"};

// The fields of *config that this library knows; what it does not know must be zero.
nofrag_status read_config(const nofrag_config* config, nofrag_config* known) {
  if (!nofrag::struct_size_plausible(config->struct_size, "nofrag_config")) {
    return NOFRAG_INVALID_ARGUMENT;
  }
  const std::size_t given = config->struct_size;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(config);
  const std::size_t copied = std::min(given, sizeof *known);
  std::memcpy(known, bytes, copied);
  if (known->version == 0) {
    return nofrag::invalid_argument("nofrag_config.version is 0: use NOFRAG_CONFIG_INIT");
  }
  bool unknown_set = std::any_of(bytes + copied, bytes + given, [](auto b) { return b != 0; });
  for (const std::uint64_t word : known->reserved) {
    unknown_set = unknown_set || word != 0;
  }
  if (unknown_set) {
    return to_status(nofrag::set_last_error({nofrag::Errc::kNotSupported},
                                            "nofrag_config sets fields that version %s of the "
                                            "library does not know",
                                            NOFRAG_VERSION_STRING));
  }
  return NOFRAG_OK;
}

}  // namespace

const char* nofrag_status_name(nofrag_status status) noexcept {
  const auto index = static_cast<std::size_t>(status);
  return index < std::size(kStatusNames) ? kStatusNames[index] : "unknown status";
}

nofrag_status nofrag_last_error(const char** message) noexcept {
  const nofrag::LastError& last = nofrag::last_error();
  if (message != nullptr) {
    *message = last.text;
  }
  return nofrag::to_status(last.error);
}

const char* nofrag_version(void) noexcept {
  return NOFRAG_VERSION_STRING;
}

nofrag_status nofrag_init(const nofrag_config* config) noexcept {
  nofrag_config known = NOFRAG_CONFIG_INIT;
  if (config != nullptr) {
    if (const nofrag_status status = read_config(config, &known); status != NOFRAG_OK) {
      return status;
    }
  }
  return to_status(Process::instance().init(known.conf).code());
}

nofrag_status nofrag_driver_name(char* buffer, size_t capacity, size_t* needed) noexcept {
  Process& process = Process::instance();
  if (const nofrag::Status started = process.start(); !started) {
    return nofrag::to_status(started.code());
  }
  return nofrag::copy_text(process.driver_name(), buffer, capacity, needed);
}

nofrag_status nofrag_device_count(int* count) noexcept {
  if (count == nullptr) {
    return nofrag::invalid_argument("count is NULL");
  }
  const nofrag::Result<int> counted = Process::instance().device_count();
  *count = counted ? counted.value() : 0;
  return nofrag::to_status(counted.code());
}

namespace {

template <typename Function>
nofrag_status add_callback(nofrag::CallbackList<Function>& list, Function callback, void* user) {
  if (Process::instance().forked()) {
    return nofrag::to_status(Process::instance().start().code());  // the list's lock may be stuck
  }
  if (callback == nullptr) {
    return nofrag::invalid_argument("the callback is NULL");
  }
  if (!list.add(callback, user)) {
    return to_status(nofrag::set_last_error({nofrag::Errc::kNotSupported},
                                            "more than %zu callbacks of one kind",
                                            nofrag::CallbackList<Function>::kMost));
  }
  return NOFRAG_OK;
}

template <typename Function>
nofrag_status remove_callback(nofrag::CallbackList<Function>& list, Function callback, void* user) {
  if (Process::instance().forked()) {
    return nofrag::to_status(Process::instance().start().code());
  }
  return list.remove(callback, user) ? NOFRAG_OK
                                     : nofrag::invalid_argument("no such callback was added");
}

}  // namespace

nofrag_status nofrag_add_oom_callback(nofrag_oom_callback callback, void* user) noexcept {
  return add_callback(Process::instance().oom_callbacks(), callback, user);
}

nofrag_status nofrag_remove_oom_callback(nofrag_oom_callback callback, void* user) noexcept {
  return remove_callback(Process::instance().oom_callbacks(), callback, user);
}

nofrag_status nofrag_add_pressure_callback(nofrag_pressure_callback callback, void* user) noexcept {
  return add_callback(Process::instance().pressure_callbacks(), callback, user);
}

nofrag_status nofrag_remove_pressure_callback(nofrag_pressure_callback callback,
                                              void* user) noexcept {
  return remove_callback(Process::instance().pressure_callbacks(), callback, user);
}
