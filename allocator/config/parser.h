// Parser of NOFRAG_CONF and of every other place where options are written as text.
//
// Grammar: item[,item]... with item = key:value. The first ':' splits, so a value may contain ':'.
// Spaces around items, keys and values are ignored, and so are empty items. A value in square
// brackets may contain ',' and is reserved: no option takes a list yet. A key given twice: the last
// one holds.
// Layer: config (depends on base only). Units: sizes are bytes, or a number with B, KiB, MiB, GiB
// or TiB. Threads: pure functions. Failure: a bad item leaves its option as it was and adds one
// problem that names the key, what was read and what is accepted (or the nearest key there is);
// the good items around it still hold. Cost: host only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/option_table.h"
#include "config/options.h"

namespace nofrag {

// True if there was no problem. `given`, if not null, gets the options that the text has set
// (added to what it held).
bool parse_options(std::string_view text,
                   Options* options,
                   std::vector<std::string>* problems,
                   OptionSet* given = nullptr);

// One value, as parse_options would take it.
bool parse_option(std::string_view key,
                  std::string_view value,
                  Options* options,
                  std::vector<std::string>* problems,
                  OptionSet* given = nullptr);

// Adds a problem if the limit is less than one piece of memory from the driver: every allocation would fail.
void check_limit(const Options& options, std::vector<std::string>* problems);

// "24GiB", "79.18GiB" (rounded down to whole bytes), "4096B", "4096". False on anything else, on negative and on too large.
bool parse_bytes(std::string_view text, Bytes* out);
// What parse_bytes has refused, and what to write instead: "\"80GB\" is not a size (write 80GiB, or 80000000000B ...)".
std::string no_size(std::string_view text);
// Only that, "80GiB, or ...", where it is clear what was meant; else empty.
std::string meant_size(std::string_view text);

}  // namespace nofrag
