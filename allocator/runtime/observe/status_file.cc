#include "runtime/observe/status_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include <sys/mman.h>
#include <sys/stat.h>

namespace nofrag {
namespace {

// A folder of ours that nobody else can write to, and no link to elsewhere.
int open_folder(const std::string& path) {
  ::mkdir(path.c_str(), 0700);
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat info {};
  if (folder >= 0 &&
      (::fstat(folder, &info) != 0 || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0)) {
    ::close(folder);
    return -1;
  }
  return folder;
}

// Without memory of the heap: the host may fork meanwhile, and it would stay behind in the child.
void read_command(ProcessStatus* status) {
  const int file = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return;
  }
  char text[256];
  const ssize_t got = ::read(file, text, sizeof text);
  ::close(file);
  if (got <= 0) {
    return;
  }
  std::replace(text, text + got, '\0', ' ');
  char* const command = status->command.data();
  copy_name({text, static_cast<std::size_t>(got)}, command, status->command.size());
  // Behind the last argument is a separator, too.
  for (std::size_t end = std::strlen(command); end > 0 && command[end - 1] == ' '; --end) {
    command[end - 1] = '\0';
  }
}

}  // namespace

bool StatusFile::open() {
  const std::string folder_path = status_folder();
  const int folder = open_folder(folder_path);
  if (folder < 0) {
    return false;
  }
  const std::string name = std::to_string(::getpid());
  ::unlinkat(folder, name.c_str(), 0);  // of a dead process that had our number
  const int file =
      ::openat(folder, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  ::close(folder);
  if (file < 0) {
    return false;
  }
  void* mapped = MAP_FAILED;
  if (::ftruncate(file, sizeof(StatusPage)) == 0) {
    mapped = ::mmap(nullptr, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  path_ = folder_path + "/" + name;
  start_ = process_start_of(static_cast<std::uint64_t>(::getpid()));
  if (mapped == MAP_FAILED) {
    ::unlink(path_.c_str());
    return false;
  }
  page_ = static_cast<StatusPage*>(mapped);
  present_.store(true, std::memory_order_release);
  return true;
}

void StatusFile::publish(ProcessStatus status) {
  if (!present_.load(std::memory_order_acquire)) {
    return;
  }
  using Clock = std::chrono::system_clock;
  const auto now =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch());
  status.bytes = sizeof status;
  status.pid = static_cast<std::uint64_t>(::getpid());
  status.process_start = start_;
  status.written_ms = static_cast<std::uint64_t>(now.count());
  read_command(&status);
  write_status(status, page_);
}

// The mapping stays: another thread may be publishing.
void StatusFile::remove() {
  if (present_.exchange(false, std::memory_order_acq_rel)) {
    ::unlink(path_.c_str());
  }
}

}  // namespace nofrag
