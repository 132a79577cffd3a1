// MiniMalloc's and TelaMalloc's instances: one buffer a line, with the half-open time in which it lives.
#include <array>
#include <unordered_map>
#include <utility>

#include "trace/importers/importer.h"
#include "trace/importers/line_reader.h"

namespace nofrag {
namespace {

constexpr const char* kMinimallocExpected =
    "a header with the columns id, lower, upper (or start, end) and size, as in MiniMalloc's "
    "instances";
constexpr std::size_t kLongestRow = 65536;  // gaps may be many

enum Column : std::size_t { kId, kLower, kUpper, kSize, kColumns };

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t end = line.find(',');
    fields.push_back(line.substr(0, end));
    if (end == std::string_view::npos) {
      return fields;
    }
    line.remove_prefix(end + 1);
  }
}

class MinimallocReader {
 public:
  MinimallocReader(ByteWindow& input, const std::string& name)
      : lines_(input, name, kLongestRow), name_(name) {}

  ImportError read(std::vector<Trace>* traces);

 private:
  bool fail(std::string found, std::string expected) {
    error_ = error_at_line(
        name_, std::max<std::uint64_t>(lines_.number(), 1), std::move(found), std::move(expected));
    return false;
  }
  bool read_header(std::string_view line);
  bool read_buffer(std::string_view line);
  bool number(std::string_view text, const char* column, std::uint64_t* value);

  LineReader lines_;
  const std::string& name_;
  std::array<std::size_t, kColumns> column_{};
  std::size_t columns_ = 0;
  bool end_is_inclusive_ = false;
  bool has_gaps_ = false;
  std::vector<Lifetime> lifetimes_;
  std::unordered_map<std::string, std::uint64_t> ids_;  // line
  bool ids_are_numbers_ = true;
  ImportError error_;
};

bool MinimallocReader::read_header(std::string_view line) {
  const std::vector<std::string_view> names = split(line);
  std::array<bool, kColumns> known{};
  columns_ = names.size();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = names[i];
    Column column = kColumns;
    if (name == "id" || name == "buffer" || name == "buffer_id") {
      column = kId;
    } else if (name == "lower" || name == "start" || name == "begin") {
      column = kLower;
    } else if (name == "upper" || name == "end") {
      column = kUpper;
      end_is_inclusive_ = name == "end";
    } else if (name == "size") {
      column = kSize;
    } else if (name == "gaps") {
      has_gaps_ = true;
      continue;
    } else if (name == "alignment" || name == "offset" || name == "hint") {
      continue;  // of a solver, not of the job
    } else {
      return fail("column " + quoted_for_message(name), kMinimallocExpected);
    }
    if (known[column]) {
      return fail("column " + quoted_for_message(name) + " twice", kMinimallocExpected);
    }
    known[column] = true;
    column_[column] = i;
  }
  for (const bool one : known) {
    if (!one) {
      return fail("a header " + quoted_for_message(line) + " in which a column is missing",
                  kMinimallocExpected);
    }
  }
  return true;
}

bool MinimallocReader::number(std::string_view text, const char* column, std::uint64_t* value) {
  const std::optional<std::uint64_t> read = parse_unsigned(text);
  if (!read) {
    return fail(std::string(column) + " " + quoted_for_message(text),
                std::string(column) + " as a whole number from 0 on");
  }
  *value = *read;
  return true;
}

bool MinimallocReader::read_buffer(std::string_view line) {
  const std::vector<std::string_view> fields = split(line);
  if (fields.size() != columns_) {
    return fail(std::to_string(fields.size()) + " columns",
                std::to_string(columns_) + ", as in the header");
  }
  Lifetime one;
  one.place = lines_.number();
  if (!number(fields[column_[kLower]], "lower", &one.begin) ||
      !number(fields[column_[kUpper]], "upper", &one.end) ||
      !number(fields[column_[kSize]], "size", &one.size)) {
    return false;
  }
  if (end_is_inclusive_ && one.end < kNeverEnds - 1) {
    ++one.end;
  }
  if (one.end <= one.begin || one.end == kNeverEnds) {
    return fail(
        "a buffer that lives from " + std::to_string(one.begin) + " to " + std::to_string(one.end),
        "an end after the beginning");
  }
  const std::string id(fields[column_[kId]]);
  const auto [at, is_new] = ids_.try_emplace(id, one.place);
  if (!is_new) {
    return fail("id " + quoted_for_message(id) + " again (first on line " +
                    std::to_string(at->second) + ")",
                "an id never used before");
  }
  const std::optional<std::uint64_t> as_number = parse_unsigned(id);
  ids_are_numbers_ = ids_are_numbers_ && as_number && std::to_string(*as_number) == id;
  one.id = as_number.value_or(0);
  lifetimes_.push_back(one);
  return true;
}

ImportError MinimallocReader::read(std::vector<Trace>* traces) {
  std::optional<std::string_view> line = lines_.next();
  if (!line) {
    return lines_.error()
               ? lines_.error()
               : ImportError(error_at_line(name_, 1, "an empty file", kMinimallocExpected));
  }
  if (!read_header(*line)) {
    return error_;
  }
  while ((line = lines_.next()) && !line->empty()) {
    if (!read_buffer(*line)) {
      return error_;
    }
  }
  if (lines_.error()) {
    return lines_.error();
  }
  if (lifetimes_.empty()) {
    fail("a header and no buffers", "at least one buffer");
    return error_;
  }
  if (!ids_are_numbers_) {
    for (std::size_t i = 0; i < lifetimes_.size(); ++i) {
      lifetimes_[i].id = i;
    }
  }
  Trace trace;
  EventList::Problem problem;
  if (!trace_of_lifetimes(std::move(lifetimes_), TraceFormat::kMinimalloc, &trace, &problem)) {
    return error_at_line(name_, problem.place, problem.found, problem.expected);
  }
  trace.warnings.emplace_back(
      "times have no unit: one is taken for a microsecond; there are no streams");
  if (has_gaps_) {
    trace.warnings.emplace_back(
        "gaps in the life of buffers are not used: each is taken for live throughout");
  }
  traces->clear();
  traces->push_back(std::move(trace));
  return std::nullopt;
}

}  // namespace

ImportError import_minimalloc(ByteWindow& input,
                              const std::string& name,
                              std::vector<Trace>* traces) {
  return MinimallocReader(input, name).read(traces);
}

}  // namespace nofrag
