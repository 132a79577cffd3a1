// What the tests of the text format and of the packed one share. Owns: nothing. Layer: tests. Threads: any.
#pragma once

#include <cstddef>
#include <string>

namespace nofrag {

inline constexpr const char* kHeaderLine = "time_us,op,id,size,stream\n";

// A string literal with all its zero bytes.
template <std::size_t N>
std::string bytes_of(const char (&literal)[N]) {
  return {literal, N - 1};
}

}  // namespace nofrag
