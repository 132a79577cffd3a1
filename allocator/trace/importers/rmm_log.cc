// RMM's logging_resource_adaptor: a line an allocation or free, "Thread,Time,Action,Pointer,Size,Stream".
#include <array>
#include <charconv>
#include <utility>

#include "trace/importers/importer.h"
#include "trace/importers/line_reader.h"

namespace nofrag {
namespace {

constexpr std::string_view kHeader = "Thread,Time,Action,Pointer,Size,Stream";
constexpr std::size_t kLongestRmmLine = 4096;
constexpr std::uint64_t kDayUs = 24ULL * 3600 * 1000000;

// Hexadecimal without 0x too: streams are printed as pointers, and not by every library with it.
std::optional<std::uint64_t> parse_pointer(std::string_view text) {
  if (text == "(nil)" || text == "nullptr") {
    return 0;
  }
  if (const std::optional<std::uint64_t> number = parse_unsigned(text)) {
    return number;
  }
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value, 16);
  return text.empty() || code != std::errc() || stop != end ? std::nullopt : std::optional(value);
}

class RmmReader {
 public:
  RmmReader(ByteWindow& input, const std::string& name)
      : lines_(input, name, kLongestRmmLine), name_(name) {}

  ImportError read(std::vector<Trace>* traces);

 private:
  bool fail(std::string found, std::string expected) {
    error_ = error_at_line(name_, lines_.number(), std::move(found), std::move(expected));
    return false;
  }
  bool read_line(std::string_view line);
  bool parse_time(std::string_view text, std::uint64_t* time_us);
  ImportError build(std::vector<Trace>* traces);

  LineReader lines_;
  const std::string& name_;
  EventList events_;
  std::uint64_t day_us_ = 0;
  std::uint64_t last_us_ = 0;
  std::uint64_t empty_ = 0;
  bool several_threads_ = false;
  std::string first_thread_;
  ImportError error_;
};

// "HH:MM:SS.micros", or "HH:MM:SS:micros" of older versions: wall clock without a date.
bool RmmReader::parse_time(std::string_view text, std::uint64_t* time_us) {
  std::array<std::uint64_t, 4> parts{};
  std::size_t part = 0;
  for (; part < 4; ++part) {
    const std::size_t end = std::min(text.find_first_of(":."), text.size());
    const std::string_view digits = text.substr(0, end);
    const std::optional<std::uint64_t> value = parse_unsigned(digits);
    if (!value || (part == 3 ? digits.size() > 6 : digits.size() != 2)) {
      break;
    }
    parts[part] = *value;
    if (end == text.size()) {
      ++part;
      text = {};
      break;
    }
    text.remove_prefix(end + 1);
  }
  if (part != 4 || !text.empty() || parts[0] > 23 || parts[1] > 59 || parts[2] > 60) {
    return false;
  }
  std::uint64_t time = ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1000000 + parts[3] + day_us_;
  // Half a day back is midnight; less is a thread that was slow to write.
  if (time + kDayUs / 2 < last_us_) {
    day_us_ += kDayUs;
    time += kDayUs;
  }
  last_us_ = time;
  *time_us = time;
  return true;
}

bool RmmReader::read_line(std::string_view line) {
  std::array<std::string_view, 6> columns;
  std::string_view rest = line;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::size_t end = rest.find(',');
    if ((end == std::string_view::npos) != (i + 1 == columns.size())) {
      return fail("not 6 columns", std::string(kHeader));
    }
    columns[i] = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), columns[i].size() + 1));
  }
  EventList::Event event;
  event.place = lines_.number();
  event.device = events_.device(0);
  if (!parse_time(columns[1], &event.time_us)) {
    return fail("time " + quoted_for_message(columns[1]), "HH:MM:SS.micros");
  }
  const std::optional<std::uint64_t> pointer = parse_pointer(columns[3]);
  const std::optional<std::uint64_t> size = parse_unsigned(columns[4]);
  const std::optional<std::uint64_t> stream = parse_pointer(columns[5]);
  if (!pointer) {
    return fail("pointer " + quoted_for_message(columns[3]), "0x and hexadecimal digits, or (nil)");
  }
  if (!size) {
    return fail("size " + quoted_for_message(columns[4]), "size in bytes as a whole number");
  }
  if (!stream) {
    return fail("stream " + quoted_for_message(columns[5]), "a stream as a number");
  }
  event.address = *pointer;
  event.size = *size;
  event.stream = *stream;
  if (first_thread_.empty()) {
    first_thread_ = columns[0];
  }
  several_threads_ = several_threads_ || first_thread_ != columns[0];
  if (columns[2] == "allocate failure") {
    TraceMark mark;
    mark.time_us = event.time_us;
    mark.requested = *size;
    events_.add_mark(event.device, mark);
    return true;
  }
  if (columns[2] != "allocate" && columns[2] != "free") {
    return fail("action " + quoted_for_message(columns[2]), "allocate, free or allocate failure");
  }
  if (*pointer == 0) {
    ++empty_;  // allocations of no bytes have no address
    return *size == 0 ||
           fail("a null pointer for " + std::to_string(*size) + " bytes", "an address");
  }
  return (columns[2] == "free" ? events_.add_free(event) : events_.add_allocation(event)) ||
         fail(events_.problem().found, events_.problem().expected);
}

ImportError RmmReader::read(std::vector<Trace>* traces) {
  const std::optional<std::string_view> header = lines_.next();
  if (!header || *header != kHeader) {
    if (lines_.error()) {
      return lines_.error();
    }
    return error_at_line(name_,
                         1,
                         header ? quoted_for_message(*header) : "an empty file",
                         "the header '" + std::string(kHeader) + "' of RMM's log");
  }
  std::uint64_t blank = 0;
  while (const std::optional<std::string_view> line = lines_.next()) {
    if (line->empty()) {
      blank = blank == 0 ? lines_.number() : blank;
    } else if (blank != 0) {
      return error_at_line(name_, blank, "an empty line between events", std::string(kHeader));
    } else if (!read_line(*line)) {
      return error_;
    }
  }
  return lines_.error() ? lines_.error() : build(traces);
}

ImportError RmmReader::build(std::vector<Trace>* traces) {
  if (events_.empty()) {
    return error_at_line(name_, lines_.number(), "a log without an event", "at least one event");
  }
  if (empty_ > 0) {
    events_.note(counted(empty_, "event", "events") + " of empty allocations left out");
  }
  if (several_threads_) {
    events_.note("several threads wrote the log: its order is taken for the order of events");
  }
  EventList::Rules rules;
  rules.late_frees = true;
  if (!events_.build(TraceFormat::kRmm, rules, traces)) {
    return error_at_line(
        name_, events_.problem().place, events_.problem().found, events_.problem().expected);
  }
  return std::nullopt;
}

}  // namespace

ImportError import_rmm(ByteWindow& input, const std::string& name, std::vector<Trace>* traces) {
  return RmmReader(input, name).read(traces);
}

}  // namespace nofrag
