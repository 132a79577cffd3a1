// json_reason: what the JSON library found wrong with a text, without the words that are about the library.
//
// Layer: base. Owns: nothing; it takes the library's message and knows nothing else of it. Threads: pure function.
// Failure: a message of another form comes back as it is, cut to a line's length. Cost: one short string.
#pragma once

#include <string>
#include <string_view>

namespace nofrag {

// "unexpected end of input" of "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while
// parsing value - unexpected end of input; expected '[', '{', or a literal".
std::string json_reason(std::string_view message);

}  // namespace nofrag
