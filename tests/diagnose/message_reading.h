// What the tests of messages share. Owns: nothing. Layer: tests. Threads: any.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "diagnose/message/oom_message.h"

namespace nofrag {

inline Failure failure_in(std::string_view text) {
  return read_oom_message(text).failure;
}

inline bool says(const std::vector<std::string>& lines, std::string_view part) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return line.find(part) != std::string::npos;
  });
}

}  // namespace nofrag
