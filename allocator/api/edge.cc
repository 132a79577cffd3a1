#include "api/edge.h"

namespace nofrag {

nofrag_status to_status(Errc code) {
  switch (code) {
    case Errc::kOk:
      return NOFRAG_OK;
    case Errc::kOutOfMemory:
      return NOFRAG_OUT_OF_MEMORY;
    case Errc::kLimit:
      return NOFRAG_LIMIT;
    case Errc::kInvalidArgument:
      return NOFRAG_INVALID_ARGUMENT;
    case Errc::kUnknownPointer:
      return NOFRAG_UNKNOWN_POINTER;
    case Errc::kNotSupported:
      return NOFRAG_NOT_SUPPORTED;
    case Errc::kNotReady:
      return NOFRAG_NOT_READY;
    case Errc::kNotInitialized:
      return NOFRAG_NOT_INITIALIZED;
    case Errc::kDriverFailure:
      return NOFRAG_DRIVER_FAILURE;
    case Errc::kCapturing:
      return NOFRAG_CAPTURING;
    case Errc::kAlreadyInitialized:
      return NOFRAG_ALREADY_INITIALIZED;
    case Errc::kBadConfig:
      return NOFRAG_BAD_CONFIG;
    case Errc::kForked:
      return NOFRAG_FORKED;
    case Errc::kExiting:
      return NOFRAG_EXITING;
    case Errc::kBufferTooSmall:
      return NOFRAG_BUFFER_TOO_SMALL;
  }
  return NOFRAG_DRIVER_FAILURE;
}

nofrag_status invalid_argument(const char* sentence) {
  return to_status(set_last_error({Errc::kInvalidArgument}, "%s", sentence));
}

bool struct_size_plausible(std::uint32_t struct_size, const char* type) {
  // Below: no room for the header. Above: most likely never set.
  constexpr std::uint32_t kSmallest = 2 * sizeof(std::uint32_t);
  constexpr std::uint32_t kLargest = 4096;
  if (struct_size >= kSmallest && struct_size <= kLargest) {
    return true;
  }
  set_last_error({Errc::kInvalidArgument},
                 "struct_size is %u: set it to sizeof(%s) before the call",
                 struct_size,
                 type);
  return false;
}

nofrag_status copy_text(std::string_view text, char* buffer, std::size_t capacity, size_t* needed) {
  if (needed != nullptr) {
    *needed = text.size() + 1;
  }
  if (buffer == nullptr && capacity != 0) {
    return invalid_argument("the buffer is NULL and its capacity is not 0");
  }
  if (capacity > text.size()) {
    std::memcpy(buffer, text.data(), text.size());
    buffer[text.size()] = '\0';
    return NOFRAG_OK;
  }
  if (capacity > 0) {
    std::memcpy(buffer, text.data(), capacity - 1);
    buffer[capacity - 1] = '\0';
  }
  // Asking for the size alone is no failure.
  if (capacity == 0 && needed != nullptr) {
    return NOFRAG_OK;
  }
  return to_status(set_last_error({Errc::kBufferTooSmall},
                                  "the text takes a buffer of %zu bytes, not of %zu",
                                  text.size() + 1,
                                  capacity));
}

}  // namespace nofrag
