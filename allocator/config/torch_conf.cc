#include "config/torch_conf.h"

#include <algorithm>

#include "base/nearest_name.h"
#include "config/conf_items.h"
#include "config/parser.h"

namespace nofrag {
namespace {

constexpr TorchEffect kHonoured = TorchEffect::kHonoured;
constexpr TorchEffect kNone = TorchEffect::kNone;
constexpr TorchEffect kPyTorch = TorchEffect::kPyTorch;

constexpr TorchKey kKeys[] = {
#define NOFRAG_TORCH_KEY(key, native, hooks, doc) {#key, native, hooks, doc},
#include "config/torch_conf.def"
#undef NOFRAG_TORCH_KEY
};

const TorchKey* find_key(std::string_view key) {
  const auto* const found =
      std::ranges::find_if(kKeys, [&](const TorchKey& known) { return known.key == key; });
  return found != std::end(kKeys) ? found : nullptr;
}

std::string unknown_key(std::string_view key) {
  std::vector<std::string_view> names;
  for (const TorchKey& known : kKeys) {
    names.push_back(known.key);
  }
  std::string note = "unknown key " + quoted(key);
  const std::string_view nearest = nearest_name(key, names);
  if (!nearest.empty()) {
    note += "; did you mean " + std::string(nearest) + "?";
  }
  return note;
}

void honour(const ConfItem& item, TorchConf* conf) {
  if (item.key == "backend" && item.value == "cudaMallocAsync") {
    conf->refusal = "backend:cudaMallocAsync asks for CUDA's own pool, so nofrag stays out of it";
  } else if (item.key == "backend" && item.value != "native") {
    conf->notes.push_back("backend: " + quoted(item.value) +
                          " is neither native nor cudaMallocAsync");
  } else if (item.key == "per_process_memory_fraction") {
    Options options;
    std::vector<std::string> problems;
    if (parse_option("memory_fraction", item.value, &options, &problems)) {
      // The last one holds: here as there.
      conf->options = "memory_fraction:" + std::string(item.value);
    } else {
      conf->notes.push_back(std::string(item.key) + ": " + quoted(item.value) +
                            " is not a number from 0 to 1");
    }
  }
}

// "a", "a and b", "a, b and c".
std::string listed(const std::vector<std::string_view>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += i == 0 ? "" : i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  return text;
}

std::string_view effect_words(TorchEffect effect) {
  switch (effect) {
    case TorchEffect::kHonoured:
      return "honoured";
    case TorchEffect::kNone:
      return "no effect";
    case TorchEffect::kPyTorch:
      break;
  }
  return "PyTorch's, as ever";
}

}  // namespace

std::span<const TorchKey> torch_keys() {
  return kKeys;
}

TorchConf read_torch_conf(std::string_view text, TorchDoor door) {
  TorchConf conf;
  std::vector<std::string_view> without_effect;
  for (const ConfItem& item : conf_items(text)) {
    const TorchKey* const known = find_key(item.key);
    if (!item.has_value) {
      conf.notes.push_back(quoted(item.text) + " has no value (write key:value)");
      continue;
    }
    if (known == nullptr) {
      conf.notes.push_back(unknown_key(item.key));
      continue;
    }
    const TorchEffect effect = door == TorchDoor::kNative ? known->native : known->hooks;
    if (effect == TorchEffect::kHonoured) {
      honour(item, &conf);
    } else if (effect == TorchEffect::kNone &&
               std::ranges::find(without_effect, known->key) == without_effect.end()) {
      without_effect.push_back(known->key);
    }
  }
  if (!without_effect.empty()) {
    const char* const has = without_effect.size() == 1 ? " has" : " have";
    conf.notes.push_back(listed(without_effect) + has + " no effect under nofrag");
  }
  return conf;
}

std::string torch_conf_table() {
  std::string table = "| key | native library | C hooks | |\n|---|---|---|---|\n";
  for (const TorchKey& row : kKeys) {
    table += "| `" + std::string(row.key) + "` | " + std::string(effect_words(row.native)) + " | " +
             std::string(effect_words(row.hooks)) + " | " + std::string(row.doc) + " |\n";
  }
  return table;
}

}  // namespace nofrag
