#include "trace/csv_format.h"

#include <charconv>
#include <cstring>
#include <utility>

#include "trace/trace_builder.h"

namespace nofrag {
namespace {

// The longest lawful line is five 20-digit numbers; beyond this it is not this format.
constexpr std::size_t kLongestLine = 4096;
constexpr std::size_t kReadAhead = std::size_t{1} << 16;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

class CsvReader {
 public:
  CsvReader(ByteWindow& input, const std::string& path)
      : input_(input), path_(path), builder_(TraceUnit::kLine, 2) {}

  std::optional<TraceError> read(Trace* trace);

 private:
  enum class Line : unsigned char { kHave, kEnd, kFailed };
  Line next_line(std::string_view* line);
  bool check_header();
  bool parse_event(std::string_view line);
  bool number(std::string_view* rest, const char* column, bool is_last, std::uint64_t* value);
  bool bad_number(std::string_view rest, const char* column, bool is_last);
  bool fail(std::string found, std::string expected);

  ByteWindow& input_;
  const std::string& path_;
  TraceBuilder builder_;
  std::uint64_t line_number_ = 0;
  std::size_t to_consume_ = 0;
  std::optional<TraceError> error_;
};

bool CsvReader::fail(std::string found, std::string expected) {
  TraceError error;
  error.path = path_;
  error.line = line_number_;
  error.found = std::move(found);
  error.expected = std::move(expected);
  error_ = std::move(error);
  return false;
}

// The line before this one is given back to the window first: the view stays valid till here.
CsvReader::Line CsvReader::next_line(std::string_view* line) {
  input_.consume(to_consume_);
  to_consume_ = 0;
  std::string_view text = input_.fill(1);
  const char* end = static_cast<const char*>(std::memchr(text.data(), '\n', text.size()));
  if (end == nullptr) {
    text = input_.fill(kReadAhead);
    end = text.empty() ? nullptr
                       : static_cast<const char*>(std::memchr(text.data(), '\n', text.size()));
  }
  if (end == nullptr && input_.source_error()) {
    error_ = input_.source_error();
    return Line::kFailed;
  }
  if (text.empty()) {
    return Line::kEnd;
  }
  ++line_number_;
  *line =
      text.substr(0, end == nullptr ? text.size() : static_cast<std::size_t>(end - text.data()));
  to_consume_ = line->size() + (end == nullptr ? 0 : 1);
  if (line->size() > kLongestLine) {
    fail("a line longer than " + std::to_string(kLongestLine) + " bytes, starting " +
             quoted_for_message(*line),
         line_number_ == 1 ? "the header '" + std::string(kCsvHeader) + "'"
                           : "time_us,op,id,size,stream");
    return Line::kFailed;
  }
  if (!line->empty() && line->back() == '\r') {
    line->remove_suffix(1);
  }
  return Line::kHave;
}

bool CsvReader::check_header() {
  std::string_view line;
  switch (next_line(&line)) {
    case Line::kFailed:
      return false;
    case Line::kEnd:
      line_number_ = 1;
      return fail("an empty file", "the header '" + std::string(kCsvHeader) + "'");
    case Line::kHave:
      break;
  }
  if (line.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (line != kCsvHeader) {
    const std::string problem = csv_header_problem(line);
    return fail(quoted_for_message(line),
                !problem.empty()
                    ? problem
                    : "the header '" + std::string(kCsvHeader) + "', or a packed nofrag trace");
  }
  return true;
}

bool CsvReader::bad_number(std::string_view rest, const char* column, bool is_last) {
  const std::string_view field = rest.substr(0, rest.find(','));
  const bool cut_short = !is_last && field.size() == rest.size();
  std::size_t digits = 0;
  while (digits < field.size() && field[digits] >= '0' && field[digits] <= '9') {
    ++digits;
  }
  if (digits == field.size() && digits > 0 && cut_short) {
    return fail("a line that ends in column " + std::string(column),
                "5 columns: " + std::string(kCsvHeader));
  }
  if (is_last && rest.find(',') != std::string_view::npos) {
    return fail("more than 5 columns", "5 columns: " + std::string(kCsvHeader));
  }
  std::string found = std::string(column) + " " + quoted_for_message(field);
  if (field.empty()) {
    found = "no " + std::string(column);
  }
  if (field.size() > 1 && field[0] == '-' &&
      field.find_first_not_of("0123456789", 1) == field.npos) {
    found = "a negative " + std::string(column) + " " + std::string(field.substr(0, 24));
  }
  return fail(std::move(found),
              std::string(column) + " as a whole decimal number from 0 to 2^64-1");
}

// Takes one number and the comma behind it (for the last column: the end of the line).
inline bool CsvReader::number(std::string_view* rest,
                              const char* column,
                              bool is_last,
                              std::uint64_t* value) {
  // 19 digits cannot overflow; the rare longer number goes the careful way.
  const char* at = rest->data();
  const char* const end = at + rest->size();
  std::uint64_t result = 0;
  while (at != end && static_cast<unsigned char>(*at - '0') < 10 && at - rest->data() < 19) {
    result = result * 10 + static_cast<std::uint64_t>(*at - '0');
    ++at;
  }
  if (at != end && static_cast<unsigned char>(*at - '0') < 10) {
    const auto [stop, code] = std::from_chars(rest->data(), end, result);
    if (code != std::errc()) {
      return bad_number(*rest, column, is_last);
    }
    at = stop;
  }
  const bool delimited = is_last ? at == end : at != end && *at == ',';
  if (at == rest->data() || !delimited) {
    return bad_number(*rest, column, is_last);
  }
  rest->remove_prefix(static_cast<std::size_t>(at - rest->data()) + (is_last ? 0 : 1));
  *value = result;
  return true;
}

bool CsvReader::parse_event(std::string_view line) {
  std::uint64_t time = 0;
  std::uint64_t id = 0;
  std::uint64_t size = 0;
  std::uint64_t stream = 0;
  std::string_view rest = line;
  if (!number(&rest, "time_us", false, &time)) {
    return false;
  }
  if (rest.size() < 2 || rest[1] != ',' || (rest[0] != 'a' && rest[0] != 'f')) {
    return fail("op " + quoted_for_message(rest.substr(0, rest.find(','))),
                "op 'a' (allocate) or 'f' (free)");
  }
  const bool is_free = rest[0] == 'f';
  rest.remove_prefix(2);
  if (!number(&rest, "id", false, &id) || !number(&rest, "size", false, &size) ||
      !number(&rest, "stream", true, &stream)) {
    return false;
  }
  const bool accepted = is_free ? builder_.add_free(time, id, size, stream)
                                : builder_.add_allocation(time, id, size, stream);
  return accepted || fail(builder_.problem().found, builder_.problem().expected);
}

std::optional<TraceError> CsvReader::read(Trace* trace) {
  if (!check_header()) {
    return error_;
  }
  std::uint64_t blank_line = 0;
  for (;;) {
    std::string_view line;
    const Line have = next_line(&line);
    if (have == Line::kFailed) {
      return error_;
    }
    if (have == Line::kEnd) {
      break;
    }
    // Blank lines are allowed at the end only: elsewhere they hint at a damaged file.
    if (line.empty()) {
      blank_line = blank_line == 0 ? line_number_ : blank_line;
      continue;
    }
    if (blank_line != 0) {
      line_number_ = blank_line;
      fail("an empty line between events", "time_us,op,id,size,stream");
      return error_;
    }
    if (!parse_event(line)) {
      return error_;
    }
  }
  if (builder_.event_count() == 0) {
    fail("a header and no events", "at least one event");
    return error_;
  }
  *trace = builder_.finish(TraceFormat::kCsv);
  return std::nullopt;
}

void append_number(std::uint64_t value, char end, std::string* text) {
  char digits[24];
  char* stop = std::to_chars(digits, digits + sizeof digits, value).ptr;
  *stop++ = end;  // NOLINT(clang-analyzer-security.ArrayBound): the largest number has 20 digits
  text->append(digits, stop);
}

}  // namespace

std::optional<TraceError> read_csv(ByteWindow& input, const std::string& path, Trace* trace) {
  return CsvReader(input, path).read(trace);
}

void append_csv(const Trace& trace, std::size_t first, std::size_t last, std::string* text) {
  for (std::size_t i = first; i < last; ++i) {
    const TraceEvent& event = trace.events[i];
    append_number(event.time_us, ',', text);
    text->append(event.is_free() ? "f," : "a,");
    append_number(trace.id_of(event.block), ',', text);
    append_number(event.size, ',', text);
    append_number(trace.streams[event.stream()], '\n', text);
  }
}

}  // namespace nofrag
