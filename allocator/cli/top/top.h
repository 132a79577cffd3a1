// top: the nofrag processes of this user on this machine, read from their status pages.
//
// Layer: cli. Owns: values. Units: bytes. Threads: none. Failure: a page that cannot be trusted (not ours,
// torn, of another version, of a process that is gone) is left out; one of a dead process is removed.
// Cost: a file a process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stats/status_page.h"

namespace nofrag {

struct SeenProcess {
  ProcessStatus status;
  std::uint64_t age_ms = 0;  // since the page was written
};

// Those in `folder`, by pid.
[[nodiscard]] std::vector<SeenProcess> read_processes(const std::string& folder);
[[nodiscard]] std::string top_table(const std::vector<SeenProcess>& processes);
// The part of a table that a terminal of this size shows without wrapping or scrolling. pre: rows > 2.
[[nodiscard]] std::string fit_to_screen(std::string_view table,
                                        std::size_t columns,
                                        std::size_t rows);
[[nodiscard]] std::string top_json(const std::vector<SeenProcess>& processes);

}  // namespace nofrag
