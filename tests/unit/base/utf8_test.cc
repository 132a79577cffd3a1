// utf8: every character, and what is none.
#include "base/utf8.h"

#include <string>

#include <gtest/gtest.h>

namespace nofrag {
namespace {

// As the standard's table has it.
std::string encoded(std::uint32_t point) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(value); };
  if (point < 0x80) {
    return {byte(point)};
  }
  if (point < 0x800) {
    return {byte(0xc0 + point / 64), byte(0x80 + point % 64)};
  }
  if (point < 0x10000) {
    return {byte(0xe0 + point / 4096), byte(0x80 + point / 64 % 64), byte(0x80 + point % 64)};
  }
  return {byte(0xf0 + point / 262144),
          byte(0x80 + point / 4096 % 64),
          byte(0x80 + point / 64 % 64),
          byte(0x80 + point % 64)};
}

TEST(Utf8, EveryCharacterHasItsLength) {
  for (std::uint32_t point = 0; point < 0x120000; ++point) {
    const std::string text = encoded(point);
    const bool character = point < 0x110000 && (point < 0xd800 || point > 0xdfff);
    ASSERT_EQ(utf8_length(text + "x"), character ? text.size() : 0) << point;
    ASSERT_EQ(utf8_length(text.substr(0, text.size() - 1)), 0U)
        << point;  // its last byte is missing
  }
}

TEST(Utf8, WhatIsNoCharacter) {
  for (const std::string text : {"",
                                 "\x80",
                                 "\xbf.",
                                 "\xc0\x80",
                                 "\xc1\xbf",
                                 "\xe0\x9f\xbf",
                                 "\xf0\x8f\xbf\xbf",
                                 "\xf5\x80\x80\x80",
                                 "\xff",
                                 "\xc3(",
                                 "\xe2\x82("}) {
    EXPECT_EQ(utf8_length(text), 0U) << text;
  }
}

TEST(Utf8, TheFrontEndsWithAWholeCharacter) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";  // 1, 2, 3, 4 and 1 bytes
  const std::size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  for (std::size_t most = 0; most < std::size(ends); ++most) {
    EXPECT_EQ(utf8_front(text, most), text.substr(0, ends[most])) << most;
  }
  // Of bytes that are no text, at most three more are lost.
  EXPECT_EQ(utf8_front(std::string(20, '\x80'), 10).size(), 7U);
}

}  // namespace
}  // namespace nofrag
