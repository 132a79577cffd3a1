// StatusFile: this process's page for `nofrag top`, while it lives.
//
// Owns: the file and its mapping. Layer: runtime. Threads: one calls publish; remove may come from another.
// Failure: no page (no /dev/shm, a folder that is not ours): nothing is published, and nothing else happens.
// After a fork the child leaves the file alone. Layout and safety: stats/status_page.h.
#pragma once

#include <atomic>
#include <string>

#include "stats/status_page.h"

namespace nofrag {

class StatusFile {
 public:
  StatusFile() = default;
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;
  ~StatusFile() = default;  // the process's end: remove() was called, or must not be

  bool open();
  void publish(ProcessStatus status);
  void remove();

 private:
  StatusPage* page_ = nullptr;
  std::atomic<bool> present_{false};
  std::string path_;
  std::uint64_t start_ = 0;
};

}  // namespace nofrag
