#include "trace/record/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <sys/file.h>
#include <sys/stat.h>

#include <nofrag/trace_format.h>

#include "trace/packed_codec.h"
#include "trace/packed_format.h"

namespace nofrag {
namespace {

constexpr std::size_t kKindAt =
    sizeof(nofrag_trace_file_header) + offsetof(nofrag_trace_block_header, kind);
constexpr std::size_t kLookBytes = kKindAt + sizeof(std::uint16_t);

// A trace of another source begins with its events, a recording never does: that has a block about the process
// first, or, of a process that was killed at once, none.
bool begins_like_a_recording(std::string_view bytes) {
  if (!looks_packed(bytes.substr(0, NOFRAG_TRACE_MAGIC_BYTES))) {
    return false;
  }
  if (bytes.size() < kLookBytes) {
    return true;
  }
  const auto kind = load_little_endian<std::uint16_t>(bytes, kKindAt);
  return kind != NOFRAG_TRACE_BLOCK_EVENTS && kind != NOFRAG_TRACE_BLOCK_END;
}

}  // namespace

std::string RecordFile::expand(const std::string& path) {
  std::string expanded = path;
  const std::size_t at = expanded.find("%p");
  if (at != std::string::npos) {
    expanded.replace(at, 2, std::to_string(::getpid()));
  }
  return expanded;
}

bool RecordFile::fail(const char* what) {
  problem_ = path_ + ": cannot be " + what + " (" + std::strerror(errno) + ")";
  return false;
}

bool RecordFile::replaceable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
    return true;
  }
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char first[kLookBytes];
  const ssize_t got = file >= 0 ? ::read(file, first, sizeof first) : -1;
  const bool ours =
      got > 0 && begins_like_a_recording(std::string_view(first, static_cast<std::size_t>(got)));
  if (file >= 0) {
    ::close(file);
  }
  return ours;
}

bool RecordFile::may_take_place_of(const std::string& path) {
  struct stat status {};
  const bool special = ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  return !special && replaceable(path);
}

bool RecordFile::refuse(const std::string& path) {
  problem_ = path + ": exists and is no recording of nofrag's; it is left as it is";
  return false;
}

bool RecordFile::open_locked(const std::string& path, bool keep_foreign, bool* busy) {
  path_ = path;
  if (keep_foreign && !replaceable(path)) {
    return refuse(path);
  }
  // A pipe that nobody reads is refused: opening it would wait for a reader.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK;
  file_ = ::open(path.c_str(), kFlags | O_EXCL, 0644);
  made_ = file_ >= 0;
  if (!made_) {
    file_ = ::open(path.c_str(), kFlags, 0644);
  }
  if (file_ < 0) {
    return fail("opened");
  }
  // Pipes and file systems without locks do without.
  *busy = ::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (*busy) {
    ::close(file_);
    file_ = -1;
    return false;
  }
  const int flags = ::fcntl(file_, F_GETFL);
  if (flags < 0 || ::fcntl(file_, F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return fail("opened");
  }
  struct stat status {};
  if (::fstat(file_, &status) == 0 && S_ISREG(status.st_mode) && ::ftruncate(file_, 0) != 0) {
    return fail("emptied");
  }
  return true;
}

bool RecordFile::open(const std::string& path, bool keep_foreign) {
  close();
  size_ = 0;
  bool busy = false;
  const std::string wanted = expand(path);
  if (open_locked(wanted, keep_foreign, &busy)) {
    return true;
  }
  if (!busy) {
    close();
    return false;
  }
  if (open_locked(wanted + "." + std::to_string(::getpid()), keep_foreign, &busy)) {
    return true;
  }
  if (busy) {
    problem_ = path_ + ": another process is writing it";
  }
  close();
  return false;
}

bool RecordFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return fail("written");
    }
    size_ += static_cast<std::uint64_t>(written);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

void RecordFile::close() {
  if (file_ >= 0) {
    ::close(file_);
    file_ = -1;
  }
}

void RecordFile::remove_if_made() {
  if (file_ >= 0 && made_) {
    std::remove(path_.c_str());
    made_ = false;
  }
}

bool RecordFile::rename_to(const std::string& path) {
  close();
  if (!may_take_place_of(path)) {
    std::remove(path_.c_str());
    return refuse(path);
  }
  if (std::rename(path_.c_str(), path.c_str()) != 0) {
    return fail("renamed");
  }
  path_ = path;
  return true;
}

}  // namespace nofrag
