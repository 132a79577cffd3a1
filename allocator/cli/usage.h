// usage_message: what is wrong with a command line, as a sentence that names the option and what to do.
//
// Owns: nothing. Layer: cli. Threads: none. Failure: none; an error it does not know is passed on in the
// parser's words. Cost: looks at every option of one command.
#pragma once

#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace nofrag {

// `app` is the program's, in the state in which its parse() threw `error`.
[[nodiscard]] std::string usage_message(const CLI::App& app, const CLI::ParseError& error);
// Behind a message that takes `word` for an option: how to write it if it is a file.
[[nodiscard]] std::string file_hint(std::string_view word);
// What stands at the end of a command's help: examples of it, and its exit codes; of all commands for "".
[[nodiscard]] std::string help_footer(std::string_view command);
// What `convert` is to be given, behind a message that misses it.
inline constexpr std::string_view kConvertExample =
    "; write the format and the file, as in: nofrag convert trace.csv --to nofrag trace.nofrag";

}  // namespace nofrag
