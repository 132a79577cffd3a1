// conf_items: a configuration text, "key:value,key:value", cut into its items.
//
// The grammar of PyTorch's PYTORCH_CUDA_ALLOC_CONF, which NOFRAG_CONF shares: items end at a ',' outside
// square brackets; the first ':' ends the key; spaces around items, keys and values do not count, and neither
// do empty items. Layer: config (depends on base only). Owns: nothing; views of the text. Threads: pure
// functions. Failure: none here; an item without ':' is given as a key without a value. Cost: one walk.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nofrag {

struct ConfItem {
  std::string_view text;  // the whole item, trimmed
  std::string_view key;
  std::string_view value;
  bool has_value = false;  // there was a ':'
};

std::vector<ConfItem> conf_items(std::string_view text);

// In quotes, printable and short: a message stays one readable line whatever was in the environment.
std::string quoted(std::string_view text);

// Letters A to Z only.
bool equals_ignoring_case(std::string_view a, std::string_view b);

std::string_view trim_spaces(std::string_view text);

}  // namespace nofrag
