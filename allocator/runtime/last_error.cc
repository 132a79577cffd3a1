#include "runtime/last_error.h"

#include <cstdarg>
#include <cstdio>

namespace nofrag {
namespace {

constinit thread_local LastError thread_error{};

}  // namespace

const LastError& last_error() {
  return thread_error;
}

Error set_last_error(Error error, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(thread_error.text, sizeof thread_error.text, format, arguments);
  va_end(arguments);
  thread_error.error = error;
  return error;
}

void clear_last_error() {
  thread_error.error = Error{};
  thread_error.text[0] = '\0';
}

void restore_last_error(const LastError& before) {
  thread_error = before;
}

}  // namespace nofrag
