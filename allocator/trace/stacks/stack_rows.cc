#include "trace/stacks/stack_rows.h"

#include <limits>
#include <utility>

#include "trace/record/record_codec.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kMostFrames = 1024;
constexpr std::uint64_t kLastNumber = std::numeric_limits<std::uint32_t>::max();

bool refuse(std::string text, std::string* why) {
  *why = std::move(text);
  return false;
}

// The number of a row, which no row before may have.
template <typename Map>
bool next_key(VarintReader& reader,
              const char* what,
              const Map& before,
              std::uint32_t* key,
              std::string* why) {
  std::uint64_t number = 0;
  if (!reader.next(&number)) {
    return refuse(std::string("a row of ") + what + "s that runs past its end", why);
  }
  if (number == 0 || number > kLastNumber) {
    return refuse(std::string(what) + " " + std::to_string(number) + ", which no number may be",
                  why);
  }
  *key = static_cast<std::uint32_t>(number);
  return !before.contains(*key) ||
         refuse(std::string(what) + " " + std::to_string(number) + " a second time", why);
}

bool next_count(VarintReader& reader, std::uint64_t* count, std::string* why) {
  if (!reader.next(count)) {
    return refuse("a call stack that runs past its end", why);
  }
  return *count <= kMostFrames ||
         refuse("a call stack of " + std::to_string(*count) + " frames", why);
}

bool next_stack(VarintReader& reader,
                const std::map<std::uint32_t, Recording::Module>& modules,
                Recording::Stack* stack,
                std::string* why) {
  constexpr const char* kEnds = "a call stack that runs past its end";
  std::uint64_t count = 0;
  if (!reader.next(&stack->flags)) {
    return refuse(kEnds, why);
  }
  if (!next_count(reader, &count, why)) {
    return false;
  }
  for (; count > 0; --count) {
    std::uint64_t module = 0;
    Recording::Stack::Native frame;
    if (!reader.next(&module) || !reader.next(&frame.offset)) {
      return refuse(kEnds, why);
    }
    frame.module = static_cast<std::uint32_t>(module);
    if (module != 0 && (module > kLastNumber || !modules.contains(frame.module))) {
      return refuse(
          "a frame in module " + std::to_string(module) + ", which nothing before defines", why);
    }
    stack->native.push_back(frame);
  }
  if (!next_count(reader, &count, why)) {
    return false;
  }
  for (; count > 0; --count) {
    Recording::Stack::Python frame;
    if (!next_text(reader, &frame.file) || !reader.next(&frame.line) ||
        !next_text(reader, &frame.function)) {
      return refuse(kEnds, why);
    }
    stack->python.push_back(std::move(frame));
  }
  return true;
}

}  // namespace

void append_module(std::uint32_t number, const Recording::Module& module, std::string* rows) {
  append_varint(number, rows);
  append_text(module.path, rows);
  append_text(module.build_id, rows);
}

void append_stack(std::uint32_t site, const Recording::Stack& stack, std::string* rows) {
  append_varint(site, rows);
  append_varint(stack.flags, rows);
  append_varint(stack.native.size(), rows);
  for (const Recording::Stack::Native& frame : stack.native) {
    append_varint(frame.module, rows);
    append_varint(frame.offset, rows);
  }
  append_varint(stack.python.size(), rows);
  for (const Recording::Stack::Python& frame : stack.python) {
    append_text(frame.file, rows);
    append_varint(frame.line, rows);
    append_text(frame.function, rows);
  }
}

bool decode_modules(std::string_view payload,
                    std::uint32_t items,
                    std::map<std::uint32_t, Recording::Module>* modules,
                    std::string* why) {
  VarintReader reader(payload);
  for (std::uint32_t i = 0; i < items; ++i) {
    std::uint32_t number = 0;
    Recording::Module module;
    if (!next_key(reader, "module", *modules, &number, why)) {
      return false;
    }
    if (!next_text(reader, &module.path) || !next_text(reader, &module.build_id)) {
      return refuse("a module that runs past its end", why);
    }
    modules->emplace(number, std::move(module));
  }
  return true;
}

bool decode_stacks(std::string_view payload,
                   std::uint32_t items,
                   const std::map<std::uint32_t, Recording::Module>& modules,
                   std::map<std::uint32_t, Recording::Stack>* stacks,
                   std::string* why) {
  VarintReader reader(payload);
  for (std::uint32_t i = 0; i < items; ++i) {
    std::uint32_t site = 0;
    Recording::Stack stack;
    if (!next_key(reader, "call stack", *stacks, &site, why) ||
        !next_stack(reader, modules, &stack, why)) {
      return false;
    }
    stacks->emplace(site, std::move(stack));
  }
  return true;
}

}  // namespace nofrag
