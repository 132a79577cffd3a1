#include "config/parser.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/nearest_name.h"
#include "config/conf_items.h"
#include "config/human_bytes.h"
#include "config/metrics_address.h"

namespace nofrag {
namespace {

// A whole, finite number and nothing else.
bool parse_number(std::string_view text, double* out) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && stop == end && !text.empty() && std::isfinite(*out);
}

bool parse_integer(std::string_view text, std::uint64_t* out) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && stop == end && !text.empty();
}

// Longer than any size that somebody writes.
constexpr std::size_t kLongestSize = 40;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// "limit:1,5GiB" is cut into "limit:1" and "5GiB".
bool is_cut_size(const ConfItem& before, const ConfItem& item) {
  return before.has_value && !before.value.empty() && is_digit(before.value.back()) &&
         is_digit(item.text.front()) && before.text.size() + item.text.size() < kLongestSize;
}

bool unit_from_suffix(std::string_view suffix, Bytes* unit) {
  struct Suffix {
    std::string_view text;
    Bytes unit;
  };
  constexpr Suffix kSuffixes[] = {{"", Bytes(1)},
                                  {"B", Bytes(1)},
                                  {"KiB", kKiB},
                                  {"MiB", kMiB},
                                  {"GiB", kGiB},
                                  {"TiB", 1024 * kGiB}};
  for (const Suffix& known : kSuffixes) {
    if (equals_ignoring_case(suffix, known.text)) {
      *unit = known.unit;
      return true;
    }
  }
  return false;
}

// "80GB" and "80G" are meant in one of two ways. Empty: it is no size with such a unit.
std::string with_binary_unit(std::string_view number, std::string_view suffix) {
  constexpr std::string_view kUnits[] = {"K", "M", "G", "T"};
  double decimal = 0;
  if (!parse_number(number, &decimal) || number.front() == '-') {
    return {};
  }
  for (const std::string_view unit : kUnits) {
    decimal *= 1000;
    if (!equals_ignoring_case(suffix, unit) &&
        !equals_ignoring_case(suffix, std::string(unit) + "B")) {
      continue;
    }
    std::string text = std::string(number) + std::string(unit) + "iB";
    constexpr double kExact = 9007199254740992.0;
    if (decimal < kExact && decimal == std::floor(decimal)) {
      text += ", or " + std::to_string(static_cast<std::uint64_t>(decimal)) + "B for decimal units";
    }
    return text;
  }
  return {};
}

// "1,5GiB": the sign of some languages, which ends an item here.
std::string with_a_point(std::string_view number, std::string_view suffix) {
  const std::size_t comma = number.find(',');
  if (comma == std::string_view::npos || number.find(',', comma + 1) != std::string_view::npos) {
    return {};
  }
  constexpr std::size_t kGroup = 3;
  const std::string_view rest = number.substr(comma + 1);
  const std::string before(number.substr(0, comma));
  const std::string behind = std::string(rest) + std::string(suffix);
  Bytes ignored;
  if (!parse_bytes(before + "." + behind, &ignored)) {
    return {};
  }
  return (rest.size() == kGroup ? before + behind + " or " : std::string()) + before + "." +
         behind + ": a size takes no comma";
}

class ItemParser {
 public:
  ItemParser(std::string_view key, std::string_view value, std::vector<std::string>* problems)
      : key_(key), value_(value), problems_(problems) {}

  bool bytes(Bytes minimum, Bytes maximum, Bytes* out) {
    Bytes parsed;
    if (maximum == kNoLimit && equals_ignoring_case(value_, "none")) {
      parsed = kNoLimit;
    } else if (!parse_bytes(value_, &parsed)) {
      return problem(no_size(value_));
    }
    if (parsed < minimum || parsed > maximum) {
      return out_of_range(format_bytes(minimum), format_bytes(maximum));
    }
    *out = parsed;
    return true;
  }

  bool number(double default_value, double minimum, double maximum, double* out) {
    double parsed = 0;
    if (!parse_number(value_, &parsed)) {
      return problem(quoted(value_) + " is not a number");
    }
    if ((parsed < minimum || parsed > maximum) && parsed != default_value) {
      return problem(quoted(value_) + " is outside " +
                     number_range(default_value, minimum, maximum));
    }
    *out = parsed;
    return true;
  }

  bool integer(std::int64_t minimum, std::int64_t maximum, std::int64_t* out) {
    std::int64_t parsed = 0;
    const char* const end = value_.data() + value_.size();
    const auto [stop, error] = std::from_chars(value_.data(), end, parsed);
    if (error != std::errc() || stop != end || value_.empty()) {
      return problem(quoted(value_) + " is not a whole number");
    }
    if (parsed < minimum || parsed > maximum) {
      return out_of_range(std::to_string(minimum), std::to_string(maximum));
    }
    *out = parsed;
    return true;
  }

  bool boolean(bool* out) {
    if (equals_ignoring_case(value_, "true") || value_ == "1") {
      *out = true;
      return true;
    }
    if (equals_ignoring_case(value_, "false") || value_ == "0") {
      *out = false;
      return true;
    }
    return problem(quoted(value_) + " is neither true nor false");
  }

  bool text(TextRule rule, std::string* out) {
    if (value_.empty()) {
      return problem("the value is empty");
    }
    if (rule == TextRule::kMetrics && !is_metrics_place(value_)) {
      const bool six = has_ipv6_address(value_);
      return problem(value_ == "file:" ? "\"file:\" names no file (write file:PATH)"
                     : six             ? quoted(value_) +
                                 " has an address of IPv6, and metrics are served on "
                                 "IPv4 only (write 9400 or 127.0.0.1:9400 for this "
                                 "machine, 0.0.0.0:9400 for all, file:PATH or off)"
                           : quoted(value_) +
                                 " is no port (1 to 65535), no ADDRESS:PORT, no file:PATH and not "
                                 "off");
    }
    *out = value_;
    return true;
  }

  template <typename Enum>
  bool word(Enum* out) {
    std::string accepted;
    for (std::size_t i = 0; i < EnumWords<Enum>::kWords.size(); ++i) {
      if (value_ == EnumWords<Enum>::kWords[i]) {
        *out = static_cast<Enum>(i);
        return true;
      }
      accepted += i == 0 ? "" : ", ";
      accepted += EnumWords<Enum>::kWords[i];
    }
    return problem(quoted(value_) + " is not one of " + accepted);
  }

 private:
  bool problem(const std::string& what) {
    problems_->push_back("option " + std::string(key_) + ": " + what);
    return false;
  }
  bool out_of_range(const std::string& minimum, const std::string& maximum) {
    return problem(quoted(value_) + " is outside " + minimum + " to " + maximum);
  }

  std::string_view key_;
  std::string_view value_;
  std::vector<std::string>* problems_;
};

bool parse_known(OptionId id, ItemParser* item, Options* options) {
  switch (id) {
#define NOFRAG_OPTION_BYTES(field, default_value, minimum, maximum, since, doc) \
  case OptionId::k_##field:                                                     \
    return item->bytes(minimum, maximum, &options->field);
#define NOFRAG_OPTION_DOUBLE(field, default_value, minimum, maximum, since, doc) \
  case OptionId::k_##field:                                                      \
    return item->number(default_value, minimum, maximum, &options->field);
#define NOFRAG_OPTION_INT(field, default_value, minimum, maximum, since, doc) \
  case OptionId::k_##field:                                                   \
    return item->integer(minimum, maximum, &options->field);
#define NOFRAG_OPTION_BOOL(field, ...) \
  case OptionId::k_##field:            \
    return item->boolean(&options->field);
#define NOFRAG_OPTION_STRING(field, default_value, rule, since, doc) \
  case OptionId::k_##field:                                          \
    return item->text(TextRule::rule, &options->field);
#define NOFRAG_OPTION_ENUM(field, ...) \
  case OptionId::k_##field:            \
    return item->word(&options->field);
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
  return false;
}

void report_unknown_key(std::string_view key, std::vector<std::string>* problems) {
  std::vector<std::string_view> names;
  names.reserve(kOptionCount);
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    names.push_back(option_key(static_cast<OptionId>(i)));
  }
  std::string message = "unknown option " + quoted(key);
  const std::string_view nearest = nearest_name(key, names);
  if (!nearest.empty()) {
    message += "; did you mean " + std::string(nearest) + "?";
  } else {
    message += " (docs/options.md has all)";
  }
  problems->push_back(message);
}

}  // namespace

void check_limit(const Options& options, std::vector<std::string>* problems) {
  const Bytes least = options.backend == Backend::kPlain ? Bytes(512) : 2 * kMiB;
  if (options.limit < least && options.preload != PreloadMode::kNative) {
    problems->push_back(
        "a limit of " + std::to_string(options.limit.count()) +
        " bytes would refuse every allocation: memory comes from the driver in pieces of " +
        human_bytes(least) + "; write one with a unit (20GiB), or none for no limit");
  }
}

bool parse_bytes(std::string_view text, Bytes* out) {
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, digits);
  const std::string_view suffix =
      digits == std::string_view::npos ? std::string_view() : trim_spaces(text.substr(digits));
  Bytes unit;
  if (!unit_from_suffix(suffix, &unit)) {
    return false;
  }
  std::uint64_t whole = 0;
  if (parse_integer(number, &whole)) {
    if (whole > UINT64_MAX / unit.count()) {
      return false;
    }
    *out = whole * unit;
    return true;
  }
  double fraction = 0;
  if (!parse_number(number, &fraction)) {
    return false;
  }
  // Sizes that tools print (79.18GiB) are seldom whole bytes: the whole ones count. Of a single byte there is no part,
  // and a double must be able to count them.
  const double bytes = fraction * static_cast<double>(unit.count());
  const bool nothing = bytes < 1 && fraction > 0;
  if (bytes > 9007199254740992.0 || nothing || (unit == Bytes(1) && bytes != std::floor(bytes))) {
    return false;
  }
  *out = Bytes(static_cast<std::uint64_t>(bytes));
  return true;
}

std::string meant_size(std::string_view text) {
  const std::size_t end = text.find_first_not_of("0123456789.,");
  const std::string_view number = text.substr(0, end);
  const std::string_view suffix =
      end == std::string_view::npos ? std::string_view() : trim_spaces(text.substr(end));
  if (number.empty() || text.size() >= kLongestSize) {
    return {};
  }
  const std::string instead = with_binary_unit(number, suffix);
  return instead.empty() ? with_a_point(number, suffix) : instead;
}

std::string no_size(std::string_view text) {
  const std::string instead = meant_size(text);
  return quoted(text) + " is not a size (write " +
         (instead.empty() ? std::string("4096B, 512KiB, 500MiB or 24GiB") : instead) + ")";
}

bool parse_option(std::string_view key,
                  std::string_view value,
                  Options* options,
                  std::vector<std::string>* problems,
                  OptionSet* given) {
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    if (key != option_key(static_cast<OptionId>(i))) {
      continue;
    }
    const bool address = static_cast<OptionId>(i) == OptionId::k_metrics;  // "[::1]:9400"
    if (!value.empty() && value.front() == '[' && !address) {
      problems->push_back("option " + std::string(key) + ": " + quoted(value) +
                          " is a list, and no option takes one");
      return false;
    }
    ItemParser item(key, value, problems);
    const bool parsed = parse_known(static_cast<OptionId>(i), &item, options);
    if (parsed && given != nullptr) {
      given->set(i);
    }
    return parsed;
  }
  report_unknown_key(key, problems);
  return false;
}

bool parse_options(std::string_view text,
                   Options* options,
                   std::vector<std::string>* problems,
                   OptionSet* given) {
  bool good = true;
  ConfItem before;
  for (const ConfItem& item : conf_items(text)) {
    const ConfItem last = std::exchange(before, item);
    if (item.key.empty()) {
      problems->push_back(quoted(item.text) + " names no option (write key:value)");
      good = false;
      continue;
    }
    if (!item.has_value) {
      problems->push_back(
          quoted(item.text) + " has no value (write " +
          (is_cut_size(last, item)
               ? std::string(last.text) + "." + std::string(item.text) + ": a comma ends an item"
               : "key:value") +
          ")");
      good = false;
      continue;
    }
    good = parse_option(item.key, item.value, options, problems, given) && good;
  }
  return good;
}

}  // namespace nofrag
