#include "diagnose/message/text_scan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
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
  constexpr std::array<std::pair<std::string_view, int>, 15> kUnits = {{{"KiB", 10},
                                                                        {"MiB", 20},
                                                                        {"GiB", 30},
                                                                        {"TiB", 40},
                                                                        {"KB", 10},
                                                                        {"MB", 20},
                                                                        {"GB", 30},
                                                                        {"TB", 40},
                                                                        {"kB", 10},
                                                                        {"K", 10},
                                                                        {"M", 20},
                                                                        {"G", 30},
                                                                        {"Kb", 10},
                                                                        {"Mb", 20},
                                                                        {"Gb", 30}}};
  for (const auto& [name, exponent] : kUnits) {
    if (word == name) {
      return std::ldexp(1.0, exponent);
    }
  }
  return 1.0;
}

}  // namespace

std::optional<Bytes> size_at(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size() && is_space(text[i])) {
    ++i;
  }
  double value = 0;
  double place = 0;
  std::size_t digits = 0;
  constexpr std::size_t kMostDigits = 24;
  for (; i < text.size() && digits <= kMostDigits; ++i) {
    const char c = text[i];
    if (is_digit(c)) {
      ++digits;
      if (place > 0) {
        value += place * (c - '0');
        place /= 10;
      } else {
        value = 10 * value + (c - '0');
      }
    } else if (c == '.' && place <= 0 && i + 1 < text.size() && is_digit(text[i + 1])) {
      place = 0.1;
    } else if (c == ',' && place <= 0 && digits > 0 && i + 1 < text.size() &&
               is_digit(text[i + 1])) {
      continue;
    } else {
      break;
    }
  }
  if (digits == 0 || digits > kMostDigits) {
    return std::nullopt;
  }
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
  const double bytes = value * unit_of(text.substr(i, end - i));
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

std::size_t last_of(std::string_view text, std::string_view phrase) {
  if (phrase.empty() || phrase.size() > text.size()) {
    return text.rfind(phrase);
  }
  // By its first letter: rfind compares at every place, which takes seconds for the dozens of phrases of a long log.
  // In pieces: AddressSanitizer looks at all that memrchr is given, each time.
  constexpr std::size_t kPiece = 4096;
  std::size_t before = text.size() - phrase.size() + 1;
  while (before > 0) {
    const std::size_t piece = std::min(before, kPiece);
    const char* const begin = text.data() + (before - piece);
    const void* const at = ::memrchr(begin, phrase.front(), piece);
    if (at == nullptr) {
      before -= piece;
      continue;
    }
    before = static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
    if (text.substr(before, phrase.size()) == phrase) {
      return before;
    }
  }
  return std::string_view::npos;
}

bool holds(std::string_view text, std::string_view phrase) {
  return text.find(phrase) != std::string_view::npos;
}

}  // namespace nofrag
