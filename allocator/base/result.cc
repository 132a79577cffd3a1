#include "base/result.h"

namespace nofrag {

const char* to_string(Errc code) {
  switch (code) {
    case Errc::kOk:
      return "ok";
    case Errc::kOutOfMemory:
      return "out of memory";
    case Errc::kLimit:
      return "memory limit reached";
    case Errc::kInvalidArgument:
      return "invalid argument";
    case Errc::kUnknownPointer:
      return "unknown pointer";
    case Errc::kNotSupported:
      return "not supported";
    case Errc::kNotReady:
      return "not ready";
    case Errc::kNotInitialized:
      return "not initialized";
    case Errc::kDriverFailure:
      return "driver failure";
    case Errc::kCapturing:
      return "not allowed during graph capture";
    case Errc::kAlreadyInitialized:
      return "already initialized";
    case Errc::kBadConfig:
      return "bad configuration";
    case Errc::kForked:
      return "not usable after fork";
    case Errc::kExiting:
      return "process is exiting";
    case Errc::kBufferTooSmall:
      return "buffer too small";
  }
  return "unknown error";
}

}  // namespace nofrag
