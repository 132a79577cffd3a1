// A library for python_stacks_test.py, which loads it by ctypes: what each way finds of Python's stack, as text.
#include <algorithm>
#include <cstring>
#include <string>

#include "trace/record/record_codec.h"
#include "trace/stacks/python_stack.h"

using nofrag::PythonStack;

namespace {

PythonStack& stack_of(int public_calls) {
  static PythonStack best(PythonStack::Way::kBest);
  static PythonStack asking(PythonStack::Way::kPublicCalls);
  PythonStack& stack = public_calls != 0 ? asking : best;
  stack.find();
  return stack;
}

}  // namespace

extern "C" {

// "file:line function\n" a frame, then "cut\n" if there were more than `most`. -1: there is no interpreter to be found.
[[gnu::visibility("default")]] int probe_python(int public_calls,
                                                int most,
                                                char* buffer,
                                                int capacity) {
  const PythonStack& stack = stack_of(public_calls);
  if (!stack.found()) {
    return -1;
  }
  std::string rows;
  bool cut = false;
  const std::size_t count = stack.walk(static_cast<std::size_t>(most), &rows, &cut);
  nofrag::VarintReader reader(rows);
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    std::string file;
    std::string function;
    std::uint64_t line = 0;
    if (!nofrag::next_text(reader, &file) || !reader.next(&line) ||
        !nofrag::next_text(reader, &function)) {
      return -2;
    }
    text += file + ":" + std::to_string(line) + " " + function + "\n";
  }
  text += cut ? "cut\n" : "";
  const std::size_t size = std::min(text.size(), static_cast<std::size_t>(capacity) - 1);
  std::memcpy(buffer, text.data(), size);
  buffer[size] = '\0';
  return static_cast<int>(count);
}

}  // extern "C"
