// Edge: what every function of the C interface needs on its way in and out.
//
// Layer: api. Owns: nothing. Threads: any. Failure: each helper that fails sets the thread's last
// error and returns the status. Cost: none worth naming.
// Structures cross the edge by size: a caller built against an older header passes a smaller
// struct_size and gets the fields that it knows; one built against a newer header passes a larger
// one and gets the rest as zeros.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>

#include <nofrag/nofrag.h>

#include "base/result.h"
#include "base/units.h"
#include "runtime/last_error.h"

namespace nofrag {

nofrag_status to_status(Errc code);
inline nofrag_status to_status(Error error) {
  return to_status(error.code);
}

inline StreamId to_stream(void* stream) {
  return StreamId(VirtAddr(stream).value());
}
inline void* to_pointer(StreamId stream) {
  return VirtAddr(stream.value()).pointer();
}

// Sets the last error to kInvalidArgument with this sentence.
nofrag_status invalid_argument(const char* sentence);

// False (and last error) unless struct_size can be that of some version of the structure.
bool struct_size_plausible(std::uint32_t struct_size, const char* type);

// Fills what the caller's structure has room for. pre: *out's struct_size is the caller's.
template <typename Struct>
nofrag_status copy_out(const Struct& full, Struct* out, const char* type) {
  if (out == nullptr) {
    return invalid_argument("a pointer to the result is NULL");
  }
  const std::uint32_t room = out->struct_size;
  if (!struct_size_plausible(room, type)) {
    return NOFRAG_INVALID_ARGUMENT;
  }
  const std::size_t filled = std::min<std::size_t>(room, sizeof(Struct));
  auto* const bytes = reinterpret_cast<unsigned char*>(out);
  std::memset(bytes + filled, 0, room - filled);
  std::memcpy(bytes, &full, filled);
  out->struct_size = static_cast<std::uint32_t>(filled);
  return NOFRAG_OK;
}

// The buffer rule of nofrag_stats_text.
nofrag_status copy_text(std::string_view text, char* buffer, std::size_t capacity, size_t* needed);

}  // namespace nofrag
