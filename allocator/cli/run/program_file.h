// ProgramFile: the file that a command means, and whether a library can be preloaded into it.
//
// Owns: nothing. Layer: cli. Threads: pure but for the file system. Failure: a kind, no exception: what cannot be
// read counts as dynamic, and running it will tell. Cost: a few stats and one read.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace nofrag {

enum class ProgramKind : unsigned char {
  kMissing,
  kNotExecutable,  // a directory, or without permission
  kPrivileged,     // it takes on rights that its user does not have (set-user-id, set-group-id)
  kCapable,        // its file gives it capabilities (setcap)
  kStatic,         // an ELF file without an interpreter
  kDynamic,        // all others, scripts included
};

struct ProgramFile {
  ProgramKind kind = ProgramKind::kMissing;
  std::filesystem::path path;  // absolute where it was found in `search_path`
};

// As a shell looks for it: a name with a slash is a path, any other is looked for in the directories of
// `search_path` (separated by colons).
[[nodiscard]] ProgramFile find_program(const std::string& name, std::string_view search_path);

}  // namespace nofrag
