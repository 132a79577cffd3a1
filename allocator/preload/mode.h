// Mode: whether and how the preload acts in this process.
//
// Owns: the decision, made once, when the driver is first asked for; the options that the environment gives;
// the constructor, which only looks at the environment. Layer: preload.
// We act if the file was preloaded (not: linked, or opened by a program), the mode is not `off`, no tool that
// watches memory is in the process, and the driver is the real one.
// Threads: any. Failure: whatever speaks against acting is said in one line, and the driver serves alone.
// Cost: one load once decided.
#pragma once

#include <atomic>

#include "config/option_table.h"
#include "config/options.h"

namespace nofrag::preload {

// Was this file named in LD_PRELOAD or /etc/ld.so.preload?
[[nodiscard]] bool preloaded();
// Decides, if nobody has.
bool decide_to_act();
// The decision; false before it, in the child of a fork, and after give_up.
[[nodiscard]] bool acting();
// The same, and true after give_up too: memory that was given out is ours, and must be seen to (contexts that end,
// captures, streams, what becomes known outside).
[[nodiscard]] bool has_acted();
// Something of ours failed: one line, and from now on the driver serves what is new. Memory that was given
// out stays ours.
void give_up(const char* what, const char* why);

// As the environment gives them. pre: decided.
[[nodiscard]] const Options& options();

// One line on stderr, unless log:silent.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);

// Inside calls that nofrag itself makes, the hooks stand aside. One a thread.
class InsideNofrag {
 public:
  InsideNofrag();
  InsideNofrag(const InsideNofrag&) = delete;
  InsideNofrag& operator=(const InsideNofrag&) = delete;
  ~InsideNofrag();
  static bool here();
};

}  // namespace nofrag::preload
