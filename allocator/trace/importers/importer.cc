#include "trace/importers/importer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "trace/trace_builder.h"

namespace nofrag {
namespace {

constexpr std::size_t kReadStep = std::size_t{1} << 20;

TraceError error_of(const std::string& name, std::string found, std::string expected) {
  TraceError error;
  error.path = name;
  error.found = std::move(found);
  error.expected = std::move(expected);
  return error;
}

}  // namespace

TraceError error_at_line(const std::string& name,
                         std::uint64_t line,
                         std::string found,
                         std::string expected) {
  TraceError error = error_of(name, std::move(found), std::move(expected));
  error.line = line;
  return error;
}

TraceError error_at_byte(const std::string& name,
                         std::uint64_t byte,
                         std::string found,
                         std::string expected) {
  TraceError error = error_of(name, std::move(found), std::move(expected));
  error.offset = byte;
  return error;
}

TraceError error_at_row(const std::string& name,
                        std::uint64_t row,
                        std::string found,
                        std::string expected) {
  TraceError error = error_of(name, std::move(found), std::move(expected));
  error.row = row;
  return error;
}

ImportError read_all(ByteWindow& input, std::string* bytes) {
  for (;;) {
    const std::string_view piece = input.fill(kReadStep);
    if (piece.empty()) {
      return input.source_error();
    }
    bytes->append(piece);
    input.consume(piece.size());
  }
}

std::string counted(std::uint64_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::optional<std::uint64_t> parse_unsigned(std::string_view text) {
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
    text.remove_prefix(2);
    base = 16;
  }
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value, base);
  if (text.empty() || code != std::errc() || stop != end) {
    return std::nullopt;
  }
  return value;
}

bool trace_of_lifetimes(std::vector<Lifetime> lifetimes,
                        TraceFormat format,
                        Trace* trace,
                        EventList::Problem* problem) {
  struct Step {
    std::uint64_t time;
    std::size_t lifetime;
    bool is_free;
  };
  std::vector<Step> steps;
  steps.reserve(lifetimes.size() * 2);
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    steps.push_back({lifetimes[i].begin, i, false});
    if (lifetimes[i].end != kNeverEnds) {
      steps.push_back({lifetimes[i].end, i, true});
    }
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return a.time != b.time ? a.time < b.time : a.is_free > b.is_free;
  });
  TraceBuilder builder(TraceUnit::kEvent);
  for (const Step& step : steps) {
    const Lifetime& one = lifetimes[step.lifetime];
    const bool accepted = step.is_free ? builder.add_free(step.time, one.id, one.size, 0)
                                       : builder.add_allocation(step.time, one.id, one.size, 0);
    if (!accepted) {
      *problem = {builder.problem().found, builder.problem().expected, one.place};
      return false;
    }
  }
  *trace = builder.finish(format);
  return true;
}

}  // namespace nofrag
