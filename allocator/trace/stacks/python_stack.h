// PythonStack: which Python functions the calling thread is inside of.
//
// An interpreter is found by its public symbols; nothing is linked. PyTorch gives up the interpreter's lock (the
// GIL) before it allocates, and taking it here could deadlock, so two ways lead to the frames:
//   - of the releases of CPython whose layout is known (3.9 to 3.13), a thread reads its own chain of frames, with
//     or without the GIL. The chain stands still, because only its own thread moves it; it keeps the code objects
//     alive, whose names never change; and no reference count is touched. Each object's type is checked before it
//     is believed.
//   - of others, by public calls, only if the thread holds the GIL, with references balanced, no exception left
//     set and no garbage collection in between.
// Owns: nothing. Layer: trace. Units: rows as in a STACKS block (include/nofrag/trace_format.h).
// Invariants: nothing is imported, no Python code is run, no lock is waited for.
// Threads: find() by one thread at a time, and never where the loader's lock must not be waited for (inside the
// allocator's locks); walk() by any. Failure: no frames. Cost: about 0.1 us a frame read, several times that by public calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nofrag {

class PythonStack {
 public:
  enum class Way : unsigned char { kBest, kPublicCalls };

  explicit PythonStack(Way way = Way::kBest) : way_(way) {}

  // Is there an interpreter in the process?
  bool find();
  [[nodiscard]] bool found() const { return found_.load(std::memory_order_acquire); }

  // Appends the innermost `most` frames of the calling thread; how many there were. *cut: there are more.
  std::size_t walk(std::size_t most, std::string* rows, bool* cut) const;

 private:
  using Object = void;
  // Where things lie in one release of CPython, in bytes.
  struct Layout {
    std::uint32_t version;  // 0x030b: 3.11
    std::uint16_t frame_of_thread;
    std::uint16_t frame_of_cframe;  // kNone: the thread has the frame itself
    std::uint16_t previous;
    std::uint16_t code_of_frame;
    std::uint16_t instruction;
    std::uint16_t owner;       // kNone: every frame is a Python function's
    std::uint16_t file_name;   // of a code object
    std::uint16_t name;        // the qualified one, where there is one
    std::uint16_t first_code;  // kNone: `instruction` is an index, not a pointer
    std::uint16_t step;        // bytes of code by which such an index counts
  };
  static const Layout kLayouts[];

  template <typename Function>
  static bool look_up(const char* name, Function* function);
  [[nodiscard]] std::size_t read(void* thread,
                                 std::size_t most,
                                 std::string* rows,
                                 bool* cut) const;
  [[nodiscard]] std::size_t ask(void* thread, std::size_t most, std::string* rows, bool* cut) const;
  void append_attribute(Object* code, const char* name, std::string* rows) const;
  [[nodiscard]] std::string_view ascii(const void* text) const;

  const Way way_;
  std::atomic<bool> found_{false};

  const Layout* layout_ = nullptr;
  const void* code_type_ = nullptr;
  const void* text_type_ = nullptr;
  const void* frame_type_ = nullptr;  // where frames are objects
  bool collects_anywhere_ = false;    // 3.11: making a frame object may start a collection
  const char* name_attribute_ = "co_name";

  int (*is_initialized_)() = nullptr;
  int (*is_finalizing_)() = nullptr;
  void* (*this_thread_)() = nullptr;
  void* (*current_thread_)() = nullptr;  // whose GIL it is
  int (*line_at_)(Object* code, int offset) = nullptr;
  const char* (*text_of_)(Object* text, std::ptrdiff_t* size) = nullptr;
  Object* (*frame_of_)(void* thread) = nullptr;
  Object* (*code_of_)(Object* frame) = nullptr;
  Object* (*back_of_)(Object* frame) = nullptr;
  int (*line_of_)(Object* frame) = nullptr;
  Object* (*attribute_)(Object* object, const char* name) = nullptr;
  Object* (*error_)() = nullptr;
  void (*clear_error_)() = nullptr;
  void (*let_go_)(Object* object) = nullptr;
  int (*gc_off_)() = nullptr;
  int (*gc_on_)() = nullptr;
};

}  // namespace nofrag
