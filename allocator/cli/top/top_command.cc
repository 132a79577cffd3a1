#include <unistd.h>

#include <chrono>
#include <thread>

#include "cli/commands.h"
#include "cli/top/top.h"

namespace nofrag {

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
    } else {
      constexpr const char* kHomeAndClear = "\x1b[H\x1b[J";
      write_output("-", (terminal && !arguments.once ? kHomeAndClear : "") + top_table(processes));
    }
    if (arguments.once) {
      return ExitCode::kOk;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.interval));
  }
}

}  // namespace nofrag
