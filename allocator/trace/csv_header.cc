// What is wrong with a first line that was meant as the header of a csv trace.
#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <vector>

#include "base/nearest_name.h"
#include "trace/csv_format.h"

namespace nofrag {
namespace {

constexpr std::array<std::string_view, 5> kHeaderColumns = {
    "time_us", "op", "id", "size", "stream"};
constexpr std::size_t kNoColumn = kHeaderColumns.size();
// What others call them.
struct OtherName {
  std::string_view name;
  std::string_view column;
};
constexpr OtherName kOtherNames[] = {{"time", "time_us"},
                                     {"timestamp", "time_us"},
                                     {"ts", "time_us"},
                                     {"us", "time_us"},
                                     {"action", "op"},
                                     {"operation", "op"},
                                     {"event", "op"},
                                     {"type", "op"},
                                     {"kind", "op"},
                                     {"ptr", "id"},
                                     {"pointer", "id"},
                                     {"address", "id"},
                                     {"addr", "id"},
                                     {"block", "id"},
                                     {"bytes", "size"},
                                     {"length", "size"},
                                     {"nbytes", "size"},
                                     {"queue", "stream"}};

// Without the blanks and quotes around it, in small letters.
std::string plain_name(std::string_view field) {
  constexpr std::string_view kAround = " \t\r\"'";
  const std::size_t first = field.find_first_not_of(kAround);
  if (first == std::string_view::npos) {
    return {};
  }
  std::string name(field.substr(first, field.find_last_not_of(kAround) - first + 1));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return name;
}

char separator_of(std::string_view line) {
  for (const char c : {',', ';', '\t', '|'}) {
    if (line.find(c) != std::string_view::npos) {
      return c;
    }
  }
  return ',';
}

std::vector<std::string> header_fields(std::string_view line, char separator) {
  std::vector<std::string> fields;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find(separator, begin), line.size());
    fields.push_back(plain_name(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return fields;
}

// Of the columns that are not there yet, the one that the field may be; kNoColumn: it is like none.
std::size_t meant_column(const std::string& field, const std::array<bool, 5>& there) {
  for (const OtherName& other : kOtherNames) {
    const auto at = std::find(kHeaderColumns.begin(), kHeaderColumns.end(), other.column) -
                    kHeaderColumns.begin();
    if (field == other.name && !there[static_cast<std::size_t>(at)]) {
      return static_cast<std::size_t>(at);
    }
  }
  std::vector<std::string_view> missing;
  std::copy_if(
      kHeaderColumns.begin(),
      kHeaderColumns.end(),
      std::back_inserter(missing),
      [&](const auto& c) { return !there[static_cast<std::size_t>(&c - kHeaderColumns.data())]; });
  const std::string_view near =
      field.size() < 2 ? std::string_view() : nearest_name(field, missing);
  return static_cast<std::size_t>(std::find(kHeaderColumns.begin(), kHeaderColumns.end(), near) -
                                  kHeaderColumns.begin());
}

struct HeaderFields {
  std::array<bool, 5> there{};
  std::array<std::string, 5> nearest;
  std::vector<std::string> extra;
  std::size_t alike = 0;
  bool in_order = true;
};

HeaderFields match_header(const std::vector<std::string>& fields) {
  HeaderFields header;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const auto at = static_cast<std::size_t>(
        std::find(kHeaderColumns.begin(), kHeaderColumns.end(), fields[i]) -
        kHeaderColumns.begin());
    if (at != kNoColumn && !header.there[at]) {
      header.there[at] = true;
      header.in_order = header.in_order && at == i;
      ++header.alike;
    }
  }
  for (const std::string& field : fields) {
    if (std::find(kHeaderColumns.begin(), kHeaderColumns.end(), field) != kHeaderColumns.end()) {
      continue;
    }
    const std::size_t at = meant_column(field, header.there);
    if (at != kNoColumn && header.nearest[at].empty()) {
      header.nearest[at] = field;
      ++header.alike;
    } else {
      header.extra.push_back(field);
    }
  }
  return header;
}

bool looks_like_event(const std::vector<std::string>& fields) {
  const auto number = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
  };
  return fields.size() >= 4 && number(fields[0]) && (fields[1] == "a" || fields[1] == "f") &&
         number(fields[2]) && number(fields[3]);
}

std::string shown_name(std::string_view name) {
  return quoted_for_message(name.substr(0, 40));
}

}  // namespace

std::string csv_header_problem(std::string_view line) {
  constexpr std::size_t kLongestHeader = 400;
  constexpr std::size_t kFewestAlike = 3;
  line = line.substr(0, line.find('\n'));
  if (line.size() > kLongestHeader) {
    return {};
  }
  const char separator = separator_of(line);
  const std::vector<std::string> fields = header_fields(line, separator);
  const std::string wanted = "the header '" + std::string(kCsvHeader) + "'";
  if (looks_like_event(fields)) {
    return wanted + " above the first event";
  }
  const HeaderFields header = match_header(fields);
  if (header.alike < kFewestAlike) {
    return {};
  }
  std::string problem;
  const auto add = [&problem](const std::string& text) {
    problem += (problem.empty() ? ": " : ", ") + text;
  };
  for (std::size_t i = 0; i < kHeaderColumns.size(); ++i) {
    if (!header.there[i]) {
      add("there is no column '" + std::string(kHeaderColumns[i]) + "'" +
          (header.nearest[i].empty() ? ""
                                     : " (the nearest is " + shown_name(header.nearest[i]) + ")"));
    }
  }
  for (const std::string& extra : header.extra) {
    add("there is one too many, " + shown_name(extra));
  }
  if (separator != ',') {
    add("the columns are parted by commas");
  }
  if (problem.empty() && !header.in_order) {
    add("the columns stand in this order");
  }
  if (problem.empty()) {
    add("in these small letters, without spaces and quotes");
  }
  return wanted + problem;
}

}  // namespace nofrag
