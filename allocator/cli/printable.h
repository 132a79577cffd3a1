// printable: text that others chose (names of files, of programs, of options), as it may stand in a line on a terminal.
//
// Owns: nothing. Layer: cli. Control characters, which would end the line or move the cursor, become \n, \t, \r and \xNN;
// everything else, UTF-8 too, stays as it is. Threads: any. Failure: none. Cost: a pass over the text.
#pragma once

#include <string>
#include <string_view>

namespace nofrag {

[[nodiscard]] std::string printable(std::string_view text);

}  // namespace nofrag
