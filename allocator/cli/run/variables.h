// Variables: the environment variables that are nofrag's or look it, and what is wrong with them; files that could not be
// written once a program runs.
//
// Owns: nothing. Layer: cli. Threads: none. Failure: a text that says what is wrong and what to write; empty: nothing is.
// Cost: a few stats. (The library itself is silent about names that it does not know: they may be anybody's.)
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nofrag {

struct Variable {
  std::string name;
  std::string value;
  bool known = false;   // nofrag reads a variable of that name
  std::string problem;  // for a sentence that begins with the name
};

// All whose name begins with NOFRAG_, in whatever case, by name; a known one without a value counts as not set.
[[nodiscard]] std::vector<Variable> own_variables();
// What is wrong with a value of NOFRAG_TORCH, of NOFRAG_LIBRARY.
[[nodiscard]] std::string torch_problem(std::string_view value);
[[nodiscard]] std::string library_problem(const std::string& path);

// Why the file of `trace:` cannot be written.
[[nodiscard]] std::string recording_problem(const std::string& trace);
// Why what `metrics:` names cannot be written; ports are tried when the program starts.
[[nodiscard]] std::string metrics_problem(const std::string& place);

// The same of names that the program itself looks up, from a variable or a conf: nothing is said of a relative one, as the
// program may be elsewhere by then.
[[nodiscard]] std::string later_recording_problem(const std::string& trace);
[[nodiscard]] std::string later_metrics_problem(const std::string& place);

}  // namespace nofrag
