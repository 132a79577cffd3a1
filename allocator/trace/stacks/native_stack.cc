#include "trace/stacks/native_stack.h"

#include <unwind.h>

namespace nofrag {
namespace {

struct Walk {
  std::span<std::uint64_t> frames;
  CodeRange skipped;
  std::size_t count = 0;
  bool cut = false;
};

_Unwind_Reason_Code note_frame(_Unwind_Context* context, void* argument) {
  Walk& walk = *static_cast<Walk*>(argument);
  int before_instruction = 0;  // a signal's frame: the address is that of the instruction itself
  std::uint64_t address = _Unwind_GetIPInfo(context, &before_instruction);
  if (address == 0) {
    return _URC_END_OF_STACK;
  }
  address -= before_instruction == 0 ? 1U : 0U;
  if (walk.count == 0 && walk.skipped.holds(address)) {
    return _URC_NO_REASON;
  }
  if (walk.count == walk.frames.size()) {
    walk.cut = true;
    return _URC_END_OF_STACK;
  }
  walk.frames[walk.count++] = address;
  return _URC_NO_REASON;
}

}  // namespace

std::size_t native_stack(std::span<std::uint64_t> frames, CodeRange skipped, bool* cut) {
  Walk walk{frames, skipped};
  _Unwind_Backtrace(&note_frame, &walk);
  *cut = walk.cut;
  return walk.count;
}

}  // namespace nofrag
