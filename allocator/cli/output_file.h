// OutputFile: a file that appears under its name only when it is whole.
//
// Owns: an open file, which has no name until finish() (so a process that is killed leaves nothing), or a temporary one
// in the same folder where the file system has no such files. What was there before stays as it was until then, and for
// good where writing fails. What cannot be lost or replaced (pipes, terminals, /dev/null, what /dev and
// /proc name) is written in place; "-" is standard output.
// Layer: cli. Threads: none. Failure: UsageError where the path cannot be opened, RunError where writing fails.
// Cost: the bytes, and a rename.
#pragma once

#include <zlib.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace nofrag {

class OutputFile {
 public:
  enum class Packing : unsigned char { kNone, kGzip };

  explicit OutputFile(const std::string& path, Packing packing = Packing::kNone);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  // Without finish() nothing has happened.
  ~OutputFile();

  [[nodiscard]] bool write(std::string_view bytes);
  void finish();

 private:
  void choose_place(const std::string& path);
  void open(const std::string& path, Packing packing);
  [[nodiscard]] bool give_name();
  // Everything is on its way to the disk, and the file closed.
  [[nodiscard]] bool close();

  std::string path_;       // without links
  std::string temporary_;  // the name before the last; empty: written in place
  int unnamed_ = -1;       // the file while it has no name; -1: it has the temporary one
  std::FILE* file_ = nullptr;
  gzFile packed_ = nullptr;  // instead of file_
};

}  // namespace nofrag
