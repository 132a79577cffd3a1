#include "runtime/log.h"

#include <cstdarg>
#include <cstdio>

namespace nofrag {
namespace {

std::atomic<LogLevel> level_in_use{LogLevel::kWarning};

}  // namespace

void set_log_level(LogLevel level) {
  level_in_use.store(level, std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) {
  return level_in_use.load(std::memory_order_relaxed) >= level;
}

void log_line(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) {
    return;
  }
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "nofrag: %s\n", text);
}

}  // namespace nofrag
