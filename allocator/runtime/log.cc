#include "runtime/log.h"

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace nofrag {
namespace {

std::atomic<LogLevel> level_in_use{LogLevel::kWarning};

std::array<std::atomic<bool>, static_cast<std::size_t>(OnceMessage::kCount)> said{};

}  // namespace

void set_log_level(LogLevel level) {
  level_in_use.store(level, std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) {
  return level_in_use.load(std::memory_order_relaxed) >= level;
}

bool first_time(OnceMessage message) {
  return !said[static_cast<std::size_t>(message)].exchange(true, std::memory_order_relaxed);
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
