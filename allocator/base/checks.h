// Checks: what happens when the program itself is wrong.
//
// NOFRAG_CHECK     always on: states that no input can make false; aborts with file and line.
// NOFRAG_ASSERT    check level >= 1 (debug, sanitizer builds).
// NOFRAG_EXPENSIVE check level >= 2: whole-structure walks (the check() members).
// Errors that input, the driver or the machine can cause are Results, never checks.
// Layer: base. Threads: any. The level is NOFRAG_CHECK_LEVEL, set by CMake.
#pragma once

#ifndef NOFRAG_CHECK_LEVEL
#define NOFRAG_CHECK_LEVEL 0
#endif

namespace nofrag {

// Prints one line to stderr and aborts. Never allocates.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* what);

}  // namespace nofrag

#define NOFRAG_CHECK(condition, what)                               \
  do {                                                              \
    if (!(condition)) [[unlikely]] {                                \
      ::nofrag::check_failed(__FILE__, __LINE__, #condition, what); \
    }                                                               \
  } while (false)

#if NOFRAG_CHECK_LEVEL >= 1
#define NOFRAG_ASSERT(condition, what) NOFRAG_CHECK(condition, what)
#else
#define NOFRAG_ASSERT(condition, what) \
  do {                                 \
  } while (false)
#endif

#if NOFRAG_CHECK_LEVEL >= 2
#define NOFRAG_EXPENSIVE(statement) \
  do {                              \
    statement;                      \
  } while (false)
#else
#define NOFRAG_EXPENSIVE(statement) \
  do {                              \
  } while (false)
#endif
