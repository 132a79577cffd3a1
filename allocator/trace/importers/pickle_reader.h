// PickleDocument: plain values out of a Python pickle, without executing anything.
//
// Owns: the values; texts point into the input, which must outlive it. Understood: the opcodes of protocols
// 2 to 5 that make None, booleans, numbers, texts, bytes, lists, tuples, sets and dictionaries. Every opcode
// that would import, call or build an object is refused: a pickle is a program, and this reader runs none
// of it. Layer: trace. Units: bytes. Invariants: values are indexes, so shared or cyclic values cost nothing
// here; whoever walks them must bound the walk. Threads: none. Failure: read() returns the byte, what stands
// there and what was expected. Cost: one pass; 8 bytes a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nofrag {

enum class PickleType : unsigned char {
  kNone,
  kBool,
  kInt,
  kWideInt,  // 60 bits or more
  kHugeInt,  // beyond 64 bits
  kFloat,
  kText,
  kBytes,
  kList,
  kTuple,
  kSet,
  kDict,
};

// "a list", ...
const char* to_string(PickleType type);

class PickleValue {
 public:
  constexpr PickleValue() = default;
  constexpr PickleValue(PickleType type, std::uint64_t payload)
      : raw_((payload << 4) | static_cast<std::uint64_t>(type)) {}
  [[nodiscard]] constexpr PickleType type() const { return static_cast<PickleType>(raw_ & 15); }
  [[nodiscard]] constexpr std::uint64_t payload() const { return raw_ >> 4; }
  [[nodiscard]] constexpr std::int64_t signed_payload() const {
    return static_cast<std::int64_t>(raw_) >> 4;
  }

 private:
  std::uint64_t raw_ = 0;
};

class PickleDocument {
 public:
  struct Problem {
    std::uint64_t offset = 0;
    std::string found;
    std::string expected;
  };
  // Nothing if all went well.
  std::optional<Problem> read(std::string_view bytes);

  [[nodiscard]] PickleValue root() const { return root_; }
  // Elements of a list, tuple or set; keys and values of a dictionary by turns; else nothing.
  [[nodiscard]] const std::vector<PickleValue>& items(PickleValue value) const;
  // Where a list, tuple, set or dictionary begins; 0 for other values.
  [[nodiscard]] std::uint64_t offset(PickleValue value) const;
  // The value of a text key, or nullptr.
  [[nodiscard]] const PickleValue* find(PickleValue dict, std::string_view key) const;
  [[nodiscard]] std::optional<std::uint64_t> as_unsigned(PickleValue value) const;
  [[nodiscard]] std::optional<std::int64_t> as_signed(PickleValue value) const;
  [[nodiscard]] std::optional<std::string_view> as_text(PickleValue value) const;

 private:
  friend class PickleMachine;
  struct Container {
    std::vector<PickleValue> items;
    std::uint64_t offset = 0;
  };

  PickleValue root_;
  std::vector<PickleValue> nothing_;
  std::vector<Container> containers_;
  std::vector<std::string_view> texts_;
  std::vector<std::uint64_t> wide_;  // two's complement; kWideInt payload: 2 * index + is unsigned
};

}  // namespace nofrag
