#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "trace/byte_source.h"
#include "trace/importers/pickle/pickle_document.h"
#include "trace/packed_codec.h"

namespace nofrag {
namespace {

// Opcodes, by the names of Python's pickletools.
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kNoneOp = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinFloat = 'G',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinBytes8 = 0x8e,
  kByteArray8 = 0x96,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kListOp = 'l',
  kEmptyTuple = ')',
  kTupleOp = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyDict = '}',
  kDictOp = 'd',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kBinGet = 'h',
  kLongBinGet = 'j',
  kProto = 0x80,
  kFrame = 0x95,
};

struct Refused {
  unsigned char opcode;
  const char* name;
};
// What makes a pickle a program.
constexpr Refused kRefused[] = {{'c', "GLOBAL"},
                                {0x93, "STACK_GLOBAL"},
                                {'R', "REDUCE"},
                                {'b', "BUILD"},
                                {'i', "INST"},
                                {'o', "OBJ"},
                                {0x81, "NEWOBJ"},
                                {0x92, "NEWOBJ_EX"},
                                {'P', "PERSID"},
                                {'Q', "BINPERSID"},
                                {0x82, "EXT1"},
                                {0x83, "EXT2"},
                                {0x84, "EXT4"},
                                {0x97, "NEXT_BUFFER"},
                                {0x98, "READONLY_BUFFER"}};

constexpr std::size_t kMostMemo = std::size_t{1} << 31;
constexpr std::int64_t kInlineMost = (std::int64_t{1} << 59) - 1;

}  // namespace

class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, PickleDocument& document)
      : bytes_(bytes), document_(document) {}

  std::optional<PickleDocument::Problem> run();

 private:
  using Type = PickleType;

  bool step(unsigned char opcode);
  bool step_by_kind(unsigned char opcode);
  bool step_number(unsigned char opcode);
  bool step_text(unsigned char opcode);
  bool step_collection(unsigned char opcode);
  bool step_memo(unsigned char opcode);
  bool step_other(unsigned char opcode);

  bool fail(std::string found, std::string expected);
  bool take(std::uint64_t count, std::string_view* out);
  bool take_number(std::size_t width, std::uint64_t* value);
  bool push_integer(std::string_view raw);  // little-endian
  void push_signed(std::int64_t value);
  bool push_text(std::size_t width, Type type);
  void push_new(Type type, std::vector<PickleValue> items);
  bool pop(PickleValue* value);
  bool pop_to_mark(std::vector<PickleValue>* items);
  bool pop_tuple(std::size_t count);
  bool extend(Type type, std::vector<PickleValue>&& items, const char* what);
  bool put(std::uint64_t index);
  bool get(std::uint64_t index);

  std::string_view bytes_;
  PickleDocument& document_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  bool stopped_ = false;
  std::vector<PickleValue> stack_;
  std::vector<std::size_t> marks_;  // stack heights
  std::vector<PickleValue> memo_;
  std::vector<bool> memo_known_;
  std::optional<PickleDocument::Problem> problem_;
};

bool PickleMachine::fail(std::string found, std::string expected) {
  problem_ = {opcode_at_, std::move(found), std::move(expected)};
  return false;
}

bool PickleMachine::take(std::uint64_t count, std::string_view* out) {
  if (count > bytes_.size() - at_) {
    return fail(
        "the end of the file inside a value of " + std::to_string(count) + " bytes (truncated)",
        "the rest of the pickle");
  }
  *out = bytes_.substr(at_, static_cast<std::size_t>(count));
  at_ += static_cast<std::size_t>(count);
  return true;
}

bool PickleMachine::take_number(std::size_t width, std::uint64_t* value) {
  std::string_view raw;
  if (!take(width, &raw)) {
    return false;
  }
  *value = 0;
  for (std::size_t i = 0; i < width; ++i) {
    *value |= std::uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
  }
  return true;
}

void PickleMachine::push_signed(std::int64_t value) {
  if (value <= kInlineMost && value >= -kInlineMost) {
    stack_.emplace_back(Type::kInt, static_cast<std::uint64_t>(value));
    return;
  }
  stack_.emplace_back(Type::kWideInt, document_.wide_.size() * 2);
  document_.wide_.push_back(static_cast<std::uint64_t>(value));
}

// Two's complement of any length.
bool PickleMachine::push_integer(std::string_view raw) {
  if (raw.size() > 8) {
    const bool is_unsigned = raw.size() == 9 && raw[8] == 0;
    if (!is_unsigned) {
      stack_.emplace_back(Type::kHugeInt, 0);
      return true;
    }
    stack_.emplace_back(Type::kWideInt, document_.wide_.size() * 2 + 1);
    document_.wide_.push_back(load_little_endian<std::uint64_t>(raw, 0));
    return true;
  }
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
  }
  if (!raw.empty() && raw.size() < 8 && (static_cast<unsigned char>(raw.back()) & 0x80) != 0) {
    value |= ~std::uint64_t{0} << (8 * raw.size());
  }
  push_signed(static_cast<std::int64_t>(value));
  return true;
}

bool PickleMachine::push_text(std::size_t width, Type type) {
  std::uint64_t length = 0;
  std::string_view text;
  if (!take_number(width, &length) || !take(length, &text)) {
    return false;
  }
  stack_.emplace_back(type, document_.texts_.size());
  document_.texts_.push_back(text);
  return true;
}

void PickleMachine::push_new(Type type, std::vector<PickleValue> items) {
  stack_.emplace_back(type, document_.containers_.size());
  document_.containers_.push_back({std::move(items), opcode_at_});
}

bool PickleMachine::pop(PickleValue* value) {
  if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) {
    return fail("an opcode that needs a value, and none on the stack", "a value before it");
  }
  *value = stack_.back();
  stack_.pop_back();
  return true;
}

bool PickleMachine::pop_to_mark(std::vector<PickleValue>* items) {
  if (marks_.empty()) {
    return fail("an opcode that needs a MARK, and none on the stack", "MARK before it");
  }
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  items->assign(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return true;
}

bool PickleMachine::pop_tuple(std::size_t count) {
  std::vector<PickleValue> items(count);
  for (std::size_t i = count; i-- > 0;) {
    if (!pop(&items[i])) {
      return false;
    }
  }
  push_new(Type::kTuple, std::move(items));
  return true;
}

bool PickleMachine::extend(Type type, std::vector<PickleValue>&& items, const char* what) {
  if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back()) ||
      stack_.back().type() != type) {
    return fail(std::string("an opcode that adds to ") + what + ", and none on the stack",
                std::string(what) + " before it");
  }
  if (type == Type::kDict && items.size() % 2 != 0) {
    return fail("a key without a value", "keys and values by turns");
  }
  std::vector<PickleValue>& into = document_.containers_[stack_.back().payload()].items;
  if (into.empty()) {
    into = std::move(items);
  } else {
    into.insert(into.end(), items.begin(), items.end());
  }
  return true;
}

bool PickleMachine::put(std::uint64_t index) {
  // A pickler numbers what it keeps from 0 on; a number beyond the file's size is none of its own.
  if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) {
    return fail("a value to remember, and none on the stack", "a value before it");
  }
  if (index > bytes_.size() || index >= kMostMemo) {
    return fail("memo number " + std::to_string(index), "a number below that of the file's bytes");
  }
  if (index >= memo_.size()) {
    memo_.resize(index + 1);
    memo_known_.resize(index + 1);
  }
  memo_[index] = stack_.back();
  memo_known_[index] = true;
  return true;
}

bool PickleMachine::get(std::uint64_t index) {
  if (index >= memo_.size() || !memo_known_[index]) {
    return fail("memo number " + std::to_string(index) + ", which was never stored",
                "the number of a stored value");
  }
  stack_.push_back(memo_[index]);
  return true;
}

bool PickleMachine::step_number(unsigned char opcode) {
  std::uint64_t value = 0;
  std::string_view raw;
  switch (opcode) {
    case kBinInt:
      return take(4, &raw) && push_integer(raw);
    case kBinInt1:
    case kBinInt2:
      if (!take_number(opcode == kBinInt1 ? 1 : 2, &value)) {
        return false;
      }
      push_signed(static_cast<std::int64_t>(value));
      return true;
    case kLong1:
    case kLong4:
      return take_number(opcode == kLong1 ? 1 : 4, &value) && take(value, &raw) &&
             push_integer(raw);
    default:  // kBinFloat: big endian; no number that we use is one
      stack_.emplace_back(Type::kFloat, 0);
      return take(8, &raw);
  }
}

bool PickleMachine::step_text(unsigned char opcode) {
  switch (opcode) {
    case kShortBinUnicode:
    case kShortBinString:
      return push_text(1, Type::kText);
    case kBinUnicode:
    case kBinString:
      return push_text(4, Type::kText);
    case kBinUnicode8:
      return push_text(8, Type::kText);
    case kShortBinBytes:
      return push_text(1, Type::kBytes);
    case kBinBytes:
      return push_text(4, Type::kBytes);
    default:  // kBinBytes8, kByteArray8
      return push_text(8, Type::kBytes);
  }
}

bool PickleMachine::step_collection(unsigned char opcode) {
  std::vector<PickleValue> items;
  switch (opcode) {
    case kAppend:
      items.resize(1);
      return pop(items.data()) && extend(Type::kList, std::move(items), "a list");
    case kAppends:
      return pop_to_mark(&items) && extend(Type::kList, std::move(items), "a list");
    case kAddItems:
      return pop_to_mark(&items) && extend(Type::kSet, std::move(items), "a set");
    case kSetItem:
      items.resize(2);
      return pop(&items[1]) && pop(items.data()) &&
             extend(Type::kDict, std::move(items), "a dictionary");
    case kSetItems:
      return pop_to_mark(&items) && extend(Type::kDict, std::move(items), "a dictionary");
    default:
      break;
  }
  Type type = Type::kTuple;
  if (opcode == kListOp) {
    type = Type::kList;
  } else if (opcode == kDictOp) {
    type = Type::kDict;
  } else if (opcode == kFrozenSet) {
    type = Type::kSet;
  }
  if (!pop_to_mark(&items)) {
    return false;
  }
  if (type == Type::kDict && items.size() % 2 != 0) {
    return fail("a key without a value", "keys and values by turns");
  }
  push_new(type, std::move(items));
  return true;
}

bool PickleMachine::step_memo(unsigned char opcode) {
  std::uint64_t index = 0;
  switch (opcode) {
    case kMemoize:
      return put(memo_.size());
    case kBinPut:
    case kLongBinPut:
      return take_number(opcode == kBinPut ? 1 : 4, &index) && put(index);
    default:
      return take_number(opcode == kBinGet ? 1 : 4, &index) && get(index);
  }
}

bool PickleMachine::step_other(unsigned char opcode) {
  for (const Refused& refused : kRefused) {
    if (refused.opcode == opcode) {
      return fail(std::string("the pickle opcode ") + refused.name +
                      ", which makes or calls something (nothing of it was executed)",
                  "a snapshot of plain values only, as torch writes it");
    }
  }
  const char byte = static_cast<char>(opcode);
  return fail("the byte " + quoted_for_message({&byte, 1}), "an opcode of pickle protocol 2 to 5");
}

bool PickleMachine::step(unsigned char opcode) {
  PickleValue value;
  std::uint64_t number = 0;
  std::vector<PickleValue> items;
  switch (opcode) {
    case kProto:
      return take_number(1, &number) &&
             (number <= 5 || fail("pickle protocol " + std::to_string(number), "protocol 2 to 5"));
    case kFrame:
      return take_number(8, &number);  // where frames end is of no use to who has it all
    case kMark:
      marks_.push_back(stack_.size());
      return true;
    case kStop:
      stopped_ = true;
      return pop(&document_.root_);
    case kPop:
      if (!marks_.empty() && stack_.size() == marks_.back()) {
        marks_.pop_back();
        return true;
      }
      return pop(&value);
    case kPopMark:
      return pop_to_mark(&items);
    case kDup:
      if (!pop(&value)) {
        return false;
      }
      stack_.push_back(value);
      stack_.push_back(value);
      return true;
    case kNoneOp:
      stack_.emplace_back(Type::kNone, 0);
      return true;
    case kNewTrue:
    case kNewFalse:
      stack_.emplace_back(Type::kBool, opcode == kNewTrue ? 1 : 0);
      return true;
    case kEmptyList:
      push_new(Type::kList, {});
      return true;
    case kEmptyTuple:
      push_new(Type::kTuple, {});
      return true;
    case kEmptyDict:
      push_new(Type::kDict, {});
      return true;
    case kEmptySet:
      push_new(Type::kSet, {});
      return true;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      return pop_tuple(opcode - std::size_t{kTuple1} + 1);
    default:
      return step_by_kind(opcode);
  }
}

// The opcodes that come in kinds.
bool PickleMachine::step_by_kind(unsigned char opcode) {
  constexpr std::string_view kNumbers = "JKM\x8a\x8bG";
  constexpr std::string_view kTexts =
      "TUX\x8c\x8d"
      "BC\x8e\x96";
  constexpr std::string_view kCollections =
      "aelt"
      "dsu\x90\x91";
  constexpr std::string_view kMemos = "qr\x94hj";
  const char byte = static_cast<char>(opcode);
  if (kNumbers.find(byte) != std::string_view::npos) {
    return step_number(opcode);
  }
  if (kTexts.find(byte) != std::string_view::npos) {
    return step_text(opcode);
  }
  if (kCollections.find(byte) != std::string_view::npos) {
    return step_collection(opcode);
  }
  return kMemos.find(byte) != std::string_view::npos ? step_memo(opcode) : step_other(opcode);
}

std::optional<PickleDocument::Problem> PickleMachine::run() {
  while (!stopped_) {
    opcode_at_ = at_;
    if (at_ == bytes_.size()) {
      fail("the end of the file (truncated)", "the opcode STOP");
      return problem_;
    }
    if (!step(static_cast<unsigned char>(bytes_[at_++]))) {
      return problem_;
    }
  }
  return std::nullopt;
}

std::optional<PickleDocument::Problem> PickleDocument::read(std::string_view bytes) {
  return PickleMachine(bytes, *this).run();
}

}  // namespace nofrag
