#include <unistd.h>

#include <chrono>
#include <thread>

#include <sys/ioctl.h>

#include "cli/commands.h"
#include "cli/top/top.h"

namespace nofrag {
namespace {

constexpr const char* kHomeAndClear = "\x1b[H\x1b[J";
constexpr unsigned kLeastRows = 3;

// Asked each time: a window may have another size now. One that does not tell its size gets everything.
std::string on_screen(const std::string& table) {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 &&
                     size.ws_row >= kLeastRows;
  return known ? fit_to_screen(table, size.ws_col, size.ws_row) : table;
}

}  // namespace

ExitCode run_top(const TopArguments& arguments) {
  constexpr double kShortest = 0.1;
  constexpr double kLongest = 3600;
  if (!(arguments.interval >= kShortest && arguments.interval <= kLongest)) {
    throw UsageError("--interval: expected seconds from 0.1 to 3600");
  }
  const std::string folder = status_folder();
  // What is no terminal gets one table, or one after the other.
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  while (true) {
    const std::vector<SeenProcess> processes = read_processes(folder);
    if (arguments.json) {
      write_output("-", top_json(processes));
    } else if (terminal && !arguments.once) {
      write_output("-", kHomeAndClear + on_screen(top_table(processes)));
    } else {
      write_output("-", top_table(processes));
    }
    if (arguments.once) {
      return ExitCode::kOk;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.interval));
  }
}

}  // namespace nofrag
