#include "cli/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
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
  // A temporary file is new: what has its name already is not ours.
  const std::string& name = temporary_.empty() ? path_ : temporary_;
  const char* mode = temporary_.empty() ? "wb" : "wbx";
  if (packing == Packing::kGzip) {
    packed_ = gzopen(name.c_str(), mode);
  } else {
    file_ = std::fopen(name.c_str(), mode);
  }
  if (file_ == nullptr && packed_ == nullptr) {
    temporary_.clear();
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
  temporary_ = path_ + "." + std::to_string(::getpid()) + ".partial";
}

OutputFile::~OutputFile() {
  static_cast<void>(close());  // nobody waits for it any more
  if (!temporary_.empty()) {
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

void OutputFile::finish() {
  bool written = close();
  if (written && !temporary_.empty()) {
    std::error_code ignored;
    const fs::file_status before = fs::status(path_, ignored);
    if (fs::exists(before)) {
      fs::permissions(temporary_, before.permissions(), ignored);
    }
    written = std::rename(temporary_.c_str(), path_.c_str()) == 0;
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
