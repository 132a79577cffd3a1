#include "trace/importers/line_reader.h"

#include <cstring>

#include "trace/importers/importer.h"

namespace nofrag {

std::optional<std::string_view> LineReader::next() {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  input_.consume(to_consume_);
  to_consume_ = 0;
  std::string_view text = input_.fill(1);
  std::size_t end = text.find('\n');
  if (end == std::string_view::npos) {
    text = input_.fill(longest_ + 1);
    end = text.find('\n');
  }
  if (end == std::string_view::npos && input_.source_error()) {
    error_ = input_.source_error();
    return std::nullopt;
  }
  if (text.empty()) {
    return std::nullopt;
  }
  ++number_;
  std::string_view line = text.substr(0, end);
  to_consume_ = line.size() + (end == std::string_view::npos ? 0 : 1);
  if (line.size() > longest_) {
    error_ = error_at_line(name_,
                           number_,
                           "a line longer than " + std::to_string(longest_) + " bytes, starting " +
                               quoted_for_message(line),
                           "shorter lines");
    return std::nullopt;
  }
  if (number_ == 1 && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line;
}

}  // namespace nofrag
