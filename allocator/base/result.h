// Result: a value or an Error, for every call that input, driver or machine can make fail.
//
// Layer: base. Out of memory is its own code and never mixed with host memory or driver faults.
// Error::driver_code keeps the driver's own number (CUresult) where there was one, else 0.
// Threads: values. Nothing here allocates or throws.
#pragma once

#include <utility>
#include <variant>

#include "base/checks.h"

namespace nofrag {

enum class Errc : unsigned char {
  kOk = 0,
  kOutOfMemory,      // the driver has no physical memory left for this request
  kLimit,            // our own limit (set_limit, memory fraction) refused it
  kInvalidArgument,  // the caller passed something that cannot be
  kUnknownPointer,   // the address is not a live block of ours
  kNotSupported,     // this driver or device cannot do it
  kNotReady,         // asked-for work is still running (event query)
  kNotInitialized,   // no driver, or the device index is not in use
  kDriverFailure,    // any other driver error; driver_code says which
  kCapturing,        // not allowed while the stream is being captured
  // Of the process (runtime/process.h):
  kAlreadyInitialized,  // init after first use, or twice
  kBadConfig,           // an unknown option or a bad value
  kForked,              // a child of a process that used the driver
  kExiting,             // the process runs its exit handlers
  kBufferTooSmall,      // a text was cut to the caller's buffer
};

// "out of memory", "limit", ... for messages.
const char* to_string(Errc code);

struct Error {
  Errc code = Errc::kOk;
  int driver_code = 0;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  // NOLINTBEGIN(google-explicit-constructor): returning a value is a success, an Error a failure
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, error) {}
  Result(Errc code) : Result(Error{code, 0}) {}
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] T& value() {
    NOFRAG_CHECK(ok(), "value() of a failed Result");
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] const T& value() const {
    NOFRAG_CHECK(ok(), "value() of a failed Result");
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] Error error() const { return ok() ? Error{} : *std::get_if<1>(&state_); }
  [[nodiscard]] Errc code() const { return error().code; }

 private:
  std::variant<T, Error> state_;
};

// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // NOLINTBEGIN(google-explicit-constructor): as for Result
  Status(Error error) : error_(error) {}
  Status(Errc code) : error_(Error{code, 0}) {}
  // NOLINTEND(google-explicit-constructor)
  [[nodiscard]] bool ok() const { return error_.code == Errc::kOk; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] Error error() const { return error_; }
  [[nodiscard]] Errc code() const { return error_.code; }
  // For the few places where nothing can be done about a failure; says so in the code.
  void ignore() const {}

 private:
  Error error_;
};

}  // namespace nofrag
