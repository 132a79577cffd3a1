// nearest_name: the known name that a mistyped one most likely meant.
//
// Layer: base. Units: edit distance counts insertions, deletions, substitutions and swaps of
// neighbours, letter case ignored. A name is offered only if it is close enough to be a typo (at
// most a third of the longer name changed, and at least one change is always allowed), or if one
// of the two is a prefix of the other; otherwise a suggestion would mislead more than help.
// Threads: pure functions. Failure: none. Cost: O(length squared) a candidate; for messages only.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace nofrag {

[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// The best candidate (the first of equals), or an empty view if none is close.
[[nodiscard]] std::string_view nearest_name(std::string_view name,
                                            std::span<const std::string_view> candidates);

}  // namespace nofrag
