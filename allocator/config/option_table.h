// OptionTable: the rows of options.def as data, for everything that lists options.
//
// Owns: constants generated from options.def and the names of enumeration values.
// Layer: config (depends on base only). Units: sizes are written as in the configuration text
// ("8MiB"). Invariants: one row an option, in the order of options.def, OptionId is the index.
// Threads: pure functions. Failure: none. Cost: option_table builds
// its strings at every call; it is for pages and messages.
#pragma once

#include <array>
#include <bitset>
#include <string>
#include <string_view>
#include <vector>

#include "config/options.h"

namespace nofrag {

enum class OptionId : unsigned char {
#define NOFRAG_OPTION_BYTES(field, ...) k_##field,
#define NOFRAG_OPTION_DOUBLE(field, ...) k_##field,
#define NOFRAG_OPTION_INT(field, ...) k_##field,
#define NOFRAG_OPTION_BOOL(field, ...) k_##field,
#define NOFRAG_OPTION_STRING(field, ...) k_##field,
#define NOFRAG_OPTION_ENUM(field, ...) k_##field,
#include "config/options.def"
#undef NOFRAG_OPTION_BYTES
#undef NOFRAG_OPTION_DOUBLE
#undef NOFRAG_OPTION_INT
#undef NOFRAG_OPTION_BOOL
#undef NOFRAG_OPTION_STRING
#undef NOFRAG_OPTION_ENUM
  kCount
};
inline constexpr std::size_t kOptionCount = static_cast<std::size_t>(OptionId::kCount);

// Which options a text has set.
using OptionSet = std::bitset<kOptionCount>;

// The words a user writes for an enumeration, in the order of its values.
template <typename Enum>
struct EnumWords;
template <>
struct EnumWords<Backend> {
  static constexpr std::array<std::string_view, 3> kWords = {"auto", "vmm", "plain"};
};
template <>
struct EnumWords<Policy> {
  static constexpr std::array<std::string_view, 3> kWords = {"balanced", "lean", "fast"};
};
template <>
struct EnumWords<ShareableHandles> {
  static constexpr std::array<std::string_view, 2> kWords = {"none", "fd"};
};
template <>
struct EnumWords<LogLevel> {
  static constexpr std::array<std::string_view, 3> kWords = {"silent", "warning", "info"};
};
template <>
struct EnumWords<PreloadMode> {
  static constexpr std::array<std::string_view, 4> kWords = {"auto", "vmm", "native", "off"};
};
template <>
struct EnumWords<StatsMode> {
  static constexpr std::array<std::string_view, 3> kWords = {"off", "exit", "summary"};
};
template <>
struct EnumWords<NvtxMode> {
  static constexpr std::array<std::string_view, 3> kWords = {"off", "ranges", "memory"};
};

// What an option of text takes.
enum class TextRule : unsigned char { kAny, kMetrics };

struct OptionRow {
  std::string_view key;
  std::string_view type;      // "size", "number", "integer", "switch", "text" or "word"
  std::string default_value;  // as a user would write it
  std::string accepted;       // range or words
  std::string_view since;
  std::string_view doc;
};

[[nodiscard]] std::vector<OptionRow> option_table();
// The name a user writes.
[[nodiscard]] std::string_view option_key(OptionId id);

// "24GiB", "8MiB", "1000B"; "none" for kNoLimit. parse_bytes reads it back to the same value.
std::string format_bytes(Bytes value);
// The shortest text that reads back as the same number.
std::string format_number(double value);
// "0 to 1"; "0 to 10 (or -1)" where the default lies outside.
std::string number_range(double default_value, double minimum, double maximum);

// An option's value as a user would write it.
std::string option_value(const Options& options, OptionId id);

// "key:value (source)" a line for `confirm_conf:true`. `given` holds, from weakest to strongest,
// the name of each source and the options it set; an option set by none is a "default".
struct OptionSource {
  std::string_view name;
  OptionSet given;
};
std::string dump_options(const Options& options, const std::vector<OptionSource>& sources);

// "key:value,key:value" of the options that are set, to be given again.
std::string conf_text(const Options& options, const OptionSet& set);

// docs/options.md, whole.
std::string options_page();

}  // namespace nofrag
