// CUresult in our words.
//
// Owns: nothing. Layer: driver/real. Numbers that have no word of their own are kDriverFailure; the
// number itself is always kept in Error::driver_code.
#pragma once

#include "base/result.h"
#include "driver/real/driver_api.h"

namespace nofrag {

inline Errc errc_of(int result) {
  if (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_CAPTURED_EVENT) {
    return Errc::kCapturing;
  }
  switch (result) {
    case CUDA_SUCCESS:
      return Errc::kOk;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Errc::kOutOfMemory;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_HANDLE:
      return Errc::kInvalidArgument;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
      return Errc::kNotInitialized;
    case CUDA_ERROR_NOT_SUPPORTED:
      return Errc::kNotSupported;
    case CUDA_ERROR_NOT_READY:
      return Errc::kNotReady;
    default:
      return Errc::kDriverFailure;
  }
}

inline Error error_of(int result) {
  return {errc_of(result), result};
}

inline Error invalid_device() {
  return error_of(CUDA_ERROR_INVALID_DEVICE);
}

}  // namespace nofrag
