#include <gtest/gtest.h>

#include "trace/importers/pickle/pickle_document.h"

namespace nofrag {
namespace {

// A string literal with all its zero bytes.
template <std::size_t N>
std::string bytes_of(const char (&literal)[N]) {
  return {literal, N - 1};
}

std::string problem_of(const std::string& bytes) {
  PickleDocument document;
  const auto problem = document.read(bytes);
  return problem ? std::to_string(problem->offset) + ": " + problem->found : "fine";
}

TEST(PickleReader, IntegersOfEveryWidth) {
  const std::pair<std::string, std::int64_t> cases[] = {
      {bytes_of("K\xff."), 255},
      {bytes_of("M\x01\x02."), 513},
      {bytes_of("J\xff\xff\xff\xff."), -1},
      {bytes_of("\x8a\x00."), 0},
      {bytes_of("\x8a\x01\x80."), -128},
      {bytes_of("\x8a\x05\x00\x00\x00\x00\x01."), 1LL << 32},
      {bytes_of("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."), INT64_MIN},
      {bytes_of("\x8b\x02\x00\x00\x00\xfe\xff."), -2},
  };
  for (const auto& [bytes, value] : cases) {
    PickleDocument document;
    ASSERT_FALSE(document.read(bytes).has_value());
    EXPECT_EQ(document.as_signed(document.root()), value);
  }
  PickleDocument document;
  const std::string most = bytes_of("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.");
  ASSERT_FALSE(document.read(most).has_value());
  EXPECT_EQ(document.as_unsigned(document.root()), UINT64_MAX);
  EXPECT_FALSE(document.as_signed(document.root()).has_value());
}

TEST(PickleReader, DictionariesListsAndMemos) {
  PickleDocument document;
  // {'a': [1, 2], 'b': ('a', True)} with 'a' remembered.
  const std::string bytes = bytes_of(
      "\x80\x02}(X\x01\x00\x00\x00"
      "aq\x00](K\x01K\x02"
      "eX\x01\x00\x00\x00"
      "bh\x00\x88\x86u.");
  ASSERT_FALSE(document.read(bytes).has_value());
  const PickleValue* list = document.find(document.root(), "a");
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(document.items(*list).size(), 2U);
  EXPECT_EQ(document.offset(*list), 12U);
  const PickleValue* tuple = document.find(document.root(), "b");
  ASSERT_NE(tuple, nullptr);
  EXPECT_EQ(tuple->type(), PickleType::kTuple);
  EXPECT_EQ(document.as_text(document.items(*tuple)[0]), "a");
  EXPECT_EQ(document.find(document.root(), "c"), nullptr);
}

TEST(PickleReader, NothingThatMakesOrCallsSomething) {
  for (const char opcode : std::string("cRbioPQ\x81\x82\x83\x84\x92\x93\x97\x98")) {
    const std::string message = problem_of("\x80\x04)" + std::string(1, opcode) + "x\ny\n.");
    EXPECT_NE(message.find("3: the pickle opcode"), std::string::npos) << message;
  }
}

TEST(PickleReader, WhatIsDamaged) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "0: the end of the file"},
      {".", "0: an opcode that needs a value"},
      {"\x80\x06N.", "0: pickle protocol 6"},
      {bytes_of("X\xff\x00\x00\x00"
                "ab."),
       "0: the end of the file inside a value of 255 bytes"},
      {bytes_of("h\x07."), "0: memo number 7, which was never stored"},
      {bytes_of("Nr\xff\xff\xff\x7f."), "1: memo number 2147483647"},
      {"NNa.", "2: an opcode that adds to a list"},
      {"}(Nu.", "3: a key without a value"},
      {"t.", "0: an opcode that needs a MARK"},
      {"(t", "2: the end of the file (truncated)"},
      {"(N(.", "3: an opcode that needs a value"},
      {"\xff.", "0: the byte '\\xff'"},
  };
  for (const auto& [bytes, said] : cases) {
    EXPECT_EQ(problem_of(bytes).substr(0, std::string(said).size()), said);
  }
}

TEST(PickleReader, AListMayHoldItself) {
  PickleDocument document;
  ASSERT_FALSE(document
                   .read(bytes_of("]q\x00h\x00"
                                  "a."))
                   .has_value());
  const PickleValue inner = document.items(document.root())[0];
  EXPECT_EQ(document.offset(inner), document.offset(document.root()));
}

}  // namespace
}  // namespace nofrag
