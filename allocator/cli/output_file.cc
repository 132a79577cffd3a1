#include "cli/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "cli/errors.h"

namespace nofrag {
namespace {

namespace fs = std::filesystem;

// Written in place: it cannot be replaced, or must not be. A link to nothing makes what it names.
bool is_in_place(const std::string& path) {
  std::error_code ignored;
  if (path.starts_with("/dev/") || path.starts_with("/proc/")) {
    return true;
  }
  if (!fs::exists(path, ignored)) {
    return fs::is_symlink(path, ignored);
  }
  const fs::path folder = fs::canonical(path, ignored).parent_path();
  return !fs::is_regular_file(path, ignored) || ::access(folder.c_str(), W_OK) != 0;
}

// A new file in the folder, without a name; -1 where there are none, or none that could be given a name.
int open_unnamed(const fs::path& folder) {
  if (::access("/proc/self/fd", X_OK) != 0) {
    return -1;
  }
  constexpr mode_t kForAll = 0666;  // less what the user's mask takes
  return ::open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, kForAll);
}

[[noreturn]] void refuse(const std::string& path) {
  throw UsageError(path + ": cannot be written (" + std::strerror(errno) + ")");
}

}  // namespace

OutputFile::OutputFile(const std::string& path, Packing packing) : path_(path) {
  if (path == "-") {
    file_ = stdout;
    return;
  }
  choose_place(path);
  open(path, packing);
}

void OutputFile::open(const std::string& path, Packing packing) {
  int writer = -1;
  if (temporary_.empty()) {
    writer = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  } else if (unnamed_ = open_unnamed(fs::path(path_).parent_path()); unnamed_ >= 0) {
    writer = ::fcntl(unnamed_, F_DUPFD_CLOEXEC, 0);
  } else {
    // A temporary file is new: what has its name already is not ours.
    writer = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (writer >= 0) {
    if (packing == Packing::kGzip) {
      packed_ = gzdopen(writer, "wb");
    } else {
      file_ = ::fdopen(writer, "wb");
    }
  }
  if (file_ == nullptr && packed_ == nullptr) {
    const int why = errno;
    if (writer >= 0) {
      ::close(writer);
    }
    errno = why;
    refuse(path);
  }
}

void OutputFile::choose_place(const std::string& path) {
  if (is_in_place(path)) {
    return;
  }
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    // Renaming onto a link would replace the link; and a file that is protected stays so.
    path_ = fs::canonical(path, ignored).string();
    if (::access(path_.c_str(), W_OK) != 0) {
      refuse(path);
    }
  }
  // Short, as the name itself may be as long as names can be; no two outputs have one path.
  const std::string name = ".nofrag-" + std::to_string(::getpid()) + "-" +
                           std::to_string(std::hash<std::string>{}(path_)) + ".partial";
  temporary_ = (fs::path(path_).parent_path() / name).string();
}

OutputFile::~OutputFile() {
  static_cast<void>(close());  // nobody waits for it any more
  if (unnamed_ >= 0) {
    ::close(unnamed_);
  } else if (!temporary_.empty()) {
    std::remove(temporary_.c_str());
  }
}

bool OutputFile::write(std::string_view bytes) {
  if (packed_ != nullptr) {
    return gzfwrite(bytes.data(), 1, bytes.size(), packed_) == bytes.size();
  }
  return std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size();
}

bool OutputFile::close() {
  if (packed_ != nullptr) {
    return gzclose(std::exchange(packed_, nullptr)) == Z_OK;
  }
  std::FILE* const file = std::exchange(file_, nullptr);
  if (file == nullptr) {
    return true;
  }
  const bool flushed = std::fflush(file) == 0 && std::ferror(file) == 0;
  return (file == stdout || std::fclose(file) == 0) && flushed;
}

// Only a file with a name can take the place of another.
bool OutputFile::give_name() {
  const std::string open_file = "/proc/self/fd/" + std::to_string(unnamed_);
  const bool named =
      ::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) == 0;
  const int why = errno;
  if (named) {
    ::close(std::exchange(unnamed_, -1));
  }
  errno = why;
  return named;
}

void OutputFile::finish() {
  bool written = close();
  if (written && !temporary_.empty()) {
    written = unnamed_ < 0 || give_name();
    std::error_code ignored;
    const fs::file_status before = fs::status(path_, ignored);
    if (written && fs::exists(before)) {
      fs::permissions(temporary_, before.permissions(), ignored);
    }
    written = written && std::rename(temporary_.c_str(), path_.c_str()) == 0;
    if (written) {
      temporary_.clear();
    }
  }
  if (!written) {
    const std::string what = path_ == "-" ? "standard output" : path_;
    throw RunError(what + ": could not be written (" + std::strerror(errno) + ")");
  }
}

}  // namespace nofrag
