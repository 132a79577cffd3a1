// parse_json, json_text: JSON from text and to text, compiled once for all of the program.
//
// Layer: base, in a library of its own (nofrag_json). Owns: nothing. Threads: pure functions.
// Failure: a text that is no JSON gives a discarded value (is_discarded()); std::bad_alloc.
// Cost: the JSON library's. Callers include <nlohmann/json.hpp> for the values.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace nofrag {

nlohmann::json parse_json(std::string_view text);

// As --json writes it: a space a level, a line at the end; bytes that are no UTF-8 are replaced, since paths have any.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace nofrag
