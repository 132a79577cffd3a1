#include "config/option_table.h"

#include <charconv>

namespace nofrag {
namespace {

struct SizeUnit {
  Bytes bytes;
  const char* suffix = "";
};
constexpr std::array<SizeUnit, 4> kSizeUnits = {SizeUnit{1024 * kGiB, "TiB"},
                                                SizeUnit{kGiB, "GiB"},
                                                SizeUnit{kMiB, "MiB"},
                                                SizeUnit{kKiB, "KiB"}};

template <typename Enum>
std::string format_enum(Enum value) {
  return std::string(EnumWords<Enum>::kWords[static_cast<std::size_t>(value)]);
}

template <typename Enum>
std::string enum_words() {
  std::string words;
  for (const std::string_view word : EnumWords<Enum>::kWords) {
    words += words.empty() ? "" : ", ";
    words += word;
  }
  return words;
}

std::string range(const std::string& minimum, const std::string& maximum) {
  return minimum + " to " + maximum;
}

std::string accepted_text(TextRule rule) {
  return rule == TextRule::kMetrics ? "off, PORT (1 to 65535), ADDRESS:PORT, file:PATH"
                                    : "any text";
}

constexpr std::string_view kKeys[] = {
#define NOFRAG_OPTION_BYTES(field, ...) #field,
#define NOFRAG_OPTION_DOUBLE(field, ...) #field,
#define NOFRAG_OPTION_INT(field, ...) #field,
#define NOFRAG_OPTION_BOOL(field, ...) #field,
#define NOFRAG_OPTION_STRING(field, ...) #field,
#define NOFRAG_OPTION_ENUM(field, ...) #field,
#include "config/options.def"
#undef NOFRAG_OPTION_BYTES
#undef NOFRAG_OPTION_DOUBLE
#undef NOFRAG_OPTION_INT
#undef NOFRAG_OPTION_BOOL
#undef NOFRAG_OPTION_STRING
#undef NOFRAG_OPTION_ENUM
};

}  // namespace

std::vector<OptionRow> option_table() {
  std::vector<OptionRow> rows;
#define NOFRAG_OPTION_BYTES(field, default_value, minimum, maximum, since, doc) \
  rows.push_back({#field,                                                       \
                  "size",                                                       \
                  format_bytes(default_value),                                  \
                  range(format_bytes(minimum), format_bytes(maximum)),          \
                  since,                                                        \
                  doc});
#define NOFRAG_OPTION_DOUBLE(field, default_value, minimum, maximum, since, doc) \
  rows.push_back({#field,                                                        \
                  "number",                                                      \
                  format_number(default_value),                                  \
                  number_range(default_value, minimum, maximum),                 \
                  since,                                                         \
                  doc});
#define NOFRAG_OPTION_INT(field, default_value, minimum, maximum, since, doc) \
  rows.push_back({#field,                                                     \
                  "integer",                                                  \
                  std::to_string(default_value),                              \
                  range(std::to_string(minimum), std::to_string(maximum)),    \
                  since,                                                      \
                  doc});
#define NOFRAG_OPTION_BOOL(field, default_value, since, doc) \
  rows.push_back({#field, "switch", (default_value) ? "true" : "false", "true, false", since, doc});
#define NOFRAG_OPTION_STRING(field, default_value, rule, since, doc) \
  rows.push_back({#field, "text", default_value, accepted_text(TextRule::rule), since, doc});
#define NOFRAG_OPTION_ENUM(field, type, default_value, since, doc) \
  rows.push_back({#field, "word", format_enum(default_value), enum_words<type>(), since, doc});
#include "config/options.def"
#undef NOFRAG_OPTION_BYTES
#undef NOFRAG_OPTION_DOUBLE
#undef NOFRAG_OPTION_INT
#undef NOFRAG_OPTION_BOOL
#undef NOFRAG_OPTION_STRING
#undef NOFRAG_OPTION_ENUM
  return rows;
}

std::string_view option_key(OptionId id) {
  return kKeys[static_cast<std::size_t>(id)];
}

std::string format_bytes(Bytes value) {
  if (value == kNoLimit) {
    return "none";
  }
  for (const SizeUnit& unit : kSizeUnits) {
    if (!value.is_zero() && (value % unit.bytes).is_zero()) {
      return std::to_string(value / unit.bytes) + unit.suffix;
    }
  }
  return std::to_string(value.count()) + "B";
}

std::string format_number(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  NOFRAG_CHECK(error == std::errc(), "a double needs at most 24 characters");
  return {text, end};
}

std::string number_range(double default_value, double minimum, double maximum) {
  const bool outside = default_value < minimum || default_value > maximum;
  return range(format_number(minimum), format_number(maximum)) +
         (outside ? " (or " + format_number(default_value) + ")" : "");
}

std::string option_value(const Options& options, OptionId id) {
  switch (id) {
#define NOFRAG_OPTION_BYTES(field, ...) \
  case OptionId::k_##field:             \
    return format_bytes(options.field);
#define NOFRAG_OPTION_DOUBLE(field, ...) \
  case OptionId::k_##field:              \
    return format_number(options.field);
#define NOFRAG_OPTION_INT(field, ...) \
  case OptionId::k_##field:           \
    return std::to_string(options.field);
#define NOFRAG_OPTION_BOOL(field, ...) \
  case OptionId::k_##field:            \
    return options.field ? "true" : "false";
#define NOFRAG_OPTION_STRING(field, ...) \
  case OptionId::k_##field:              \
    return options.field;
#define NOFRAG_OPTION_ENUM(field, ...) \
  case OptionId::k_##field:            \
    return format_enum(options.field);
#include "config/options.def"
#undef NOFRAG_OPTION_BYTES
#undef NOFRAG_OPTION_DOUBLE
#undef NOFRAG_OPTION_INT
#undef NOFRAG_OPTION_BOOL
#undef NOFRAG_OPTION_STRING
#undef NOFRAG_OPTION_ENUM
    case OptionId::kCount:
      break;
  }
  NOFRAG_CHECK(false, "option_value of no option");
  return {};
}

std::string dump_options(const Options& options, const std::vector<OptionSource>& sources) {
  std::string text;
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    std::string_view from = "default";
    for (const OptionSource& source : sources) {
      if (source.given.test(i)) {
        from = source.name;
      }
    }
    text += option_key(static_cast<OptionId>(i));
    text += ':';
    text += option_value(options, static_cast<OptionId>(i));
    text += " (";
    text += from;
    text += ")\n";
  }
  return text;
}

std::string conf_text(const Options& options, const OptionSet& set) {
  std::string text;
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    if (set.test(i)) {
      const auto id = static_cast<OptionId>(i);
      text += text.empty() ? "" : ",";
      text += std::string(option_key(id)) + ":" + option_value(options, id);
    }
  }
  return text;
}

std::string options_page() {
  std::string page =
      "# Options\n"
      "\n"
      "<!-- Generated from allocator/config/options.def by `nofrag-options-page`. Do not edit. "
      "-->\n"
      "\n"
      "Options are written as `key:value,key:value`, in `NOFRAG_CONF`, in the `conf` string of\n"
      "`nofrag_init` and in `--conf` of `nofrag replay` and `nofrag doctor`. The first `:` of an\n"
      "item ends the key. Spaces around keys and values do not count; of a key given twice the\n"
      "last value holds.\n"
      "Precedence: C API, then `NOFRAG_LOG`, `NOFRAG_STATS` and `NOFRAG_TRACE` (the `log`, `stats` "
      "and `trace` options in\n"
      "short), then `NOFRAG_CONF`, then the default. The environment is read once, when the\n"
      "process first uses nofrag. The program `nofrag` reads `NOFRAG_CONF` too, under its "
      "`--conf`.\n"
      "\n"
      "A size is a number of bytes, or a number with `B`, `KiB`, `MiB`, `GiB` or `TiB`: `500MiB`,\n"
      "`1.5GiB`; a fraction counts down to whole bytes (`79.18GiB`). A switch is `true` or "
      "`false` (`1` or `0`).\n"
      "An unknown key or a bad value is reported once, with the nearest key or what is accepted,\n"
      "and the default is used; `abort_conf:true` makes it fatal. The program `nofrag` refuses "
      "them.\n"
      "\n"
      "| key | type | default | accepted | since |\n"
      "|---|---|---|---|---|\n";
  for (const OptionRow& row : option_table()) {
    page += "| `" + std::string(row.key) + "` | " + std::string(row.type) + " | `" +
            row.default_value + "` | " + row.accepted + " | " + std::string(row.since) + " |\n";
  }
  for (const OptionRow& row : option_table()) {
    page += "\n## `" + std::string(row.key) + "`\n" + std::string(row.doc) + "\n";
  }
  return page;
}

}  // namespace nofrag
