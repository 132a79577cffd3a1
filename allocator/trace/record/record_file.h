// RecordFile: the file of a recording, which this process alone writes.
//
// Owns: a file descriptor, and the lock on the file that keeps other processes out. Layer: trace. Units: bytes.
// Invariants: every append reaches the kernel before it returns, so that a killed process loses nothing of it.
// A path may hold %p, the process's number. Where another process records to the same file, the number is
// appended to the name.
// Threads: none. Failure: open and append say false, and problem() what went wrong, for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nofrag {

class RecordFile {
 public:
  RecordFile() = default;
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  ~RecordFile() { close(); }

  // Empties the file if it is there; with `keep_foreign` only if it is a recording.
  bool open(const std::string& path, bool keep_foreign = false);
  bool append(std::string_view bytes);
  void close();
  // Takes it away if open() made it; pipes, devices and files that were there stay.
  void remove_if_made();
  // Closes it, and gives it this name instead of its own.
  bool rename_to(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }

  static std::string expand(const std::string& path);
  // Is there nothing at `path` that would be lost? An empty file, a recording (also one that `nofrag convert` wrote
  // anew), a pipe are nothing to keep; a trace converted from another source is.
  static bool replaceable(const std::string& path);
  // And may a finished file take the place of what is there? Not of a device or a pipe: /dev/null would be gone.
  static bool may_take_place_of(const std::string& path);
  // Says so: false, with a problem.
  bool refuse(const std::string& path);

 private:
  bool fail(const char* what);
  bool open_locked(const std::string& path, bool keep_foreign, bool* busy);

  int file_ = -1;
  bool made_ = false;  // by open(): no file was there
  std::string path_;
  std::uint64_t size_ = 0;
  std::string problem_;
};

}  // namespace nofrag
