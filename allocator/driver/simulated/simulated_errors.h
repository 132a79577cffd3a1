// The driver's own numbers (CUresult) for the refusals of the simulated driver.
//
// Owns: nothing. Layer: driver. So that code above which looks at Error::driver_code sees on the
// simulated driver what it would see on the real one.
#pragma once

#include "base/result.h"

namespace nofrag {

// What the real driver reports when a kernel touched memory that is not there.
inline constexpr int kIllegalAddress = 700;

inline Error simulated_error(Errc code) {
  switch (code) {
    case Errc::kOutOfMemory:
      return {code, 2};
    case Errc::kInvalidArgument:
      return {code, 1};
    case Errc::kNotSupported:
      return {code, 801};
    case Errc::kNotReady:
      return {code, 600};
    case Errc::kNotInitialized:
      return {code, 3};
    case Errc::kDriverFailure:
      return {code, 999};
    default:
      return {code, 0};
  }
}

inline Error simulated_invalid() {
  return simulated_error(Errc::kInvalidArgument);
}

}  // namespace nofrag
