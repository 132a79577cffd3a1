// LastError: what made this thread's last failing call fail.
//
// Owns: one status and one sentence a thread. Layer: runtime. Threads: thread-local, so no lock.
// Failure: none; a sentence longer than the buffer is cut. Cost: a format on failure, nothing on
// success.
#pragma once

#include "base/result.h"

namespace nofrag {

struct LastError {
  static constexpr std::size_t kTextBytes = 2048;
  Error error;
  char text[kTextBytes] = {};
};

[[nodiscard]] const LastError& last_error();
// Returns `error`, so that a failing function can end with it.
[[gnu::format(printf, 2, 3)]] Error set_last_error(Error error, const char* format, ...);
void clear_last_error();
// Back to what last_error() was, where a call succeeds although something within it failed.
void restore_last_error(const LastError& before);

}  // namespace nofrag
