// Log: one line on stderr, if the level allows it.
//
// Owns: the process's log level. Layer: runtime; the core returns errors and never prints.
// Threads: any; a line is one write. Failure: none (a closed stderr loses the line).
// Cost: one relaxed load when the level forbids the line.
#pragma once

#include <atomic>

#include "config/options.h"

namespace nofrag {

void set_log_level(LogLevel level);
[[nodiscard]] bool log_enabled(LogLevel level);

// "nofrag: " + text + newline.
[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...);

// For messages that would repeat with every call: true the first time. Constant-initialised, so it
// may be a namespace-scope constant of runtime or a door.
class Once {
 public:
  constexpr Once() = default;
  [[nodiscard]] bool first() { return !done_.exchange(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> done_{false};
};

}  // namespace nofrag
