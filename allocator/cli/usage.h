// usage_message: what is wrong with a command line, as a sentence that names the option and what to do.
//
// Owns: nothing. Layer: cli. Threads: none. Failure: none; an error it does not know is passed on in the
// parser's words. Cost: looks at every option of one command.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace nofrag {

// `app` is the program's, in the state in which its parse() threw `error`.
[[nodiscard]] std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace nofrag
