#include "cli/run/variables.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "base/nearest_name.h"
#include "cli/printable.h"
#include "config/conf_items.h"
#include "config/option_table.h"
#include "config/parser.h"
#include "runtime/environment.h"
#include "runtime/tracing.h"

namespace nofrag {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "NOFRAG_";
constexpr std::string_view kFile = "file:";
constexpr std::array<std::string_view, 7> kKnown = {
    "CONF", "LIBRARY", "LOG", "METRICS", "STATS", "TORCH", "TRACE"};
constexpr std::array<std::string_view, 3> kTorchValues = {"0", "1", "hooks"};

std::string lower(std::string_view text) {
  std::string low(text);
  std::transform(low.begin(), low.end(), low.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return low;
}

std::vector<std::string_view> option_keys() {
  std::vector<std::string_view> keys;
  keys.reserve(kOptionCount);
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    keys.push_back(option_key(static_cast<OptionId>(i)));
  }
  return keys;
}

// NOFRAG_LIMIT=20GiB is how some would write NOFRAG_CONF=limit:20GiB.
std::string unknown_variable(std::string_view rest) {
  const std::string low = lower(rest);
  for (const std::string_view known : kKnown) {
    if (lower(known) == low) {
      return fmt::format("nofrag knows no such variable; did you mean {}{}?", kPrefix, known);
    }
  }
  const std::vector<std::string_view> keys = option_keys();
  std::string text = "nofrag knows no such variable";
  if (std::find(keys.begin(), keys.end(), low) != keys.end()) {
    return text + fmt::format("; {0} is an option: write NOFRAG_CONF={0}:VALUE", low);
  }
  if (const std::string_view near = nearest_name(rest, kKnown); !near.empty()) {
    text += fmt::format("; did you mean {}{}?", kPrefix, near);
  } else if (const std::string_view key = nearest_name(low, keys); !key.empty()) {
    text += fmt::format("; did you mean the option {0}, NOFRAG_CONF={0}:VALUE?", key);
  }
  return text +
         fmt::format(" (known: {}{})", kPrefix, fmt::join(kKnown, fmt::format(", {}", kPrefix)));
}

std::string value_problem(std::string_view rest, const std::string& value) {
  Options options;
  std::vector<std::string> problems;
  if (value.empty()) {
    return {};
  }
  if (rest == "TORCH") {
    return torch_problem(value);
  }
  if (rest == "LIBRARY") {
    return library_problem(value);
  }
  if (rest == "CONF") {
    parse_options(value, &options, &problems);
    check_limit(options, &problems);
  } else if (rest == "TRACE") {
    parse_trace_spec(value, &options, &problems);
  } else {
    parse_option(lower(rest), value, &options, &problems);
  }
  if (problems.empty()) {
    problems = {later_recording_problem(options.trace)};
  }
  if (problems.front().empty()) {
    problems = {later_metrics_problem(options.metrics)};
  }
  return fmt::format("{}", fmt::join(problems, "; "));
}

std::string folder_problem(const fs::path& folder) {
  std::error_code error;
  if (folder.string().find('%') != std::string::npos) {
    return {};  // it is named when the program runs
  }
  if (!fs::is_directory(folder, error)) {
    return fmt::format("there is no folder {}; make it first", folder.string());
  }
  return ::access(folder.c_str(), W_OK | X_OK) != 0
             ? fmt::format("the folder {} may not be written", folder.string())
             : std::string();
}

// An executable may be of the type of a shared library (PIE); the loader preloads none. It asks for an interpreter, or its
// dynamic section says what it is.
bool is_executable(std::string_view bytes, const Elf64_Ehdr& header) {
  const auto read = [bytes](std::uint64_t at, auto* out) {
    const bool there = at <= bytes.size() && bytes.size() - at >= sizeof *out;
    if (there) {
      std::memcpy(out, bytes.data() + at, sizeof *out);
    }
    return there;
  };
  Elf64_Phdr segment{};
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    if (!read(header.e_phoff + i * sizeof segment, &segment)) {
      return false;
    }
    if (segment.p_type == PT_INTERP) {
      return true;
    }
    Elf64_Dyn entry{};
    for (std::uint64_t at = 0; segment.p_type == PT_DYNAMIC && at < segment.p_filesz &&
                               read(segment.p_offset + at, &entry);
         at += sizeof entry) {
      if (entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_PIE) != 0) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

std::vector<Variable> own_variables() {
  std::vector<Variable> found;
  for (const auto& [name, value] : environment_with(kPrefix)) {
    Variable variable{name, value, false, {}};
    const std::string_view rest = std::string_view(name).substr(kPrefix.size());
    variable.known = std::string_view(name).starts_with(kPrefix) &&
                     std::find(kKnown.begin(), kKnown.end(), rest) != kKnown.end();
    variable.problem = variable.known ? value_problem(rest, value) : unknown_variable(rest);
    if (!variable.known || !value.empty()) {
      found.push_back(std::move(variable));
    }
  }
  std::sort(found.begin(), found.end(), [](const Variable& a, const Variable& b) {
    return a.name < b.name;
  });
  return found;
}

std::string torch_problem(std::string_view value) {
  const std::string_view word = trim_spaces(value);
  if (word.empty() ||
      std::find(kTorchValues.begin(), kTorchValues.end(), word) != kTorchValues.end()) {
    return {};
  }
  const std::string low = lower(word);
  const bool yes = low == "true" || low == "yes" || low == "on";
  const bool no = low == "false" || low == "no" || low == "off";
  const std::string_view near = yes               ? "1"
                                : no              ? "0"
                                : word.size() > 2 ? nearest_name(word, kTorchValues)
                                                  : "";
  return fmt::format(
      "{} is not one of 1 (nofrag), hooks (nofrag through the C hooks) and 0 (PyTorch's own){}",
      quoted(word),
      near.empty() ? std::string() : fmt::format("; did you mean {}?", near));
}

// The loader would say that it ignores what it cannot preload, and run the program without.
std::string library_problem(const std::string& path) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) {
    return fmt::format(
        "names {}, which {}", path, fs::exists(path, failed) ? "is no file" : "does not exist");
  }
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Elf64_Ehdr header{};
  const bool elf =
      bytes.size() > sizeof header && bytes.starts_with(std::string_view(ELFMAG, SELFMAG));
  if (elf) {
    std::memcpy(&header, bytes.data(), sizeof header);
  }
  if (!elf || header.e_type != ET_DYN || header.e_ident[EI_CLASS] != ELFCLASS64) {
    return fmt::format("names {}, which is no shared library (of 64 bits)", path);
  }
  if (is_executable(bytes, header)) {
    return fmt::format("names {}, which is a program, and no shared library", path);
  }
  return bytes.find("nofrag_init") == std::string::npos
             ? fmt::format("names {}, which is a shared library, and not libnofrag.so", path)
             : std::string();
}

std::string recording_problem(const std::string& trace) {
  std::error_code error;
  if (trace.empty() || trace == "off") {
    return {};
  }
  if (trace == "-") {
    return "a recording is a file, and never standard output; name one (or ./-)";
  }
  if (fs::is_directory(trace, error)) {
    return fmt::format("{} is a folder; name a file in it", trace);
  }
  return folder_problem(fs::absolute(trace).parent_path());
}

std::string metrics_problem(const std::string& place) {
  std::error_code error;
  if (!place.starts_with(kFile)) {
    return {};
  }
  const std::string file = place.substr(kFile.size());
  if (fs::is_directory(file, error)) {
    return fmt::format("{} is a folder; name a file in it", file);
  }
  return folder_problem(fs::absolute(file).parent_path());
}

std::string later_recording_problem(const std::string& trace) {
  return fs::path(trace).is_absolute() ? recording_problem(trace) : std::string();
}

std::string later_metrics_problem(const std::string& place) {
  return place.starts_with(kFile) && fs::path(place.substr(kFile.size())).is_absolute()
             ? metrics_problem(place)
             : std::string();
}

}  // namespace nofrag
