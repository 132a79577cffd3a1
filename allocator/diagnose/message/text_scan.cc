#include "diagnose/message/text_scan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

namespace nofrag {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// 2^exponent; a word that is no unit counts as bytes.
double unit_of(std::string_view word) {
  constexpr std::array<std::pair<std::string_view, int>, 24> kUnits = {
      {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"KB", 10}, {"MB", 20},
       {"GB", 30},  {"TB", 40},  {"kB", 10},  {"K", 10},   {"M", 20},  {"G", 30},
       {"Kb", 10},  {"Mb", 20},  {"Gb", 30},  {"PiB", 50}, {"PB", 50}, {"Kio", 10},
       {"Mio", 20}, {"Gio", 30}, {"Ko", 10},  {"ko", 10},  {"Mo", 20}, {"Go", 30}}};
  for (const auto& [name, exponent] : kUnits) {
    if (word == name) {
      return std::ldexp(1.0, exponent);
    }
  }
  return 1.0;
}

struct Number {
  double value = 0;
  std::size_t length = 0;
  std::size_t digits = 0;
};

// Digits, points and commas, of which the last one has a digit behind it.
std::string_view number_token(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_digit(text[i])) {
      end = i + 1;
    } else if ((text[i] != '.' && text[i] != ',') || (i > 0 && !is_digit(text[i - 1]))) {
      break;
    }
  }
  return text.substr(0, end);
}

// "1.073.741", "1,073,741" and "1,073,741.5": three digits between one sign and the next, and behind the last one.
bool in_groups(std::string_view token, char sign) {
  constexpr std::size_t kGroup = 3;
  const std::size_t first = token.find(sign);
  if (first == 0 || first > kGroup) {
    return false;
  }
  for (std::size_t at = first; at != kNowhere; at = token.find(sign, at + 1)) {
    const std::size_t next = token.find_first_not_of("0123456789", at + 1);
    if ((next == kNowhere ? token.size() : next) - at - 1 != kGroup) {
      return false;
    }
  }
  return true;
}

// Which sign stands before the fraction; 0: none does, and both only part groups. A lone comma before three digits parts
// groups, before any other number of digits it is the decimal sign of the language that the text was printed in.
char decimal_sign(std::string_view token) {
  const auto points = std::count(token.begin(), token.end(), '.');
  const auto commas = std::count(token.begin(), token.end(), ',');
  if (points > 0 && commas > 0) {
    const char last = token[token.find_last_of(".,")];
    const bool once = (last == '.' ? points : commas) == 1;
    return once && in_groups(token.substr(0, token.rfind(last)), last == '.' ? ',' : '.') ? last
                                                                                          : '.';
  }
  if (commas == 1) {
    return in_groups(token, ',') && !token.starts_with("0,") ? '\0' : ',';
  }
  return points > 1 && in_groups(token, '.') ? '\0' : '.';
}

Number number_at(std::string_view text) {
  const std::string_view token = number_token(text);
  if (token.starts_with(',')) {
    return {};
  }
  const char decimal = decimal_sign(token);
  Number number;
  double place = 0;
  for (const char c : token) {
    if (is_digit(c)) {
      ++number.digits;
      number.value = place > 0 ? number.value + place * (c - '0') : 10 * number.value + (c - '0');
      place /= 10;
    } else if (c == decimal && place <= 0) {
      place = 0.1;
    } else if (c == decimal || place > 0) {
      break;
    }
    ++number.length;
  }
  return number;
}

// "1 024,00 MiB", "80 000 000 000 bytes" and "1'024.00 MiB" without what parts the groups; empty if there are none. Two
// numbers side by side are two: a unit must stand behind them.
std::string grouped_by_blanks(std::string_view text) {
  constexpr std::size_t kGroup = 3;
  const std::size_t first = text.find_first_not_of("0123456789");
  if (first == kNowhere || first == 0 || first > kGroup) {
    return {};
  }
  std::string joined(text.substr(0, first));
  std::size_t at = first;
  const char sign = text[first];
  while (at + kGroup < text.size() && text[at] == sign && (sign == ' ' || sign == '\'')) {
    const std::string_view group = text.substr(at + 1, kGroup);
    const std::size_t behind = at + 1 + kGroup;
    if (group.find_first_not_of("0123456789") != kNowhere ||
        (behind < text.size() && is_digit(text[behind]))) {
      break;
    }
    joined += group;
    at = behind;
  }
  if (joined.size() == first) {
    return {};
  }
  constexpr std::size_t kRest = 24;  // a fraction and a unit
  const std::string_view rest = text.substr(at, kRest);
  std::size_t unit = rest.find_first_not_of(".,0123456789 ");
  unit = unit == kNowhere ? rest.size() : unit;
  std::size_t end = unit;
  while (end < rest.size() && is_letter(rest[end])) {
    ++end;
  }
  const std::string_view word = rest.substr(unit, end - unit);
  const bool bytes = word == "B" || word.starts_with("byte") || word.starts_with("Byte");
  return bytes || unit_of(word) > 1.0 ? joined + std::string(rest) : std::string();
}

// Where in a phrase the letter stands that logs have least of.
std::size_t rarest_letter(std::string_view phrase) {
  constexpr std::string_view kCommonFirst = " etaoinsrlhdcmu0123456789pfgw.:-_ybvTEASIOCRkxjqz";
  std::size_t at = 0;
  std::size_t least = 0;
  for (std::size_t i = 0; i < phrase.size(); ++i) {
    const std::size_t rank = std::min(kCommonFirst.find(phrase[i]), kCommonFirst.size());
    if (rank > least) {
      least = rank;
      at = i;
    }
  }
  return at;
}

}  // namespace

std::optional<Bytes> size_at(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size() && is_space(text[i])) {
    ++i;
  }
  if (const std::string joined = grouped_by_blanks(text.substr(i, 80)); !joined.empty()) {
    return size_at(joined);
  }
  const Number number = number_at(text.substr(i));
  constexpr std::size_t kMostDigits = 24;
  if (number.digits == 0 || number.digits > kMostDigits) {
    return std::nullopt;
  }
  i += number.length;
  // "139. MiB": how numpy prints three digits.
  if (text.substr(i, 2) == ". " && i + 2 < text.size() && is_letter(text[i + 2]) &&
      text.substr(i + 3, 2) == "iB") {
    ++i;
  }
  while (i < text.size() && (text[i] == ' ' || text[i] == '\t')) {
    ++i;
  }
  std::size_t end = i;
  while (end < text.size() && is_letter(text[end])) {
    ++end;
  }
  const std::string_view word = text.substr(i, end - i);
  const double unit = unit_of(word);
  // A fraction of what is no unit that is known: of bytes there is none.
  const bool fraction = number.value != std::floor(number.value) || number.length > number.digits;
  constexpr std::string_view kLarge = "KMGTPE";
  if (fraction && unit == 1.0 && !word.empty() && word.size() <= 3 &&
      kLarge.find(word.front()) != kNowhere) {
    return std::nullopt;
  }
  const double bytes = number.value * unit;
  constexpr double kMost = 9e18;  // exabytes: nothing that was meant as a size of memory
  if (!(bytes < kMost)) {
    return std::nullopt;
  }
  return Bytes(static_cast<std::uint64_t>(std::llround(bytes)));
}

std::optional<Bytes> size_after(std::string_view text, std::string_view phrase) {
  const std::size_t at = text.find(phrase);
  return at == std::string_view::npos ? std::nullopt : size_at(text.substr(at + phrase.size()));
}

std::optional<Bytes> size_before(std::string_view text, std::string_view phrase) {
  std::size_t at = text.find(phrase);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  const auto skip_back = [&](auto accept) {
    while (at > 0 && accept(text[at - 1])) {
      --at;
    }
  };
  skip_back(is_space);
  skip_back(is_letter);
  skip_back(is_space);
  skip_back([](char c) { return is_digit(c) || c == '.' || c == ','; });
  return size_at(text.substr(at));
}

std::optional<Bytes> tensor_size(std::string_view text) {
  constexpr std::pair<std::string_view, std::uint64_t> kTypes[] = {{"float", 4},
                                                                   {"double", 8},
                                                                   {"half", 2},
                                                                   {"bfloat16", 2},
                                                                   {"int64", 8},
                                                                   {"int32", 4},
                                                                   {"int16", 2},
                                                                   {"int8", 1},
                                                                   {"uint8", 1},
                                                                   {"bool", 1},
                                                                   {"complex64", 8},
                                                                   {"uint16", 2},
                                                                   {"uint32", 4},
                                                                   {"uint64", 8}};
  constexpr std::string_view kType = "] and type ";
  text = text.substr(0, 300);
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(kType);
  if (open == kNowhere || close == kNowhere || close < open) {
    return std::nullopt;
  }
  const std::string_view type = text.substr(close + kType.size());
  for (const auto& [name, width] : kTypes) {
    if (type.substr(0, name.size()) != name ||
        is_letter(type.substr(name.size(), 1).empty() ? ' ' : type[name.size()])) {
      continue;
    }
    double bytes = static_cast<double>(width);
    for (std::size_t at = open + 1; at < close;) {
      const std::size_t end = std::min(text.find(',', at), close);
      const std::string_view side = text.substr(at, end - at);
      if (side.find_first_not_of("0123456789") != kNowhere || side.empty()) {
        return std::nullopt;
      }
      bytes *= static_cast<double>(size_at(side).value_or(Bytes(0)).count());
      at = end + 1;
    }
    constexpr double kMost = 9e18;
    return bytes < kMost ? std::optional<Bytes>(Bytes(static_cast<std::uint64_t>(bytes)))
                         : std::nullopt;
  }
  return std::nullopt;
}

bool is_tensor_on_cpu(std::string_view text) {
  constexpr std::string_view kAllocator = "by allocator ";
  constexpr std::size_t kWithoutOne = 200;
  const std::size_t by = text.find(kAllocator);
  if (by == kNowhere) {
    return holds(text.substr(0, kWithoutOne), "device:CPU:");
  }
  const std::string_view name = text.substr(by + kAllocator.size());
  return holds(text.substr(0, by), "device:CPU:") || name.starts_with("cpu") ||
         name.starts_with("mklcpu");
}

// A minus is one only at the start of a word, and the number a size only with a unit behind it.
std::string_view negative_size(std::string_view text) {
  constexpr std::string_view kBefore = " \t\r\n(:=";
  constexpr std::string_view kUnits[] = {
      "bytes", "B", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB"};
  for (std::size_t at = text.find('-'); at != std::string_view::npos; at = text.find('-', at + 1)) {
    std::size_t end = at + 1;
    while (end < text.size() && (is_digit(text[end]) || text[end] == '.' || text[end] == ',')) {
      ++end;
    }
    if (at == 0 || kBefore.find(text[at - 1]) == std::string_view::npos || end == at + 1) {
      continue;
    }
    end += end < text.size() && text[end] == ' ' ? 1U : 0U;
    std::size_t stop = end;
    while (stop < text.size() && is_letter(text[stop])) {
      ++stop;
    }
    for (const std::string_view unit : kUnits) {
      if (text.substr(end, stop - end) == unit) {
        return text.substr(at, stop - at);
      }
    }
  }
  return {};
}

// Of GiB and TiB nobody has thousands, and nearly nobody prints three digits behind the sign.
std::string_view ambiguous_size(std::string_view text) {
  constexpr std::string_view kUnits[] = {"GiB", "GB", "TiB", "TB"};
  for (std::size_t at = text.find(','); at != kNowhere; at = text.find(',', at + 1)) {
    std::size_t begin = at;
    while (begin > 0 &&
           (is_digit(text[begin - 1]) || text[begin - 1] == '.' || text[begin - 1] == ',')) {
      --begin;
    }
    const std::string_view token = number_token(text.substr(begin));
    if (std::count(token.begin(), token.end(), ',') != 1 || holds(token, ".") ||
        !in_groups(token, ',') || token.starts_with("0,")) {
      continue;
    }
    std::size_t unit = begin + token.size();
    unit += text.substr(unit, 1) == " " ? 1U : 0U;
    for (const std::string_view name : kUnits) {
      if (text.substr(unit, name.size()) == name) {
        return text.substr(begin, unit + name.size() - begin);
      }
    }
  }
  return {};
}

std::size_t last_of(std::string_view text, std::string_view phrase) {
  if (phrase.empty() || phrase.size() > text.size()) {
    return text.rfind(phrase);
  }
  // By its rarest letter: rfind compares at every place, which takes seconds for the dozens of phrases of a long log.
  // In pieces: AddressSanitizer looks at all that memrchr is given, each time.
  constexpr std::size_t kPiece = 4096;
  const std::size_t rarest = rarest_letter(phrase);
  const std::string_view searched = text.substr(rarest);
  std::size_t before = text.size() - phrase.size() + 1;
  while (before > 0) {
    const std::size_t piece = std::min(before, kPiece);
    const char* const begin = searched.data() + (before - piece);
    const void* const at = ::memrchr(begin, phrase[rarest], piece);
    if (at == nullptr) {
      before -= piece;
      continue;
    }
    before = static_cast<std::size_t>(static_cast<const char*>(at) - searched.data());
    if (text.substr(before, phrase.size()) == phrase) {
      return before;
    }
  }
  return std::string_view::npos;
}

bool names_gpu(std::string_view text) {
  // Where a word begins: "hip" is in "relationship", too.
  constexpr std::string_view kWords[] = {
      "CUDA",      "Cuda",          "cuda",          "GPU",          "gpu",   "HIP",
      "hipM",      "hipE",          "hip error",     "VRAM",         "vram",  "ROCm",
      "XPU",       "MPS",           "cuMem",         "cuLaunch",     "cuCtx", "clCreate",
      "clEnqueue", "device memory", "DEVICE memory", "Device memory"};
  for (const std::string_view word : kWords) {
    for (std::size_t at = text.find(word); at != kNowhere; at = text.find(word, at + 1)) {
      if (at == 0 || !is_letter(text[at - 1])) {
        return true;
      }
    }
  }
  constexpr std::string_view kDevice = "evice";
  for (std::size_t at = text.find(kDevice); at != kNowhere; at = text.find(kDevice, at + 1)) {
    const std::string_view behind = text.substr(at + kDevice.size(), 2);
    const bool numbered =
        behind.size() == 2 && (behind[0] == ' ' || behind[0] == ':') && is_digit(behind[1]);
    const std::string_view left = text.substr(at > 9 ? at - 9 : 0, at > 9 ? 9 : at);
    if (numbered || (left.ends_with("on d") && !holds(left, "left"))) {
      return true;
    }
  }
  return false;
}

bool holds(std::string_view text, std::string_view phrase) {
  return text.find(phrase) != std::string_view::npos;
}

}  // namespace nofrag
