#include "cli/run/program_file.h"

#include <elf.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <vector>

#include <sys/stat.h>
#include <sys/xattr.h>

namespace nofrag {
namespace {

namespace fs = std::filesystem;

bool is_static(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr)) {
    return false;
  }
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment) ||
        segment.p_type == PT_INTERP) {
      return false;
    }
  }
  return true;
}

bool is_script(const fs::path& path) {
  char begins[2] = {};
  return std::ifstream(path, std::ios::binary).read(begins, sizeof begins) && begins[0] == '#' &&
         begins[1] == '!';
}

// Of such a program the loader drops what would be preloaded. Scripts get no rights, whatever their bits say, and
// a group's only with its x.
bool is_privileged(const fs::path& path) {
  constexpr mode_t kGroupRights = S_ISGID | S_IXGRP;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return false;
  }
  const bool of_user = (info.st_mode & S_ISUID) != 0 && info.st_uid != ::geteuid();
  const bool of_group = (info.st_mode & kGroupRights) == kGroupRights && info.st_gid != ::getegid();
  return (of_user || of_group) && !is_script(path);
}

// Capabilities of a file (getcap) set what the loader goes by as set-user-id does. To root they give nothing new.
bool is_capable(const fs::path& path) {
  return ::getuid() != 0 && ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0 &&
         !is_script(path);
}

ProgramFile examine(const fs::path& path) {
  std::error_code failed;
  if (!fs::exists(path, failed)) {
    return {};
  }
  if (!fs::is_regular_file(path, failed) || ::access(path.c_str(), X_OK) != 0) {
    return {ProgramKind::kNotExecutable, path};
  }
  if (is_privileged(path)) {
    return {ProgramKind::kPrivileged, path};
  }
  if (is_capable(path)) {
    return {ProgramKind::kCapable, path};
  }
  return {is_static(path) ? ProgramKind::kStatic : ProgramKind::kDynamic, path};
}

}  // namespace

ProgramFile find_program(const std::string& name, std::string_view search_path) {
  if (name.find('/') != std::string::npos) {
    return examine(name);
  }
  ProgramFile best;
  while (!name.empty()) {
    const std::size_t end = search_path.find(':');
    const std::string_view folder = search_path.substr(0, end);
    const ProgramFile found = examine(fs::path(folder.empty() ? "." : folder) / name);
    if (found.kind != ProgramKind::kMissing && found.kind != ProgramKind::kNotExecutable) {
      return found;
    }
    // A file that may not be run is passed over, as by a shell, and told if nothing better comes.
    if (found.kind == ProgramKind::kNotExecutable && fs::is_regular_file(found.path)) {
      best = found;
    }
    if (end == std::string_view::npos) {
      break;
    }
    search_path.remove_prefix(end + 1);
  }
  return best;
}

}  // namespace nofrag
