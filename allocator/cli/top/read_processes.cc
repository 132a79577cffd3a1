#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>

#include <sys/stat.h>

#include "cli/top/top.h"

namespace nofrag {
namespace {

std::uint64_t now_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

// What was copied is whole if the page has the same number before and after.
bool same_sequence(int file, const unsigned char* copied) {
  std::uint64_t after = 0;
  std::uint64_t before = 0;
  std::memcpy(&before, copied, sizeof before);
  return ::pread(file, &after, sizeof after, 0) == static_cast<ssize_t>(sizeof after) &&
         after == before;
}

bool read_page(int folder, const char* name, ProcessStatus* status) {
  const int file = ::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) {
    return false;
  }
  struct stat info {};
  bool read = false;
  const bool ours = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode) &&
                    info.st_uid == ::geteuid() &&
                    info.st_size >= static_cast<off_t>(sizeof(StatusPage));
  if (ours) {
    // Copied, not mapped: a file that shrinks under a mapping kills its reader.
    alignas(StatusPage) unsigned char bytes[sizeof(StatusPage)];
    for (int i = 0; i < 16 && !read; ++i) {
      if (::pread(file, bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
        break;
      }
      read = read_status(reinterpret_cast<const StatusPage*>(bytes), sizeof bytes, status) &&
             same_sequence(file, bytes);
    }
  }
  ::close(file);
  return read;
}

}  // namespace

std::vector<SeenProcess> read_processes(const std::string& folder_path) {
  std::vector<SeenProcess> processes;
  const int folder = ::open(folder_path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(folder < 0 ? nullptr : ::fdopendir(folder),
                                                    [](DIR* dir) { return ::closedir(dir); });
  if (listing == nullptr) {
    return processes;
  }
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    std::uint64_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size()) {
      continue;
    }
    SeenProcess seen;
    const std::uint64_t start = process_start_of(pid);
    if (start == 0) {
      ::unlinkat(folder, entry->d_name, 0);  // its process ended without a word
      continue;
    }
    if (!read_page(folder, entry->d_name, &seen.status) || seen.status.pid != pid ||
        seen.status.process_start != start) {
      continue;
    }
    const std::uint64_t now = now_ms();
    seen.age_ms = now > seen.status.written_ms ? now - seen.status.written_ms : 0;
    processes.push_back(seen);
  }
  std::sort(processes.begin(), processes.end(), [](const SeenProcess& a, const SeenProcess& b) {
    return a.status.pid < b.status.pid;
  });
  return processes;
}

}  // namespace nofrag
