#include "trace/stacks/python_stack.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "trace/record/record_codec.h"

namespace nofrag {
namespace {

constexpr std::uint16_t kNone = UINT16_MAX;
constexpr std::uint8_t kOwnedByC = 3;  // a frame between two runs of the interpreter; no function's
constexpr std::uint8_t kLastOwner = 3;  // a higher one is of a layout that is not known
constexpr std::size_t kTypeOfObject = 8;
constexpr std::size_t kStateOfText = 32;
constexpr std::uint32_t kCompactAscii = 0x60;
constexpr std::ptrdiff_t kLongestName = 512;
constexpr std::size_t kMostFramesLookedAt = 1024;
constexpr std::string_view kNoName = "?";
// The file of the frame that 3.12 and later put between the call of a class and its __init__; Python shows none.
constexpr std::string_view kNoFile = "__init__";

template <typename T>
T at(const void* object, std::size_t offset) {
  T value;
  std::memcpy(static_cast<void*>(&value), static_cast<const char*>(object) + offset, sizeof value);
  return value;
}

const void* pointer_at(const void* object, std::size_t offset) {
  return at<const void*>(object, offset);
}

bool is_a(const void* object, const void* type) {
  return object != nullptr && reinterpret_cast<std::uintptr_t>(object) % alignof(void*) == 0 &&
         pointer_at(object, kTypeOfObject) == type;
}

// A build whose text says that it is no plain release may have other layouts: "3.13.0b1", "3.9.10-nogil".
bool is_release(std::string_view text) {
  return text.substr(0, text.find(' ')).find_first_not_of("0123456789.+") ==
             std::string_view::npos &&
         text.find("nogil") == std::string_view::npos;
}

}  // namespace

// By the internal headers of 3.9.18, 3.10.13, 3.11.7, 3.12.1 and 3.13.0; a minor release keeps its layout.
const PythonStack::Layout PythonStack::kLayouts[] = {
    {0x0309, 24, kNone, 24, 32, 104, kNone, 104, 112, kNone, 1},
    {0x030a, 24, kNone, 24, 32, 96, kNone, 104, 112, kNone, 2},
    {0x030b, 56, 8, 48, 32, 56, 69, 112, 128, 184, 0},
    {0x030c, 56, 0, 8, 0, 56, 70, 112, 128, 192, 0},
    {0x030d, 72, kNone, 8, 0, 56, 70, 112, 128, 200, 0},
};

template <typename Function>
bool PythonStack::look_up(const char* name, Function* function) {
  void* const symbol = ::dlsym(RTLD_DEFAULT, name);
  *function = reinterpret_cast<Function>(symbol);
  if (symbol == nullptr) {
    // What failed stays this thread's until its text was read, and read again: nothing of ours is left in a process.
    static_cast<void>(::dlerror());
    static_cast<void>(::dlerror());
  }
  return symbol != nullptr;
}

bool PythonStack::find() {
  if (found()) {
    return true;
  }
  const bool base =
      look_up("Py_IsInitialized", &is_initialized_) &&
      look_up("PyGILState_GetThisThreadState", &this_thread_) &&
      look_up("PyUnicode_AsUTF8AndSize", &text_of_) &&
      (look_up("Py_IsFinalizing", &is_finalizing_) || look_up("_Py_IsFinalizing", &is_finalizing_));
  if (!base) {
    return false;
  }
  // Before 3.11 only the text says which release it is: "3.10.13 (main, ...".
  const char* (*version_text)() = nullptr;
  std::uint32_t version = 0;
  if (look_up("Py_GetVersion", &version_text)) {
    const char* text = version_text();
    if (text[0] == '3' && text[1] == '.' && is_release(text)) {
      for (text += 2; *text >= '0' && *text <= '9' && version < 100; ++text) {
        version = version * 10 + static_cast<std::uint32_t>(*text - '0');
      }
      version += 0x0300;
    }
  }
  collects_anywhere_ = version == 0x030b;
  name_attribute_ = version >= 0x030b ? "co_qualname" : "co_name";
  if (way_ == Way::kBest && look_up("PyCode_Addr2Line", &line_at_) &&
      look_up("PyCode_Type", &code_type_) && look_up("PyUnicode_Type", &text_type_) &&
      look_up("PyFrame_Type", &frame_type_)) {
    for (const Layout& layout : kLayouts) {
      layout_ = layout.version == version ? &layout : layout_;
    }
  }
  const bool can_ask =
      (look_up("PyThreadState_GetUnchecked", &current_thread_) ||
       look_up("_PyThreadState_UncheckedGet", &current_thread_)) &&
      look_up("PyThreadState_GetFrame", &frame_of_) && look_up("PyFrame_GetCode", &code_of_) &&
      look_up("PyFrame_GetBack", &back_of_) && look_up("PyFrame_GetLineNumber", &line_of_) &&
      look_up("PyObject_GetAttrString", &attribute_) && look_up("PyErr_Occurred", &error_) &&
      look_up("PyErr_Clear", &clear_error_) && look_up("Py_DecRef", &let_go_) &&
      (!collects_anywhere_ ||
       (look_up("PyGC_Disable", &gc_off_) && look_up("PyGC_Enable", &gc_on_)));
  if (layout_ == nullptr && !can_ask) {
    return false;
  }
  found_.store(true, std::memory_order_release);
  return true;
}

std::size_t PythonStack::walk(std::size_t most, std::string* rows, bool* cut) const {
  *cut = false;
  if (!found() || is_initialized_() == 0 || is_finalizing_() != 0) {
    return 0;
  }
  void* const thread = this_thread_();
  if (thread == nullptr) {
    return 0;  // no thread of Python's
  }
  if (layout_ != nullptr) {
    return read(thread, most, rows, cut);
  }
  // The thread holds the GIL if the state that does is its own.
  return current_thread_() == thread ? ask(thread, most, rows, cut) : 0;
}

// ---- reading

// A name that is not plain ASCII would have to be converted, which needs the GIL.
std::string_view PythonStack::ascii(const void* text) const {
  std::ptrdiff_t size = 0;
  const char* bytes = nullptr;
  if (is_a(text, text_type_) &&
      (at<std::uint32_t>(text, kStateOfText) & kCompactAscii) == kCompactAscii) {
    bytes = text_of_(const_cast<void*>(text), &size);
  }
  return bytes == nullptr
             ? kNoName
             : std::string_view(bytes, static_cast<std::size_t>(std::min(size, kLongestName)));
}

std::size_t PythonStack::read(void* thread, std::size_t most, std::string* rows, bool* cut) const {
  const Layout& layout = *layout_;
  const void* frame = pointer_at(thread, layout.frame_of_thread);
  if (layout.frame_of_cframe != kNone && frame != nullptr) {
    frame = pointer_at(frame, layout.frame_of_cframe);
  }
  std::size_t count = 0;
  for (std::size_t looked_at = 0; frame != nullptr && looked_at < kMostFramesLookedAt;
       ++looked_at, frame = pointer_at(frame, layout.previous)) {
    const std::uint8_t owner =
        layout.owner == kNone ? std::uint8_t{0} : at<std::uint8_t>(frame, layout.owner);
    if (owner > kLastOwner) {
      return count;
    }
    if (owner == kOwnedByC) {
      continue;
    }
    if (layout.owner == kNone && !is_a(frame, frame_type_)) {
      return count;
    }
    const void* const code = pointer_at(frame, layout.code_of_frame);
    if (!is_a(code, code_type_)) {
      return count;
    }
    if (ascii(pointer_at(code, layout.file_name)) == kNoFile) {
      continue;
    }
    if (count == most) {
      *cut = true;
      return count;
    }
    std::ptrdiff_t offset = 0;
    if (layout.first_code == kNone) {
      offset = std::ptrdiff_t{at<std::int32_t>(frame, layout.instruction)} * layout.step;
    } else {
      offset = static_cast<const char*>(pointer_at(frame, layout.instruction)) -
               (static_cast<const char*>(code) + layout.first_code);
    }
    const int line = line_at_(const_cast<void*>(code), static_cast<int>(offset));
    append_text(ascii(pointer_at(code, layout.file_name)), rows);
    append_varint(line > 0 ? static_cast<std::uint64_t>(line) : 0, rows);
    append_text(ascii(pointer_at(code, layout.name)), rows);
    ++count;
  }
  return count;
}

// ---- asking

void PythonStack::append_attribute(Object* code, const char* name, std::string* rows) const {
  Object* const text = attribute_(code, name);
  std::ptrdiff_t size = 0;
  const char* const bytes = text == nullptr ? nullptr : text_of_(text, &size);
  append_text(bytes == nullptr
                  ? kNoName
                  : std::string_view(
                        bytes, static_cast<std::size_t>(size < kLongestName ? size : kLongestName)),
              rows);
  if (text != nullptr) {
    let_go_(text);
  }
  if (error_() != nullptr) {
    clear_error_();
  }
}

std::size_t PythonStack::ask(void* thread, std::size_t most, std::string* rows, bool* cut) const {
  if (error_() != nullptr) {
    return 0;  // an exception is on its way, which is not ours to touch
  }
  const bool collected = collects_anywhere_ && gc_off_() != 0;
  std::size_t count = 0;
  Object* frame = frame_of_(thread);
  while (frame != nullptr) {
    if (count == most) {
      *cut = true;
      let_go_(frame);
      break;
    }
    Object* const code = code_of_(frame);
    const int line = line_of_(frame);
    append_attribute(code, "co_filename", rows);
    append_varint(line > 0 ? static_cast<std::uint64_t>(line) : 0, rows);
    append_attribute(code, name_attribute_, rows);
    let_go_(code);
    Object* const back = back_of_(frame);
    let_go_(frame);
    frame = back;
    ++count;
  }
  if (error_() != nullptr) {
    clear_error_();
  }
  if (collected) {
    gc_on_();
  }
  return count;
}

}  // namespace nofrag
