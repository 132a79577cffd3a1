#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/printable.h"

namespace nofrag {

using std::chrono::milliseconds;

Progress::Progress(bool enabled) : enabled_(enabled), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  clear();
}

void Progress::begin(std::string_view what, std::uint64_t total) {
  what_ = printable(what);
  total_ = total;
}

void Progress::update(std::uint64_t done) {
  const Clock::time_point now = Clock::now();
  const auto every = terminal_ ? milliseconds(200) : milliseconds(5000);
  if (!enabled_ || now - started_ < milliseconds(1000) || now - last_ < every) {
    return;
  }
  last_ = now;
  const std::uint64_t percent = total_ == 0 ? 100 : done * 100 / total_;
  if (terminal_) {
    print_to_stderr(fmt::format("\r\x1b[K{} {} %", what_, percent));
  } else {
    print_to_stderr(fmt::format("{} {} %\n", what_, percent));
  }
  shown_ = true;
}

void Progress::clear() {
  if (shown_ && terminal_) {
    std::fputs("\r\x1b[K", stderr);  // also from the destructor: must not throw
    std::fflush(stderr);
  }
  shown_ = false;
}

}  // namespace nofrag
