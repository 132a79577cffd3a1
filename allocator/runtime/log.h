// Log: one line on stderr, if the level allows it.
//
// Owns: the process's log level and which once-messages were said. Layer: runtime; the core returns
// errors and never prints. Threads: any; a line is one write. Failure: none (a closed stderr loses
// the line). Cost: one relaxed load when the level forbids the line.
#pragma once

#include "config/options.h"

namespace nofrag {

void set_log_level(LogLevel level);
[[nodiscard]] bool log_enabled(LogLevel level);

// "nofrag: " + text + newline.
[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...);

// Messages that would repeat with every call.
enum class OnceMessage : unsigned char {
  kFreeAfterFork,
  kForeignFree,
  kNoException,
  kGpusApart,
  kCount,
};
// True the first time in this process.
[[nodiscard]] bool first_time(OnceMessage message);

}  // namespace nofrag
