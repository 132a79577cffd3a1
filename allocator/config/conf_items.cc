#include "config/conf_items.h"

namespace nofrag {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

// The end of the item that starts at `begin`: the next ',' outside brackets.
std::size_t item_end(std::string_view text, std::size_t begin) {
  int depth = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    if (text[i] == '[') {
      ++depth;
    } else if (text[i] == ']') {
      --depth;
    } else if (text[i] == ',' && depth <= 0) {
      return i;
    }
  }
  return text.size();
}

}  // namespace

std::string_view trim_spaces(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  if (a.size() != b.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) {
      return false;
    }
  }
  return true;
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string result = "\"";
  for (const char c : text.substr(0, kLongest)) {
    result += c >= ' ' && c <= '~' ? c : '?';
  }
  result += text.size() > kLongest ? "...\"" : "\"";
  return result;
}

std::vector<ConfItem> conf_items(std::string_view text) {
  std::vector<ConfItem> items;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = item_end(text, begin);
    ConfItem item;
    item.text = trim_spaces(text.substr(begin, end - begin));
    begin = end + 1;
    if (item.text.empty()) {
      continue;
    }
    const std::size_t colon = item.text.find(':');
    item.has_value = colon != std::string_view::npos;
    item.key = trim_spaces(item.text.substr(0, colon));
    if (item.has_value) {
      item.value = trim_spaces(item.text.substr(colon + 1));
    }
    items.push_back(item);
  }
  return items;
}

}  // namespace nofrag
