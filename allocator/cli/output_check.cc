// What a command is about to write must be nothing that it reads, and no two of its outputs one file.
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <sys/stat.h>

#include "cli/commands.h"

namespace nofrag {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStandard = "-";

// The same regular file, under whatever names. Devices (/dev/null) hold nothing that could be lost.
bool same_file(const struct stat& a, const struct stat& b) {
  return S_ISREG(a.st_mode) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Both will be the same file, once they are there.
bool same_name(const std::string& a, const std::string& b) {
  std::error_code failed;
  const fs::path first = fs::weakly_canonical(fs::absolute(a), failed);
  return !failed && first == fs::weakly_canonical(fs::absolute(b), failed) && !failed;
}

// File systems say so only when the file gets its name, after the work is done.
void refuse_long_name(const OutputPath& output) {
  for (const fs::path& part : fs::path(output.path)) {
    const std::string name = part.string();
    if (name.size() > NAME_MAX) {
      throw UsageError(fmt::format(
          "{} {}...: a file's name has at most {} bytes, and this one has {}; name another",
          output.option,
          name.substr(0, 40),
          NAME_MAX,
          name.size()));
    }
  }
}

bool is_input(const std::string& input, const struct stat& output) {
  struct stat status {};
  const int known =
      input == kStandard ? ::fstat(STDIN_FILENO, &status) : ::stat(input.c_str(), &status);
  return known == 0 && same_file(status, output);
}

bool collide(const std::string& a, const std::string& b) {
  if (a == kStandard || b == kStandard) {
    return a == b;
  }
  struct stat first {};
  struct stat second {};
  if (::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0) {
    return same_file(first, second);
  }
  return same_name(a, b);
}

// An option that lost its value takes the next word, a log or a recording, for a name. What is there is replaced only
// by more of its kind.
bool other_kind(const OutputPath& output, const struct stat& status) {
  if (output.kind == OutputKind::kTrace || !S_ISREG(status.st_mode) || status.st_size == 0) {
    return false;
  }
  std::ifstream file(output.path, std::ios::binary);
  return file.get() != (output.kind == OutputKind::kJson ? '{' : '<');
}

}  // namespace

void refuse_overwriting(const std::vector<std::string>& inputs,
                        const std::vector<OutputPath>& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [option, path, kind] = outputs[i];
    if (path.empty()) {
      continue;
    }
    refuse_long_name(outputs[i]);
    struct stat status {};
    const bool there = path != kStandard && ::stat(path.c_str(), &status) == 0;
    for (const std::string& input : inputs) {
      if (there && is_input(input, status)) {
        throw UsageError(
            fmt::format("{} {}: is an input of this command, and would be overwritten; "
                        "name another file",
                        option,
                        path));
      }
    }
    if (there && other_kind(outputs[i], status)) {
      throw UsageError(
          fmt::format("{} {}: is there and no {}, and would be overwritten; name another file",
                      option,
                      path,
                      kind == OutputKind::kJson ? "JSON" : "page"));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!outputs[j].path.empty() && collide(path, outputs[j].path)) {
        throw UsageError(fmt::format("{} and {} both write {}; name a file for each",
                                     outputs[j].option,
                                     option,
                                     path == kStandard ? "standard output (-)" : path));
      }
    }
  }
}

}  // namespace nofrag
